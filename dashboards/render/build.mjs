/*
 * Bundles the page that draws a board: page/main.tsx and node_modules (`npm ci`) into dist/ (main.js, main.css).
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
  // An editor of 10 MB and a Node module, neither of which any panel uses.
  alias: { "monaco-editor": "./page/nothing.ts", stream: "./page/nothing.ts" },
  loader: { ".woff": "dataurl", ".woff2": "dataurl", ".svg": "dataurl" },
  define: { "process.env.NODE_ENV": '"production"', global: "window" },
  logLevel: "warning",
});
