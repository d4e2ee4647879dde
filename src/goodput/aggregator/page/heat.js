// The rank heat map: who is slow, and since when. Rows are ranks, columns are time, a cell is a rank's own time per step
// against the median of all ranks then.
//
// In: `heat` of the API's timeline: the ranks that deviate, and the others as quantiles. Out: one canvas whatever the
// number of ranks, the worst ranks as a list of buttons beside it, and the cell under the cursor in words. Colour says
// it, and the words do; arrow keys move the cursor.

import { $, attribute, keyed, put, text } from "./nodes.js";
import { localSpan, plural, times } from "./numbers.js";

const LISTED = 8;
const SLOW = 1.02; // As the account has it: a rank is slow from here on.
const LABEL = 58;
const ROW_MAX = 22;
const ROW_MIN = 9;
const HIGH = 420;
const STEPS = [0.9, 1.02, 1.05, 1.1, 1.25, 1.5]; // Below the first: faster than the median. Colours --heat-0 to -6.
const view = { heat: null, run: null, row: 0, column: 0, name: null, key: "" };
const told = { rank: () => {} };

export function drawHeat(heat, run, why) {
  if (run && view.name !== run.run) Object.assign(view, { name: run.run, row: 0, column: 0, key: "" });
  $("heat").hidden = heat === null && !why;
  $("heat-body").hidden = heat === null;
  text($("heat-wait"), heat === null && why ? `${why}; it is asked again by itself.` : "");
  if (heat === null) return;
  const fresh = view.heat === null || view.key === "";
  Object.assign(view, { heat, run, rows: rowsOf(heat) });
  view.row = Math.min(view.row, view.rows.length - 1);
  if (fresh) view.column = heat.columns - 1;
  view.column = Math.min(view.column, heat.columns - 1);
  paint();
  drawWorst();
  drawWords();
}

// Ranks by themselves, the worst first; then the others as quantiles.
function rowsOf({ ranks, others, median }) {
  const excess = (own) => {
    let [sum, usual] = [0, 0];
    own.forEach((seconds, i) => {
      if (seconds !== null && median[i]) [sum, usual] = [sum + seconds, usual + median[i]];
    });
    return usual > 0 ? sum / usual : null;
  };
  const rows = ranks.map(({ rank, host, own_seconds: own }) => ({ label: String(rank), name: `rank ${rank}`, rank, host, own,
    excess: excess(own) }));
  rows.sort((a, b) => (b.excess ?? 0) - (a.excess ?? 0) || a.rank - b.rank);
  if (others) {
    const names = { p100: ["slowest", "slowest"], p90: ["p90", "90th percentile"], p50: ["median", "median"],
      p10: ["p10", "10th percentile"] };
    for (const [key, [label, name]] of Object.entries(names)) {
      rows.push({ label, name: `${name} of ${plural(others.ranks, "other rank")}`, own: others[key], excess: excess(others[key]) });
    }
  }
  return rows;
}

const ratio = (row, i) => (row.own[i] === null || !view.heat.median[i] ? null : row.own[i] / view.heat.median[i]);
const colour = (value) => STEPS.findIndex((step) => value < step);

