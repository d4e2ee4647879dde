/*
 * Bundles the page that draws a board: page/main.tsx in, dist/ out (main.js, main.css, fonts).
 *
 * Nothing is fetched; what it bundles lies in node_modules (`npm ci`). It knows nothing of boards.
 */
import { build } from "esbuild";
import { fileURLToPath } from "node:url";
import path from "node:path";

const here = path.dirname(fileURLToPath(import.meta.url));

await build({
  absWorkingDir: here,
  entryPoints: ["page/main.tsx"],
  outdir: "dist",
  bundle: true,
  minify: true,
  format: "iife",
  target: "chrome120",
  jsx: "automatic",
  mainFields: ["browser", "module", "main"],
  // An editor of 10 MB and a module of Node's that no panel uses.
  alias: { "monaco-editor": "./page/nothing.ts", stream: "./page/nothing.ts" },
  loader: { ".woff": "dataurl", ".woff2": "dataurl", ".svg": "dataurl" },
  define: { "process.env.NODE_ENV": '"production"', global: "window" },
  logLevel: "warning",
});
