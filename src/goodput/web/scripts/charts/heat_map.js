// The heat map of ranks over time: rows are ranks, columns are time, and a cell is a rank's own time per step (without
// waiting for other ranks) against the median of all ranks in that column.
//
// One canvas for any number of ranks, from `heat` of the timeline: the ranks that deviate, and the others as quantiles.
// The slowest ranks are also a list of buttons, and the cell under the cursor is described in text.

import { $, attribute, field, keyed, put, text } from "../dom/nodes.js";
import { linkedText } from "../dom/rank_links.js";
import { followPointer } from "./tip.js";
import { rankRows, waiting } from "../run/ranks.js";
import { percent, plural, stepTime, times } from "../text/numbers.js";
import { localSpan } from "../text/time.js";

const LISTED = 8;
const SLOW = 1.02; // As in account/straggler.py: a rank is slow from here on.
const LABEL_PIXELS = 58;
const ROW_PIXELS_MAX = 22;
const ROW_PIXELS_MIN = 9;
const HEIGHT = 420;
const STEPS = [0.9, 1.02, 1.05, 1.1, 1.25, 1.5]; // Upper bounds of the colours in the legend but the last two: over all of them, and no step.
const QUANTILES = { p100: ["slowest", "slowest"], p90: ["p90", "90th percentile"], p50: ["median", "median"],
  p10: ["p10", "10th percentile"] };
const view = { heat: null, run: null, row: 0, column: 0, name: null, key: "" };
let onRank = () => {};

// `heat` is undefined while it is loading; `error` says why there is none, without it the section is then hidden.
export function drawHeatMap(heat, run, error) {
  if (run && view.name !== run.run) Object.assign(view, { name: run.run, row: 0, column: 0, key: "" });
  const loading = heat === undefined && run.world_size > 1;
  $("heat").hidden = !heat && !error && !loading;
  $("heat-body").hidden = !heat;
  text($("heat-wait"), heat ? "" : error ? `${error}; retrying.` : "Loading …");
  if (!heat) return;
  const first = view.heat === null || view.key === "";
  Object.assign(view, { heat, run, rows: rowsOf(heat) });
  view.row = Math.min(view.row, view.rows.length - 1);
  if (first) view.column = heat.columns - 1;
  view.column = Math.min(view.column, heat.columns - 1);
  paint();
  drawSlowest();
  describeCell();
}

// The single ranks, the slowest first; then the others as quantiles.
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
  if (others === null) return rows;
  return [...rows, ...Object.entries(QUANTILES).map(([key, [label, name]]) => ({ label, own: others[key],
    name: `${name} of ${plural(others.ranks, "other rank")}`, excess: excess(others[key]) }))];
}

const ratio = (row, i) => (row.own[i] === null || !view.heat.median[i] ? null : row.own[i] / view.heat.median[i]);

function colour(scale, value) {
  const step = STEPS.findIndex((bound) => value < bound);
  return scale[step < 0 ? STEPS.length : step];
}

function paint() {
  const canvas = $("heat-canvas");
  if ($("heat-picture").clientWidth === 0) return;
  const wide = Math.max(Math.floor($("heat-picture").clientWidth), 200);
  const rowPixels = Math.min(Math.max(Math.floor(HEIGHT / view.rows.length), ROW_PIXELS_MIN), ROW_PIXELS_MAX);
  const high = rowPixels * view.rows.length;
  const density = Math.min(globalThis.devicePixelRatio || 1, 2);
  Object.assign(view, { wide, rowPixels });
  const ink = getComputedStyle(canvas).color;
  const scale = [...document.querySelectorAll("#heat-legend .swatch")].map((node) => getComputedStyle(node).backgroundColor);
  const key = JSON.stringify([wide, density, scale, ink, view.row, view.column, view.rows.map((row) => row.own)]);
  if (key === view.key) return;
  view.key = key;
  Object.assign(canvas, { width: wide * density, height: high * density });
  canvas.style.setProperty("width", `${wide}px`);
  canvas.style.setProperty("height", `${high}px`);
  const pen = canvas.getContext("2d");
  pen.scale(density, density);
  paintRows(pen, ink, scale, (wide - LABEL_PIXELS) / view.heat.columns, rowPixels);
}

function paintRows(pen, ink, scale, cell, rowPixels) {
  Object.assign(pen, { font: `${Math.min(rowPixels, 12)}px system-ui, sans-serif`, textBaseline: "middle", textAlign: "right" });
  view.rows.forEach((row, r) => {
    pen.fillStyle = ink;
    pen.fillText(row.label, LABEL_PIXELS - 6, (r + 0.5) * rowPixels, LABEL_PIXELS - 8);
    for (let i = 0; i < view.heat.columns; i++) {
      const value = ratio(row, i);
      pen.fillStyle = value === null ? scale.at(-1) : colour(scale, value);
      pen.fillRect(LABEL_PIXELS + i * cell, r * rowPixels, cell + 0.5, rowPixels - 1);
    }
  });
  Object.assign(pen, { strokeStyle: ink, lineWidth: 2 });
  pen.strokeRect(LABEL_PIXELS + view.column * cell, view.row * rowPixels, cell, rowPixels - 1);
}