function paint() {
  const canvas = $("heat-canvas");
  const wide = Math.max(Math.floor($("heat-picture").clientWidth), 200);
  if ($("heat-picture").clientWidth === 0) return;
  const rowHigh = Math.min(Math.max(Math.floor(HIGH / view.rows.length), ROW_MIN), ROW_MAX);
  const high = rowHigh * view.rows.length;
  const dense = Math.min(globalThis.devicePixelRatio || 1, 2);
  Object.assign(view, { wide, rowHigh });
  const theme = getComputedStyle(document.documentElement);
  const ink = theme.getPropertyValue("--ink").trim();
  const scale = [...STEPS.keys(), STEPS.length].map((i) => theme.getPropertyValue(`--heat-${i}`).trim());
  const key = JSON.stringify([wide, dense, scale, ink, view.row, view.column, view.rows.map((row) => row.own)]);
  if (key === view.key) return;
  view.key = key;
  Object.assign(canvas, { width: wide * dense, height: high * dense });
  canvas.style.setProperty("width", `${wide}px`);
  canvas.style.setProperty("height", `${high}px`);
  const pen = canvas.getContext("2d");
  pen.scale(dense, dense);
  const cell = (wide - LABEL) / view.heat.columns;
  pen.font = `${Math.min(rowHigh, 12)}px system-ui, sans-serif`;
  pen.textBaseline = "middle";
  pen.textAlign = "right";
  view.rows.forEach((row, r) => {
    pen.fillStyle = ink;
    pen.fillText(row.label, LABEL - 6, (r + 0.5) * rowHigh, LABEL - 8);
    for (let i = 0; i < view.heat.columns; i++) {
      const value = ratio(row, i);
      if (value === null) continue;
      const found = colour(value);
      pen.fillStyle = scale[found < 0 ? STEPS.length : found];
      pen.fillRect(LABEL + i * cell, r * rowHigh, cell + 0.5, rowHigh - 1);
    }
  });
  pen.strokeStyle = ink;
  pen.lineWidth = 2;
  pen.strokeRect(LABEL + view.column * cell, view.row * rowHigh, cell, rowHigh - 1);
}

function drawWorst() {
  const worst = view.rows.filter((row) => row.rank !== undefined && row.excess >= SLOW).slice(0, LISTED);
  $("heat-even").hidden = worst.length > 0;
  keyed($("heat-worst"), "t-worst", worst, (row) => row.rank, (node, row) => {
    put(node, { rank: row.name, host: row.host ? `on ${row.host}` : "", excess: `${times(row.excess)} the median` });
    node.querySelector("button").dataset.rank = row.rank;
    attribute(node.querySelector("button"), "title", "Show this rank in the table of ranks");
  });
  const others = view.heat.others ? `, and ${plural(view.heat.others.ranks, "other")} as quantiles` : "";
  attribute($("heat-canvas"), "aria-label", `Own time per step of ${plural(view.heat.ranks.length, "rank")}${others}, over time; ` +
    (worst.length ? `the slowest is ${worst[0].name}` : "none stands out"));
}

function drawWords() {
  const row = view.rows[view.row];
  const { start, end, columns } = view.heat;
  const at = (i) => start + ((end - start) * i) / columns;
  const value = ratio(row, view.column);
  const own = row.own[view.column];
  const said = value === null ? "no step" : `${(1000 * own).toPrecision(4)} ms of its own per step, ${value.toFixed(2)}× the median`;
  text($("heat-words"), `${row.name}${row.host ? ` on ${row.host}` : ""} · ${localSpan(at(view.column), at(view.column + 1))} · ${said}`);
}

function moveTo(row, column) {
  view.row = Math.min(Math.max(row, 0), view.rows.length - 1);
  view.column = Math.min(Math.max(column, 0), view.heat.columns - 1);
  paint();
  drawWords();
}

export function redrawHeat() {
  view.key = "redraw";
  if (view.heat && !$("heat-body").hidden) paint();
}

export function listenToHeat(rank) {
  told.rank = rank;
  const picture = $("heat-picture");
  picture.addEventListener("keydown", (event) => {
    if (!view.heat || event.ctrlKey || event.metaKey || event.altKey) return;
    const { row, column } = view;
    const to = { ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column],
      ArrowDown: [row + 1, column], Home: [row, 0], End: [row, view.heat.columns - 1], PageUp: [0, column],
      PageDown: [view.rows.length - 1, column] }[event.key];
    if (to) moveTo(...to);
    else if (event.key === "Enter" && view.rows[row].rank !== undefined) told.rank(view.rows[row].rank);
    else return;
    event.preventDefault();
  });
  picture.addEventListener("pointerdown", (event) => {
    if (!view.heat) return;
    const box = $("heat-canvas").getBoundingClientRect();
    const cell = (view.wide - LABEL) / view.heat.columns;
    moveTo(Math.floor((event.clientY - box.top) / view.rowHigh), Math.floor((event.clientX - box.left - LABEL) / cell));
  });
  $("heat-worst").addEventListener("click", (event) => {
    const found = event.target.closest("button")?.dataset.rank;
    if (found !== undefined) told.rank(Number(found));
  });
  new ResizeObserver(redrawHeat).observe(picture);
}
