// The columns of the list of runs, and how it can be ordered by them.

import { attribute, bar, field, make, put, showTime, text, width } from "../dom/nodes.js";
import { drawStateName, stateBar, stateName, timeCell } from "../dom/table.js";
import { rankAddress, runAddress, stageAddress } from "../text/addresses.js";
import { count, duration, grouped, percent, plural } from "../text/numbers.js";
import { STATUSES, nameText, statusOf } from "../text/states.js";
import { drawTrend, trendCell } from "./trend.js";

const TROUBLE = ["hangs", "failed", "unobserved", "running"];
// A run that failed longer ago is history: nobody is about to start it again.
const FAILED_SECONDS_MAX = 86_400;

// Beside what dom/table.js describes: `orders` are the names of the ascending and the descending order in the menu, and
// with `descending` the first press of the head sorts descending.
export const COLUMNS = [
  { name: "run", head: "Run", sort: (run) => run.run.toLowerCase(), orders: ["by name", "by name, backwards"], draw: drawName,
    build: () => [make("a", { "data-f": "name" }), make("small", { class: "muted", "data-f": "restarts" })] },
  { name: "status", head: "Status", sort: troubleOf,
    orders: ["in trouble first", "in trouble last"], build: () => [make("span")], draw: drawStatus },
  { name: "states", head: "Time by state", class: "wide", build: stateBar,
    draw: (cell, run) => bar(cell.firstElementChild, run.states, run.run, run) },
  { name: "goodput", head: "Goodput", class: "n", sort: (run) => run.goodput,
    orders: ["least goodput first", "most goodput first"], draw: drawGoodput,
    build: () => [make("span", { class: "meter" }, make("i", { "data-f": "meter" })), make("span", { "data-f": "goodput" })] },
  { name: "trend", head: "Trend", label: "Trend", title: "Goodput over the life of the run, from 0 % to 100 %", build: trendCell, draw: drawTrend },
  { name: "mfu", head: "MFU", class: "n", sort: (run) => run.mfu, orders: ["least MFU first", "most MFU first"],
    value: (run) => percent(run.mfu) },
  { name: "time", head: "Hours", class: "n", sort: (run) => run.gpu_seconds, descending: true, title: "GPU-hours; of a run without GPUs process-hours",
    orders: ["least time first", "most time first"], value: (run) => hours(run.gpu_seconds) },
  { name: "waste", head: "Lost, h", class: "n", sort: (run) => run.waste_gpu_seconds, descending: true,
    title: "GPU-hours that were not productive; of a run without GPUs process-hours", orders: ["least lost first", "most lost first"], value: (run) => hours(run.waste_gpu_seconds) },
  { name: "cost", head: "Lost, $", class: "n", sort: (run) => run.waste_cost, descending: true,
    title: "What the lost time cost; needs gpu_hour_cost", orders: ["least money lost first", "most money lost first"],
    value: (run) => (run.waste_cost === null ? "" : grouped(run.waste_cost, 2)) },
  { name: "cause", head: "Leading cause", sort: (run) => run.leading_cause ?? "",
    orders: ["by leading cause", "by leading cause, backwards"], build: stateName,
    draw: (cell, run) => drawStateName(cell, run.leading_cause) },
  { name: "culprit", head: "Culprit", title: "The rank, or the stage of the pipeline, that the others wait for",
    build: () => [make("a", { class: "rank" }), make("small", { class: "muted" })], draw: drawCulprit },
  { name: "ranks", head: "Ranks", class: "n", sort: (run) => run.world_size, descending: true,
    orders: ["fewest ranks first", "most ranks first"], value: (run) => count(run.world_size) },
  { name: "start", head: "Start", sort: (run) => run.start, descending: true, orders: ["oldest first", "newest first"],
    draw: drawStart, build: () => [...timeCell(), " ", make("small", { class: "muted" })] },
];

function troubleOf(run) {
  const isPast = run.status === "failed" && Date.now() / 1000 - run.end > FAILED_SECONDS_MAX;
  return isPast ? 9 : TROUBLE.indexOf(statusOf(run)) + 1 || 9;
}

function drawName(cell, run) {
  put(cell, { name: nameText(run.run), restarts: run.restarts ? plural(run.restarts, "restart") : "" });
  attribute(field(cell, "name"), "href", runAddress(run.run));
}

function drawStatus(cell, run) {
  const badge = cell.firstElementChild;
  const status = statusOf(run);
  badge.textContent = status;
  attribute(badge, "class", `status ${status in STATUSES ? status : ""}`);
}

function drawGoodput(cell, run) {
  put(cell, { goodput: percent(run.goodput) });
  width(field(cell, "meter"), run.goodput ?? 0);
}

// One unit in the whole column, with more decimals where all is small.
const hours = (seconds) => grouped(seconds / 3600, seconds < 36_000 ? 2 : 0);

function drawCulprit(cell, { run, culprit = null }) {
  const [link, host] = cell.children;
  const rank = culprit?.rank ?? null;
  text(link, culprit === null ? "" : rank === null ? `stage ${culprit.stage}` : `rank ${rank}`);
  if (culprit !== null) attribute(link, "href", rank === null ? stageAddress(run, culprit.stage) : rankAddress(run, rank));
  text(host, rank === null ? "" : culprit.host || "unnamed host");
}

function drawStart(cell, run) {
  const [time, length] = cell.children;
  showTime(time, run.start, true);
  length.textContent = duration(run.end - run.start);
}
