/*
 * Replaces modules that the bundled libraries import and no panel uses (build.mjs lists them).
 */
export default {};
