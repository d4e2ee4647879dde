// The last 5 minutes, hour and day of the run that is open, beside its lifetime.
//
// In: api/v1/runs/NAME/rolling, at most every quarter of a minute, for the aggregator reads its ledger for it: less
// often the longer that takes, and twice as long after each time that it was busy. Out: a row per window. A window
// that is no shorter than the run is left out, since it would say what the lifetime says.

import { $, bar, field, keyed, put, swatch, text } from "./nodes.js";
import { gpuUnit, localTime, percent } from "./numbers.js";

const EVERY_MS = 15_000;
const BUSY_MS = 30_000;
const BUSY_MS_MAX = 240_000;
const ANSWER_MS_MAX = 130_000; // The aggregator gives up a little before.
const SHORTEST_SECONDS = 300;
const NAMES = { "5m": "last 5 min", "1h": "last hour", "1d": "last day" };

const fresh = (name) => ({ name, run: null, windows: [], asking: null, next: 0, busy: 0, why: "", end: null });
let state = fresh(null);

// To be called at each refresh; a page that is not looked at refreshes nothing, and so asks nothing.
export function followRolling(run, marked) {
  if (state.name !== run.run) {
    closeRolling();
    state = fresh(run.run);
  }
  Object.assign(state, { run, marked });
  draw();
  const young = run.end - run.start <= SHORTEST_SECONDS;
  if (!young && !state.asking && state.end !== run.end && performance.now() >= state.next) ask(state);
}

export function closeRolling() {
  state.asking?.abort();
  state = fresh(null);
}

async function ask(mine) {
  const began = performance.now();
  mine.asking = new AbortController();
  const late = setTimeout(() => mine.asking.abort(), ANSWER_MS_MAX);
  const { end } = mine.run;
  try {
    const options = { signal: mine.asking.signal, cache: "no-store" };
    const answer = await fetch(`api/v1/runs/${encodeURIComponent(mine.name)}/rolling`, options);
    if (!answer.ok) throw new Error(answer.status === 503 ? "The aggregator is busy" : `HTTP ${answer.status}`);
    const { windows } = await answer.json();
    Object.assign(mine, { windows, end, busy: 0, why: "" });
    mine.next = performance.now() + Math.max(EVERY_MS, 4 * (performance.now() - began));
  } catch (error) {
    mine.busy = Math.min(Math.max(BUSY_MS, 2 * mine.busy), BUSY_MS_MAX);
    mine.next = performance.now() + mine.busy;
    mine.why = error instanceof TypeError || error.name === "AbortError" ? "No answer" : error.message;
  } finally {
    clearTimeout(late);
    mine.asking = null;
  }
  if (mine === state) draw();
}

function draw() {
  const { run, windows, why } = state;
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
