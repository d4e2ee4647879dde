// The last 5 minutes, hour and day of the open run beside its lifetime, from api/v1/runs/NAME/rolling.
//
// Windows that are no shorter than the run are left out: they would repeat the lifetime.

import { runPath } from "../data/api.js";
import { leadingCause } from "../data/causes.js";
import { Poll } from "../data/poll.js";
import { $, bar, text } from "../dom/nodes.js";
import { Table, drawStateName, stateBar, stateName } from "../dom/table.js";
import { percent, unitOf } from "../text/numbers.js";
import { localTime } from "../text/time.js";

const EVERY_MS = 15_000;
const TIMEOUT_MS = 130_000; // The aggregator gives up a little earlier.
const SHORTEST_SECONDS = 300;
const NAMES = { "5m": "last 5 min", "1h": "last hour", "1d": "last day" };
const nameOf = (row) => NAMES[row.name] ?? row.name;

const fresh = (name) => ({ name, run: null, windows: [], end: null, poll: new Poll(EVERY_MS, TIMEOUT_MS) });
let state = fresh(null);

const COLUMNS = [
  { name: "window", head: "Window", value: nameOf },
  { name: "states", head: "Time by state", class: "wide", build: stateBar,
    draw: (cell, row) => bar(cell.firstElementChild, row.states, nameOf(row), state.run, state.marked) },
  { name: "goodput", head: "Goodput", class: "n", value: (row) => percent(row.factors.goodput) },
  { name: "availability", head: "Availability", class: "n", value: (row) => percent(row.factors.availability) },
  { name: "efficiency", head: "Step efficiency", class: "n", value: (row) => percent(row.factors.step_efficiency) },
  { name: "mfu", head: "MFU", class: "n", value: (row) => percent(row.factors.mfu) },
  { name: "time", head: "Time", class: "n", value: (row) => unitOf(state.run).text(row.gpu_seconds) },
  { name: "cause", head: "Leading cause", build: stateName, draw: (cell, row) => drawStateName(cell, row.leading_cause) },
];
const table = new Table($("rolling-table"), "rolling-rows", COLUMNS);

// Call at each refresh of a run. `marked` is the state to mark in the bars.
export function followRecentWindows(run, marked) {
  if (state.name !== run.run) {
    closeRecentWindows();
    state = fresh(run.run);
  }
  Object.assign(state, { run, marked });
  draw();
  if (run.end - run.start <= SHORTEST_SECONDS || state.end === run.end) return;
  state.poll.request(runPath(run.run, "rolling"), (answer) => {
    if (answer) Object.assign(state, { windows: answer.windows, end: run.end });
    draw();
  });
}

export function closeRecentWindows() {
  state.poll.stop();
  state = fresh(null);
}

function draw() {
  const { run, windows, poll: { error } } = state;
  const life = run.end - run.start;
  $("rolling").hidden = life <= SHORTEST_SECONDS;
  if ($("rolling").hidden) return;
  const shorter = windows.filter((one) => one.name in NAMES && one.seconds < life);
  // The lifetime is the run's own document, so that it is never older than the figures above.
  const rows = [...shorter, { ...run, name: "lifetime", leading_cause: leadingCause(run) }];
  const until = shorter.length ? `Up to ${localTime(shorter[0].end)}.` : "";
  text($("rolling-note"), error ? `${error}; retrying. ${until}` : until || "Loading …");
  table.setHead("time", unitOf(run).head);
  table.draw(rows, (row) => row.name);
}
