// The account over time, from api/v1/runs/NAME/timeline: a chart, the bucket under the cursor in text, and the selection.
//
// Arrow keys move the cursor, with Shift they select, Enter shows the account of the selection, Escape the whole run.
// The pointer drags a selection. A page written to a file has no accounts of parts, so nothing can be selected there.

import { runPath } from "../data/api.js";
import { Poll } from "../data/poll.js";
import { isLive } from "../data/source.js";
import { $, attribute, keyed, put, showTime, text } from "../dom/nodes.js";
import { Table, drawStateName, stateName, timeCell } from "../dom/table.js";
import { count, duration, percent, plural, workerOf, workTime } from "../text/numbers.js";
import { MEANINGS } from "../text/states.js";
import { localSpan, localTime } from "../text/time.js";
import { Areas } from "./areas.js";
import { followPointer } from "./tip.js";

const EVERY_MS = 20_000;
const TIMEOUT_MS = 130_000; // The aggregator gives up a little earlier.
const STATES_NAMED = 4;
const PAGE_BUCKETS = 10;
const MARKS = {
  restart: (mark) => `▲ restart, attempt ${mark.attempt}${mark.step === null ? "" : `, goes on after step ${mark.step}`}`,
  checkpoint: (mark) => `◆ checkpoint of step ${mark.step}`,
  stall: (mark) => `▬ stall of ${duration(mark.end - mark.time)}`,
};
const markText = (mark) => MARKS[mark.kind]?.(mark) ?? mark.kind;
const productive = (bucket) => percent((bucket.states.productive ?? 0) / bucket.gpu_seconds);

const areas = new Areas($("timeline-picture"));
const table = new Table($("timeline-table"), "timeline-rows", [
  { name: "from", head: "From", label: "From", build: timeCell, draw: (cell, bucket) => showTime(cell.firstElementChild, bucket.start) },
  { name: "time", head: "Time", class: "n", value: (bucket) => workTime(bucket.gpu_seconds, workerOf(state.run)) },
  { name: "productive", head: "Productive", class: "n", value: productive },
  { name: "cause", head: "Most of the rest", build: stateName, draw: drawLargest },
]);
// cursor: index of a bucket; selected: [first, last] bucket being selected, from `anchor`; window: the part that is shown.
const fresh = (name) => ({ name, run: null, data: null, end: null, poll: new Poll(EVERY_MS, TIMEOUT_MS),
  cursor: null, anchor: null, selected: null, window: null });
let state = fresh(null);
const listeners = { showWindow: () => {}, drawHeatMap: () => {} };

// Call at each refresh of a run. `window` is the part [from, to] whose account is shown, null for the whole run.
export function followTimeline(run, window) {
  if (state.name !== run.run) {
    closeTimeline();
    state = fresh(run.run);
  }
  Object.assign(state, { run, window });
  if (state.end !== run.end || state.data === null) {
    state.poll.request(runPath(run.run, "timeline"), (data) => {
      if (data) Object.assign(state, { data, end: run.end });
      draw();
    });
  }
  draw();
}

export function closeTimeline() {
  state.poll.stop();
  state = fresh(null);
}

function draw() {
  const { data, poll, window } = state;
  const ready = data !== null && data.buckets.length > 0;
  $("timeline").hidden = !isLive && !ready;
  $("timeline-body").hidden = !ready;
  $("timeline-wait").hidden = ready;
  text($("timeline-wait"), poll.error ? `${poll.error}; retrying.` : data ? "This run has no time yet." : "Loading …");
  text($("timeline-note"), ready ? notes(data, poll) : "");
  // In a file what is not there does not come.
  listeners.drawHeatMap(ready ? data.heat : data || !isLive ? null : undefined, state.run, poll.error);
  if (!ready) return;
  if (state.cursor === null || state.cursor >= data.buckets.length) state.cursor = data.buckets.length - 1;
  areas.draw(data, { worker: workerOf(state.run), cursor: state.cursor, selected: state.selected ?? bucketsOf(window) });
  drawWords();
  drawTable();
}

function notes({ sampled, end }, { error }) {
  const parts = [];
  if (sampled) parts.push(`Computed from ${count(sampled.ranks)} of ${plural(sampled.of, "rank")}: the ones that stand out, ` +
    `and others as a sample of the rest${sampled.all_steps ? "" : "; stalls inside a bucket are not seen"}.`);
  if (error) parts.push(`${error}; retrying. The chart ends at ${localTime(end)}.`);
  return parts.join(" ");
}

// The buckets that a part of the time touches, as [first, last].
function bucketsOf(window) {
  if (!window) return null;
  const { buckets } = state.data;
  const at = (seconds) => buckets.findIndex((one) => one.end > seconds);
  const first = at(window[0]);
  const last = at(window[1] - 1e-6);
  return first < 0 ? null : [first, last < 0 ? buckets.length - 1 : last];
}

const marksIn = ({ start, end }) =>
  state.data.marks.filter((mark) => mark.time < end && (mark.end ?? mark.time) >= start).slice(0, 3);

function describe(i) {
  const bucket = state.data.buckets[i];
  const shares = Object.entries(bucket.states).sort((a, b) => b[1] - a[1]);
  const named = shares.slice(0, STATES_NAMED).map(([name, seconds]) => `${name} ${percent(seconds / bucket.gpu_seconds)}`);
  const what = bucket.gpu_seconds > 0 ? named.join(", ") : `no ${state.run.is_on_cpu ? "processes" : "GPUs"} allocated`;
  return [localSpan(bucket.start, bucket.end), what, ...marksIn(bucket).map(markText)].join(" · ");
}

