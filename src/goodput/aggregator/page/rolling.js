// The last 5 minutes, hour and day of the run that is open, beside its lifetime.
//
// In: api/v1/runs/NAME/rolling, at most every quarter of a minute, for the aggregator reads its ledger for it: less
// often the longer that takes, and twice as long after each time that it was busy. Out: a row per window. A window
// that is no shorter than the run is left out, since it would say what the lifetime says.

import { Poll } from "./ask.js";
import { $, bar, field, keyed, put, swatch, text } from "./nodes.js";
import { gpuUnit, localTime, percent } from "./numbers.js";

const EVERY_MS = 15_000;
const ANSWER_MS_MAX = 130_000; // The aggregator gives up a little before.
const SHORTEST_SECONDS = 300;
const NAMES = { "5m": "last 5 min", "1h": "last hour", "1d": "last day" };

const fresh = (name) => ({ name, run: null, windows: [], end: null, poll: new Poll(EVERY_MS, ANSWER_MS_MAX) });
let state = fresh(null);

// To be called at each refresh; a page that is not looked at refreshes nothing, and so asks nothing.
export function followRolling(run, marked) {
  if (state.name !== run.run) {
    closeRolling();
    state = fresh(run.run);
  }
  Object.assign(state, { run, marked });
  draw();
  if (run.end - run.start <= SHORTEST_SECONDS || state.end === run.end) return;
  const [mine, { end }] = [state, run];
  mine.poll.now(`runs/${encodeURIComponent(run.run)}/rolling`, (answer) => {
    if (answer) Object.assign(mine, { windows: answer.windows, end });
    if (mine === state) draw();
  });
}

export function closeRolling() {
  state.poll.stop();
  state = fresh(null);
}

function draw() {
  const { run, windows, poll: { why } } = state;
  const life = run.end - run.start;
  $("rolling").hidden = life <= SHORTEST_SECONDS;
  if ($("rolling").hidden) return;
  const shorter = windows.filter((one) => one.name in NAMES && one.seconds < life);
  // The lifetime as above on the page, and so never a refresh behind it.
  const rows = [...shorter, { ...run, name: "lifetime", leading_cause: run.causes[0]?.state ?? null }];
  const until = shorter.length ? `Up to ${localTime(shorter[0].end)}.` : "";
  text($("rolling-note"), why ? `${why}; it is asked again by itself. ${until}` : until || "Asking …");
  text($("rolling-unit"), gpuUnit(run.gpu_seconds).name);
  keyed($("rolling-rows"), "t-rolling", rows, (row) => row.name, drawRow);
}

function drawRow(node, row) {
  const { goodput, availability, step_efficiency: efficiency, mfu } = row.factors;
  put(node, {
    name: NAMES[row.name] ?? row.name, goodput: percent(goodput), availability: percent(availability),
    efficiency: percent(efficiency), mfu: percent(mfu), seconds: gpuUnit(state.run.gpu_seconds).text(row.gpu_seconds),
    cause: row.leading_cause ?? "none",
  });
  swatch(field(node, "swatch"), row.leading_cause ?? "none");
  field(node, "swatch").hidden = row.leading_cause === null;
  bar(node.querySelector(".bar"), row.states, NAMES[row.name] ?? row.name, state.marked);
}
