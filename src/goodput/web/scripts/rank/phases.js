// The phases of a rank's newest attempt beside the median of the ranks that it is compared with, from
// api/v1/runs/NAME/ranks/N/phases.

import { runPath } from "../data/api.js";
import { Poll } from "../data/poll.js";
import { isLive } from "../data/source.js";
import { $, swatch, text } from "../dom/nodes.js";
import { Table, stateName } from "../dom/table.js";
import { duration, percent, plural } from "../text/numbers.js";
import { MEANINGS } from "../text/states.js";
import { difference, STANDS_OUT } from "./states.js";

const EVERY_MS = 10_000;
const TIMEOUT_MS = 8000;
const fresh = (key) => ({ key, found: null, isMissing: false, poll: new Poll(EVERY_MS, TIMEOUT_MS) });
let state = fresh(null);

const table = new Table($("rank-phases-table"), "rank-phase-rows", [
  { name: "phase", head: "Phase", build: stateName, draw: (cell, row) => {
    const [square, label] = cell.children;
    swatch(square, row.state in MEANINGS ? row.state : "other");
    text(label, row.phase === "none" ? "in no phase" : row.phase);
  } },
  { name: "time", head: "Time", class: "n", value: (row) => duration(row.seconds) },
  { name: "share", head: "Share", class: "n", value: (row) => percent(row.share) },
  { name: "median", head: "Group's median", class: "n", value: (row) => percent(row.median_share) },
  { name: "difference", head: "Difference, points", class: "n", value: (row) => difference({ share: row.share, median: row.median_share }) },
  { name: "state", head: "Counts as", class: "meaning", value: (row) => row.state ?? "" },
]);

// Call at each refresh. `then` is called when an answer has come.
export function followPhases(run, number, then) {
  const key = `${run.run} ${number}`;
  if (state.key !== key) {
    closePhases();
    state = fresh(key);
  }
  if (isLive) state.poll.request(runPath(run.run, `ranks/${number}/phases`), (answer) => {
    Object.assign(state, { found: answer ?? state.found, isMissing: answer === null && !state.poll.error });
    draw();
    then();
  });
  draw();
}

export function closePhases() {
  state.poll.stop();
  state = fresh(null);
}

// What the rank declares: {device, device_uuid, stage}; null until it is known.
export const declaredOf = () => state.found;

function draw() {
  const { found, poll } = state;
  const rows = found?.phases ?? [];
  $("rank-phases-table").hidden = rows.length === 0;
  text($("rank-phases-note"), rows.length ? `Attempt ${found.attempt}, beside ${plural(found.compared, "rank")} of its stage and group, this one included.`
    : found || state.isMissing ? "No phase of it is known." : poll.error ? `${poll.error}; retrying.` : "Loading …");
  table.draw(rows, (row) => row.phase, (node, row) =>
    node.classList.toggle("level", Math.abs(row.share - row.median_share) >= STANDS_OUT));
}