// The lines of text at a position of the pointer, which the crosshair follows.
function linesAt(event, box) {
  if (!state.data) return null;
  const at = { x: event.clientX - box.left, y: event.clientY - box.top };
  const found = areas.stateAt(at.x, at.y);
  areas.cross(found && at);
  if (found === null) return null;
  const bucket = state.data.buckets[areas.bucketAt(at.x)];
  const marks = marksIn(bucket).map(markText);
  return [localSpan(bucket.start, bucket.end), `${found.state} ${percent(found.share)}, ${workTime(bucket.states[found.state] ?? 0, workerOf(state.run))}`,
    MEANINGS[found.state] ?? "", ...marks];
}

function drawWords() {
  const { data, cursor, selected, window } = state;
  const words = describe(cursor);
  text($("timeline-words"), words);
  const slider = $("timeline-picture");
  attribute(slider, "aria-valuemax", String(data.buckets.length - 1));
  attribute(slider, "aria-valuenow", String(cursor));
  const chosen = selected ? `Selected ${span(selected).map(localTime).join(" to ")}. ` : "";
  attribute(slider, "aria-valuetext", chosen + words);
  $("timeline-show").hidden = selected === null;
  $("timeline-whole").hidden = selected === null && window === null;
  if (selected) text($("timeline-show"), `Show ${localSpan(...span(selected))} alone`);
}

function drawTable() {
  const { open } = $("timeline-details");
  $("timeline-table").hidden = $("timeline-marks").hidden = !open;
  if (!open) return;
  table.draw(state.data.buckets, (bucket) => bucket.start);
  keyed($("timeline-marks"), "t-mark", state.data.marks, (mark) => `${mark.kind} ${mark.time}`, (node, mark) => {
    put(node, { what: markText(mark) });
    showTime(node.querySelector("time"), mark.time);
  });
}

// The largest state besides the productive one.
function drawLargest(cell, bucket) {
  const [largest] = Object.entries(bucket.states).filter(([name]) => name !== "productive").sort((a, b) => b[1] - a[1]);
  if (largest) drawStateName(cell, largest[0], `${largest[0]} ${percent(largest[1] / bucket.gpu_seconds)}`);
  else drawStateName(cell, null);
}

// ---- Cursor and selection ------------------------------------------------------------------------------------

const span = ([first, last]) => [state.data.buckets[first].start, state.data.buckets[last].end];

function moveTo(i, selecting) {
  const at = Math.min(Math.max(i, 0), state.data.buckets.length - 1);
  if (selecting && isLive) {
    state.anchor ??= state.cursor;
    state.selected = [Math.min(state.anchor, at), Math.max(state.anchor, at)];
  } else Object.assign(state, { anchor: null, selected: null });
  state.cursor = at;
  draw();
}

function showSelection() {
  const selected = state.selected ?? [state.cursor, state.cursor];
  Object.assign(state, { selected: null, anchor: null });
  listeners.showWindow(span(selected));
}

// Clears the selection; false if there was none.
export function clearSelection() {
  const had = state.selected !== null;
  Object.assign(state, { selected: null, anchor: null });
  if (had && state.data) draw();
  return had;
}

function onKey(event) {
  if (!state.data || event.ctrlKey || event.metaKey || event.altKey) return;
  const { cursor, data } = state;
  const to = { ArrowLeft: cursor - 1, ArrowDown: cursor - 1, ArrowRight: cursor + 1, ArrowUp: cursor + 1,
    PageDown: cursor - PAGE_BUCKETS, PageUp: cursor + PAGE_BUCKETS, Home: 0, End: data.buckets.length - 1 }[event.key];
  if (to !== undefined) moveTo(to, event.shiftKey);
  else if (event.key === "Enter" && isLive) showSelection();
  else return;
  event.preventDefault();
}

// A press moves the cursor; a drag selects, and shows the selection when it ends.
function onPointer(event) {
  if (!state.data || event.button !== 0) return;
  const picture = $("timeline-picture");
  const place = (one) => areas.bucketAt(one.clientX - picture.getBoundingClientRect().left);
  moveTo(place(event), false);
  const from = state.cursor;
  const move = (one) => {
    if (state.anchor === null && place(one) === from) return;
    state.anchor = from;
    moveTo(place(one), true);
  };
  const end = (one) => {
    for (const [name, listener] of during) picture.removeEventListener(name, listener);
    if (one.type === "pointerup" && state.selected) showSelection();
    else clearSelection();
  };
  const during = [["pointermove", move], ["pointerup", end], ["pointercancel", end]];
  picture.setPointerCapture(event.pointerId);
  for (const [name, listener] of during) picture.addEventListener(name, listener);
}

// showWindow([from, to] or null) is called with the selection; drawHeatMap(heat, run, error) at each draw.
export function listenToTimeline(showWindow, drawHeatMap) {
  Object.assign(listeners, { showWindow, drawHeatMap });
  $("timeline-picture").addEventListener("keydown", onKey);
  $("timeline-picture").addEventListener("pointerdown", onPointer);
  $("timeline-picture").addEventListener("pointerleave", () => areas.cross(null));
  followPointer($("timeline-picture"), linesAt);
  $("timeline-show").addEventListener("click", showSelection);
  $("timeline-whole").addEventListener("click", () => { clearSelection(); showWindow(null); });
  $("timeline-details").addEventListener("toggle", () => state.data && drawTable());
  new ResizeObserver(() => state.data && draw()).observe($("timeline-picture"));
}
