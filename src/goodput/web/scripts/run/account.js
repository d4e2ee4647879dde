// Where the GPU time went: the bar and the table of states, whose percents sum to exactly 100.0. In the table the bar of
// each state begins where the one above it ends, so that they lead from productive to all allocated time.

import { $, attribute, bar, make, put, swatch, text, width } from "../dom/nodes.js";
import { Table } from "../dom/table.js";
import { dollars, percent, tenths, tenthsText, unitOf, workerOf, workTime } from "../text/numbers.js";
import { basis, gain, meaningOf } from "./cause.js";
import { stateCost, stateTitle } from "./figures.js";

let run = null;

const COLUMNS = [
  { name: "state", head: "State", build: stateButton, draw: drawState },
  { name: "bar", head: "Share of all", class: "wide", build: cascadeBar, draw: drawCascade },
  { name: "time", head: "Time", class: "n", build: () => [], draw: drawTime },
  { name: "percent", head: "Percent", class: "n", value: (row) => tenthsText(row.share) },
  { name: "cost", head: "Cost", class: "n costs", value: (row) => stateCost(run, row.state) },
  { name: "gain", head: "Without\u00a0it", class: "n", title: "How many times as fast the run would be without it: by replay of its steps where they are known, else by its share alone",
    build: () => [], draw: drawGain },
  { name: "meaning", head: "What it is", class: "meaning", value: (row) => meaningOf(run, row.state) },
];
const table = new Table($("account-table"), "account-rows", COLUMNS);

// `marked` is the state to mark in the bar, chosen with the buttons of the table.
export function drawAccount(shownRun, marked) {
  run = shownRun;
  const shares = tenths(Object.values(run.states));
  const rows = Object.entries(run.states).map(([state, seconds], i) => ({ state, seconds, share: shares[i],
    cause: run.causes.find((one) => one.state === state), marked: marked === state }));
  let from = 0;
  for (const row of rows) [row.from, from] = [from, from + row.share];
  bar($("account-bar"), run.states, "time account", run, marked);
  table.setHead("time", unitOf(run).head);
  table.draw(rows.filter((row) => row.seconds > 0), (row) => row.state);
  const sum = shares.reduce((total, share) => total + share, 0);
  put($("account-total"), { total: unitOf(run).text(run.gpu_seconds), percent: tenthsText(sum),
    cost: dollars(run.cost?.total, run.cost?.total) });
}

// Useful work is the part of the productive time that the hardware would have needed at its peak.
function cascadeBar() {
  return [make("div", { class: "cascade", "aria-hidden": "true" }, make("i", {}, make("b")))];
}

function drawCascade(cell, row) {
  const part = cell.firstElementChild.firstElementChild;
  attribute(part, "class", `s-${row.state}${row.marked ? " marked" : ""}`);
  attribute(cell.firstElementChild, "data-tip", `${row.state} ${tenthsText(row.share)} %, ${workTime(row.seconds, workerOf(run))}\n${meaningOf(run, row.state)}` +
    (row.state === "productive" && run.factors.mfu !== null ? `\n${percent(run.factors.mfu)} useful work (MFU), the rest slower than the peak` : ""));
  part.style.setProperty("margin-left", `${row.from / 10}%`);
  width(part, row.share / 1000);
  const compute = row.state === "productive" ? run.factors.compute_efficiency : null;
  part.firstElementChild.hidden = compute === null;
  if (compute !== null) width(part.firstElementChild, compute);
}

function stateButton() {
  return [make("button", { type: "button", class: "state", title: "Mark this state in all bars, and order the ranks by it" },
    make("i", { class: "swatch" }), make("span"))];
}

function drawState(cell, row) {
  const button = cell.firstElementChild;
  button.dataset.state = row.state;
  attribute(button, "aria-pressed", String(row.marked));
  swatch(button.children[0], row.state);
  text(button.children[1], row.state);
}

function drawGain(cell, { cause }) {
  text(cell, cause ? gain(cause) : "");
  if (cause) attribute(cell, "title", gain(cause) ? `${gain(cause)}${basis(cause)}` : "");
}

function drawTime(cell, row) {
  text(cell, unitOf(run).text(row.seconds));
  attribute(cell, "title", stateTitle(run, row.state, row.seconds));
}
