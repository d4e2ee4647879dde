/*
 * Takes the picture of a board: the bundled page and a document in, PNG out, by headless Chromium.
 *
 *     node shoot.mjs document.json board.png [panel-id ...]
 *
 * With panel ids it writes board-ID.png of each instead of the whole board. The page is served on a free port of
 * 127.0.0.1 and uses no other network. Exit status 1 with the reason on stderr when the page cannot be drawn within a
 * minute; errors and warnings of the page's console are printed to stderr too.
 */
import { createServer } from "node:http";
import { readFile, writeFile } from "node:fs/promises";
import path from "node:path";
import { fileURLToPath } from "node:url";
import puppeteer from "puppeteer-core";
import UPNG from "upng-js";

const here = path.dirname(fileURLToPath(import.meta.url));
const ICONS = path.join(here, "node_modules/@grafana/ui/dist/public/img/icons");
// The font files that Grafana's styles request.
const FONTS = {
  "/public/fonts/inter/Inter-Regular.woff2": "inter/files/inter-latin-400-normal.woff2",
  "/public/fonts/inter/Inter-Medium.woff2": "inter/files/inter-latin-500-normal.woff2",
};
const PAGE = `<!doctype html><meta charset="utf-8"><link rel="stylesheet" href="main.css">
<style>body { margin: 0; overflow: visible } #root { display: inline-block }</style>
<div id="root"></div><script src="main.js"></script>`;
const TYPES = {
  ".js": "text/javascript",
  ".css": "text/css",
  ".svg": "image/svg+xml",
  ".json": "application/json",
};

function fileOf(url, documentPath) {
  const icons = "/public/build/img/icons/";
  if (url === "/document.json") return documentPath;
  if (url === "/main.js" || url === "/main.css") return path.join(here, "dist", url);
  if (FONTS[url]) return path.join(here, "node_modules/@fontsource", FONTS[url]);
  if (url.startsWith(icons) && !url.includes("..")) return path.join(ICONS, url.slice(icons.length));
  return null;
}

function serve(documentPath) {
  const server = createServer(async (request, response) => {
    const url = request.url.split("?")[0];
    if (url === "/") return response.setHeader("Content-Type", "text/html").end(PAGE);
    const file = fileOf(url, documentPath);
    try {
      const body = await readFile(file ?? "");
      response.setHeader("Content-Type", TYPES[path.extname(file)] ?? "application/octet-stream").end(body);
    } catch {
      if (url !== "/favicon.ico") process.stderr.write(`page: not found: ${url}\n`);
      response.writeHead(404).end();
    }
  });
  return new Promise((ready) => server.listen(0, "127.0.0.1", () => ready(server)));
}

/** With a palette of 256 colours, which flat areas and thin lines need no more of, at a third of the bytes. */
async function save(element, target) {
  const picture = UPNG.decode(await element.screenshot());
  const bytes = UPNG.encode(UPNG.toRGBA8(picture), picture.width, picture.height, 256);
  await writeFile(target, Buffer.from(bytes));
}

async function shoot(page, target, ids) {
  if (!ids.length) {
    return save(await page.waitForSelector("#board"), target);
  }
  for (const id of ids) {
    const panel = await page.waitForSelector(`#panel-${id}`, { timeout: 1000 });
    await save(panel, target.replace(/(\.png)?$/, `-${id}.png`));
  }
}

/** Titles of drawn panels, each with what does not fit: a legend, bars, rows, or the text of a cell. */
function cutPanels(page) {
  return page.$$eval('[id^="panel-"]', (panels) =>
    panels.flatMap((panel) => {
      const scrolled = [...panel.querySelectorAll("*")].filter((one) => {
        const { overflowX, overflowY } = getComputedStyle(one);
        const hides = (overflow) => ["auto", "scroll"].includes(overflow);
        return (
          (hides(overflowY) && one.scrollHeight > one.clientHeight + 1) ||
          (hides(overflowX) && one.scrollWidth > one.clientWidth + 1)
        );
      });
      const cells = [...panel.querySelectorAll('[role="gridcell"], [role="columnheader"] *')].filter(
        (one) => one.scrollWidth > one.clientWidth + 1 && getComputedStyle(one).textOverflow === "ellipsis",
      );
      const title = panel.querySelector("h2, h6")?.textContent ?? panel.id;
      return [...scrolled, ...cells].map((one) => {
        const size = `${one.scrollWidth} x ${one.scrollHeight} in ${one.clientWidth} x ${one.clientHeight} pixels`;
        return `${title}: ${size}: ${one.textContent.slice(0, 60)}`;
      });
    }),
  );
}

async function main([documentPath, target, ...ids]) {
  const { width, to } = JSON.parse(await readFile(documentPath, "utf8"));
  const server = await serve(documentPath);
  const browser = await puppeteer.launch({
    executablePath: process.env.CHROMIUM,
    // Chromium's sandbox does not work as root, as in a container; the page is trusted.
    args: ["--no-sandbox", "--disable-gpu", "--hide-scrollbars", "--disable-background-networking"],
  });
  try {
    const page = await browser.newPage();
    page.on(
      "console",
      (one) =>
        ["error", "warn"].includes(one.type()) &&
        !one.text().includes("404") &&
        process.stderr.write(`page: ${one.text()}\n`),
    );
    page.on("pageerror", (problem) => process.stderr.write(`page: ${problem.stack ?? problem}\n`));
    // Taller than any board, so that every panel is visible and drawn.
    await page.setViewport({ width, height: 4000, deviceScaleFactor: Number(process.env.PIXELS ?? 1) });
    // Relative times ("two hours ago") count from the end of the time range.
    await page.evaluateOnNewDocument((shift) => {
      const now = Date.now;
      Date.now = () => now() + shift;
    }, to - Date.now());
    await page.goto(`http://127.0.0.1:${server.address().port}/`);
    await page.waitForFunction("window.drawn === true", { timeout: 60_000 });
    await shoot(page, target, ids);
    const cut = await cutPanels(page);
    cut.forEach((one) => process.stderr.write(`page: cut: ${one}\n`));
    process.exitCode = cut.length ? 1 : 0;
  } finally {
    await browser.close();
    server.close();
  }
}

main(process.argv.slice(2)).catch((problem) => {
  process.stderr.write(`${problem.message ?? problem}\n`);
  process.exit(1);
});
