// The list of runs, sorted and filtered; filter and order are in the address.

import { file } from "../data/file.js";
import { $, ROWS, attribute, paged, text } from "../dom/nodes.js";
import { Table } from "../dom/table.js";
import { count, plural } from "../text/numbers.js";
import { statusOf } from "../text/states.js";
import { COLUMNS } from "./columns.js";
import { drawFleet } from "./fleet.js";
import { followTrends } from "./trend.js";

// runs: those loaded, `total` on the server; `target` is how many to load at least.
export const DEFAULT_ORDER = "status"; // what is broken first
export const list = { runs: [], total: 0, filter: "", sort: DEFAULT_ORDER, shown: ROWS, target: 1 };
const table = new Table($("runs-table"), "runs-rows", COLUMNS);
const SORTABLE = COLUMNS.filter((column) => column.sort);
const columnOf = (sort) => SORTABLE.find((column) => column.name === sort.replace("-", ""));

for (const { name, orders: [ascending, descending] } of [...SORTABLE].reverse()) {
  $("runs-sort").add(new Option(descending, `-${name}`));
  $("runs-sort").add(new Option(ascending, name));
}

export function drawRuns() {
  const rows = sorted(list.runs.filter(matches));
  text($("runs-count"), rows.length < list.runs.length ? `${count(rows.length)} of ${plural(list.runs.length, "run")}`
    : plural(rows.length, "run") + (list.total > list.runs.length ? ` listed of ${count(list.total)}` : ""));
  drawCut();
  $("runs-none").hidden = rows.length > 0;
  text($("runs-none-text"), `No run has “${list.filter}” in its name, status or cause.`);
  drawFleet(rows);
  drawOrder();
  table.draw(paged(rows, list, $("runs-more"), "runs"), (run) => run.run);
  followTrends();
}

// A note where not all runs are loaded, or where a file does not hold them.
function drawCut() {
  const left = file?.runs_left_out ?? 0;
  $("runs-cut").hidden = list.total <= list.runs.length && !left;
  $("runs-older").hidden = left > 0;
  text($("runs-cut-text"), left ? `The ${count(list.total)} runs with most GPU time of ${count(list.total + left)} are in this file.`
    : `The filter searches the newest ${count(list.runs.length)} of ${count(list.total)} runs, those that are not over before others.`);
}

function matches(run) {
  const words = list.filter.trim().toLowerCase();
  return [run.run, statusOf(run), run.leading_cause ?? "", run.culprit?.host ?? ""].some((value) => value.toLowerCase().includes(words));
}

function sorted(rows) {
  const by = columnOf(list.sort).sort;
  const sign = list.sort.startsWith("-") ? -1 : 1;
  const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  // Unknown values come last in both directions.
  return rows.sort((a, b) => (by(a) == null) - (by(b) == null) || sign * order(by(a), by(b)) || order(b.start, a.start));
}

function drawOrder() {
  for (const button of document.querySelectorAll("#runs thead button")) {
    const active = button.dataset.sort === list.sort.replace("-", "");
    const down = list.sort.startsWith("-");
    attribute(button.closest("th"), "aria-sort", active ? (down ? "descending" : "ascending") : "none");
    text(button.querySelector("i"), active ? (down ? "▼" : "▲") : "");
  }
  if ($("runs-sort").value !== list.sort) $("runs-sort").value = list.sort;
}

// A second press of the same head reverses the order.
export function sortBy(name) {
  const { descending } = columnOf(name);
  const first = (descending ? "-" : "") + name;
  list.sort = list.sort === first ? (descending ? name : `-${name}`) : first;
}

export const isOrder = (sort) => columnOf(sort) !== undefined;
