// The list of runs: sorted, filtered, each with its states as a bar. Filter and order are in the address.
//
// In: rows of api/v1/runs. Out: at most so many rows as were asked for; of a thousand runs the rest is a count and a
// button. What a run wasted is its GPU time that was not productive.

import { $, ROWS, attribute, bar, field, keyed, paged, put, showTime, swatch, text, width } from "./nodes.js";
import { count, dollars, duration, gpuTime, percent, plural } from "./numbers.js";
import { STATUSES, statusOf } from "./words.js";

export const list = { runs: [], total: 0, filter: "", sort: "-start", shown: ROWS, wanted: 1 };

// By name: what it sorts by, and whether most comes first at the first press.
const ORDERS = {
  run: [(run) => run.run.toLowerCase(), false],
  status: [(run) => ["hangs", "down", "unobserved", "running"].indexOf(statusOf(run)) + 1 || 9, false],
  goodput: [(run) => run.goodput, false],
  mfu: [(run) => run.mfu, false],
  time: [(run) => run.gpu_seconds, true],
  waste: [(run) => run.waste_gpu_seconds, true],
  cause: [(run) => run.leading_cause ?? "", false],
  ranks: [(run) => run.world_size, true],
  start: [(run) => run.start, true],
};

export function drawRuns() {
  const rows = sorted(list.runs.filter(matches));
  const all = list.total > list.runs.length ? ` of the newest ${count(list.runs.length)}` : "";
  text($("runs-count"), rows.length < list.runs.length ? `${count(rows.length)} of ${plural(list.runs.length, "run")}`
    : plural(rows.length, "run") + (all && ` listed of ${count(list.total)}`));
  $("runs-cut").hidden = list.total <= list.runs.length;
  text($("runs-cut-text"), `The filter looks at the newest ${count(list.runs.length)} of ${count(list.total)} runs.`);
  $("runs-none").hidden = rows.length > 0;
  text($("runs-none-text"), `No run has “${list.filter}” in its name, status or cause.`);
  drawSums(rows);
  drawOrder();
  keyed($("runs-rows"), "t-run", paged(rows, list, $("runs-more"), "runs"), (run) => run.run, drawRow);
}

function matches(run) {
  const words = list.filter.trim().toLowerCase();
  return [run.run, statusOf(run), run.leading_cause ?? ""].some((value) => value.toLowerCase().includes(words));
}

function sorted(rows) {
  const [by] = ORDERS[list.sort.replace("-", "")] ?? ORDERS.start;
  const sign = list.sort.startsWith("-") ? -1 : 1;
  const order = (a, b) => (a < b ? -1 : a > b ? 1 : 0);
  // What is unknown comes last, whichever way.
  return rows.sort((a, b) => (by(a) == null) - (by(b) == null) || sign * order(by(a), by(b)) || order(b.start, a.start));
}

// All runs that are listed, together: what they took and what of it was wasted.
function drawSums(rows) {
  const sum = (of) => rows.reduce((total, run) => total + of(run), 0);
  const time = sum((run) => run.gpu_seconds);
  const waste = sum((run) => run.waste_gpu_seconds);
  const priced = rows.filter((run) => run.waste_cost !== null);
  const cost = priced.length === 0 ? "" :
    `, ${dollars(priced.reduce((total, run) => total + run.waste_cost, 0), 100)}${priced.length < rows.length ? " where a price is known" : ""}`;
  text($("runs-sum"), time > 0 ? `Together ${gpuTime(time)}; ${gpuTime(waste)} of it wasted${cost}.` : "");
}

function drawOrder() {
  for (const button of document.querySelectorAll("#runs thead button")) {
    const mine = button.dataset.sort === list.sort.replace("-", "");
    const down = list.sort.startsWith("-");
    attribute(button.closest("th"), "aria-sort", mine ? (down ? "descending" : "ascending") : "none");
    text(button.querySelector("i"), mine ? (down ? "▼" : "▲") : "");
  }
  if ($("runs-sort").value !== list.sort) $("runs-sort").value = list.sort;
}

// At a press the order turns round.
export function sortBy(name) {
  const [, most] = ORDERS[name] ?? ORDERS.start;
  const first = (most ? "-" : "") + name;
  list.sort = list.sort === first ? (most ? name : `-${name}`) : first;
}

export const isOrder = (sort) => sort.replace("-", "") in ORDERS;

function drawRow(row, run) {
  put(row, {
    name: run.run, status: statusOf(run), goodput: percent(run.goodput), mfu: percent(run.mfu),
    time: gpuTime(run.gpu_seconds), waste: gpuTime(run.waste_gpu_seconds),
    cost: run.waste_cost === null ? "" : dollars(run.waste_cost, 100),
    cause: run.leading_cause ?? "none", ranks: count(run.world_size),
    restarts: run.restarts ? plural(run.restarts, "restart") : "", duration: duration(run.end - run.start),
  });
  attribute(field(row, "name"), "href", `#run=${encodeURIComponent(run.run)}`);
  attribute(field(row, "status"), "class", `status ${statusOf(run) in STATUSES ? statusOf(run) : ""}`);
  swatch(field(row, "swatch"), run.leading_cause ?? "none");
  field(row, "swatch").hidden = run.leading_cause === null;
  width(field(row, "meter"), run.goodput ?? 0);
  bar(row.querySelector(".bar"), run.states, run.run);
  showTime(field(row, "start"), run.start);
}
