/*
 * Stands in for modules that the bundled libraries name and no panel uses (build.mjs says which).
 */
export default {};