// Those that others waited for most first.
function slowestRanks() {
  const ranks = rankRows(view.run);
  const slow = view.rows.filter((row) => row.rank !== undefined && row.excess >= SLOW).map((row) => {
    const { stage = null, slow: culprit = "", tag = "", urgency = 0, caused = null, stageCaused = 0 } = ranks.get(row.rank) ?? {};
    return { ...row, caused: waiting({ caused, stageCaused }), stage: stage === null ? "" : `stage ${stage}`,
      tag: culprit || (urgency > 0 ? tag : "") };
  });
  return slow.sort((a, b) => b.caused - a.caused || b.excess - a.excess).slice(0, LISTED);
}

function drawSlowest() {
  const slowest = slowestRanks();
  $("heat-even").hidden = slowest.length > 0;
  keyed($("heat-worst"), "t-worst", slowest, (row) => row.rank, (node, row) => {
    const caused = row.caused > 0 ? `, ${percent(row.caused)} of the waiting` : "";
    put(node, { rank: row.name, host: row.host ? `on ${row.host}` : "", tag: row.tag, excess: `${times(row.excess)} the median${caused}` });
    linkedText(field(node, "stage"), row.stage, view.name);
    attribute(field(node, "tag"), "class", `tag ${row.tag.replace(" ", "-")}`);
    node.querySelector("button").dataset.rank = row.rank;
    attribute(node.querySelector("button"), "title", "Show the page of this rank");
  });
  const others = view.heat.others ? `, and ${plural(view.heat.others.ranks, "other")} as quantiles` : "";
  attribute($("heat-canvas"), "aria-label", `Own time per step of ${plural(view.heat.ranks.length, "rank")}${others}, over time; ` +
    (slowest.length ? `the slowest is ${slowest[0].name}` : "none stands out"));
}

// [rank, time, own time] of a cell as text.
function cellText(row, column) {
  const { start, end, columns } = view.heat;
  const at = (i) => start + ((end - start) * i) / columns;
  const value = ratio(row, column);
  const cell = value === null ? "no step" : `${stepTime(row.own[column], 4)} of its own per step, ${value.toFixed(2)}× the median`;
  return [`${row.name}${row.host ? ` on ${row.host}` : ""}`, localSpan(at(column), at(column + 1)), cell];
}

function describeCell() {
  linkedText($("heat-words"), cellText(view.rows[view.row], view.column).join(" · "), view.name);
}

// [row, column] at a position of the pointer.
function cellAt(event) {
  const box = $("heat-canvas").getBoundingClientRect();
  const cell = (view.wide - LABEL_PIXELS) / view.heat.columns;
  return [Math.floor((event.clientY - box.top) / view.rowPixels), Math.floor((event.clientX - box.left - LABEL_PIXELS) / cell)];
}

function linesAt(event) {
  if (!view.heat) return null;
  const [row, column] = cellAt(event);
  return view.rows[row] && column >= 0 && column < view.heat.columns ? cellText(view.rows[row], column) : null;
}

function moveTo(row, column) {
  view.row = Math.min(Math.max(row, 0), view.rows.length - 1);
  view.column = Math.min(Math.max(column, 0), view.heat.columns - 1);
  paint();
  describeCell();
}

// Call when the theme or the width has changed.
export function repaintHeatMap() {
  view.key = "repaint";
  if (view.heat && !$("heat-body").hidden) paint();
}

// `showRank` is called with the rank that the user chose.
export function listenToHeatMap(showRank) {
  onRank = showRank;
  const picture = $("heat-picture");
  picture.addEventListener("keydown", onKey);
  picture.addEventListener("pointerdown", (event) => {
    if (view.heat) moveTo(...cellAt(event));
  });
  followPointer(picture, linesAt);
  $("heat-worst").addEventListener("click", (event) => {
    const rank = event.target.closest("button")?.dataset.rank;
    if (rank !== undefined) onRank(Number(rank));
  });
  new ResizeObserver(repaintHeatMap).observe(picture);
}

function onKey(event) {
  if (!view.heat || event.ctrlKey || event.metaKey || event.altKey) return;
  const { row, column } = view;
  const to = { ArrowLeft: [row, column - 1], ArrowRight: [row, column + 1], ArrowUp: [row - 1, column],
    ArrowDown: [row + 1, column], Home: [row, 0], End: [row, view.heat.columns - 1], PageUp: [0, column],
    PageDown: [view.rows.length - 1, column] }[event.key];
  if (to) moveTo(...to);
  else if (event.key === "Enter" && view.rows[row].rank !== undefined) onRank(view.rows[row].rank);
  else return;
  event.preventDefault();
}
