// The restarts, newest first, with what each cost, and a sentence that sums them up.

import { $, paged, showTime, text } from "../dom/nodes.js";
import { Table, timeCell } from "../dom/table.js";
import { count, dollars, duration, plural, unitOf } from "../text/numbers.js";

let run = null;
let unit = null;

const COLUMNS = [
  { name: "attempt", head: "Attempt", label: "Attempt", value: (row) => row.attempt },
  { name: "time", head: "Time", build: timeCell, draw: drawTime },
  { name: "resume", head: "Resumed after step", class: "n", value: (row) => resumed(row.resume_step) },
  { name: "down", head: "Down", class: "n", value: (row) => duration(row.down_seconds) },
  { name: "steps", head: "Lost rank-steps", class: "n", value: (row) => count(row.lost_steps) },
  { name: "lost", head: "Lost", class: "n", title: "Time of steps that were done again, or never finished",
    value: (row) => unit.text(row.lost_gpu_seconds) },
  { name: "startup", head: "Startup", class: "n", title: "Time until the first step was done",
    value: (row) => unit.text(row.startup_gpu_seconds) },
  { name: "total", head: "In all", class: "n", title: "Down, lost and startup", value: (row) => unit.text(row.gpu_seconds) },
  { name: "cost", head: "Cost", class: "n costs", value: (row) => dollars(row.cost, run.cost?.total) },
];
const table = new Table($("restarts"), "restart-rows", COLUMNS);

export function drawRestarts(shownRun, view) {
  [run, unit] = [shownRun, unitOf(shownRun)];
  const rows = [...run.restarts].reverse();
  $("all-restarts").hidden = rows.length === 0;
  text($("restarts-sum"), rows.length === 0 ? "None." : sums(rows));
  table.setHead("down", `Down, per ${unit.worker}`);
  table.setHead("total", `In all, ${unit.name}`);
  table.draw(paged(rows, view, $("restarts-more"), "restarts"), (row) => row.attempt);
}

function drawTime(cell, row) {
  showTime(cell.firstElementChild, row.time);
  cell.title = `${duration(row.time - run.start)} after the start`;
}

function resumed(step) {
  if (step === null) return "unknown";
  return step < 0 ? "none: from the beginning" : step;
}

function sums(rows) {
  const sum = (name) => rows.reduce((total, row) => total + row[name], 0);
  const cost = rows.some((row) => row.cost === null) ? "" : ` and ${dollars(sum("cost"), run.cost?.total)}`;
  const left = run.left_out?.restarts ?? 0;
  const which = left ? `The ${count(rows.length)} costliest of ${count(rows.length + left)} restarts`
    : plural(rows.length, "restart");
  return `${which} took ${unit.text(sum("gpu_seconds"))} ${unit.name}${cost}: ` +
    "being down, steps that were lost, and coming back to the first step.";
}
