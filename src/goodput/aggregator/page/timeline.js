// The account over time: 100 % stacked areas, marks, a cursor, and the part of the time that a person selects.
//
// In: api/v1/runs/NAME/timeline, now and then, for the aggregator reads its ledger for it. Out: the picture of areas.js,
// what is under the cursor in words, and the part selected (page.js puts it into the address and shows its account).
// Keys: arrows move, with shift they select, Enter shows the part, Escape the whole run again. The pointer drags.

import { Areas } from "./areas.js";
import { Poll } from "./ask.js";
import { $, attribute, keyed, put, showTime, swatch, field, text } from "./nodes.js";
import { count, duration, gpuTime, localSpan, localTime, percent, plural } from "./numbers.js";

const EVERY_MS = 20_000;
const ANSWER_MS_MAX = 130_000; // The aggregator gives up a little before.
const NAMED_MAX = 4;
const PAGE_STEPS = 10;
const KINDS = {
  restart: (mark) => `▲ restart, attempt ${mark.attempt}${mark.step === null ? "" : `, goes on after step ${mark.step}`}`,
  checkpoint: (mark) => `◆ checkpoint of step ${mark.step}`,
  stall: (mark) => `▬ stall of ${duration(mark.end - mark.time)}`,
};

const areas = new Areas($("timeline-picture"));
const fresh = (name) => ({ name, run: null, data: null, end: null, poll: new Poll(EVERY_MS, ANSWER_MS_MAX),
  cursor: null, anchor: null, picked: null, window: null });
let state = fresh(null);
const told = { show: () => {}, heat: () => {} };

// To be called at each refresh of a run. `window` is the part [from, to] whose account is shown, null for all of it.
export function followTimeline(run, window) {
  if (state.name !== run.run) {
    closeTimeline();
    state = fresh(run.run);
  }
  Object.assign(state, { run, window });
  if (state.end !== run.end || state.data === null) {
    const [mine, end] = [state, run.end];
    mine.poll.now(`runs/${encodeURIComponent(run.run)}/timeline`, (data) => {
      if (data) Object.assign(mine, { data, end });
      if (mine === state) draw();
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
  const there = data !== null && data.buckets.length > 0;
  $("timeline-body").hidden = !there;
  $("timeline-wait").hidden = there;
  text($("timeline-wait"), poll.why ? `${poll.why}; it is asked again by itself.` : data ? "This run has no time yet." :
    "Asking the ledger …");
  text($("timeline-note"), there ? notes(data, poll) : "");
  told.heat(there ? data.heat : null, state.run, poll.why);
  if (!there) return;
  if (state.cursor === null || state.cursor >= data.buckets.length) state.cursor = data.buckets.length - 1;
  areas.draw(data, { cursor: state.cursor, picked: state.picked ?? buckets(window) });
  drawWords();
  drawTable();
}

function notes(data, poll) {
  const part = data.sampled;
  const said = [];
  if (part) said.push(`Of ${plural(part.of, "rank")} ${count(part.ranks)} were read: the ones that stand out, and others for the rest` +
    `${part.all_steps ? "" : "; stalls between two bars' borders are not seen"}.`);
  if (poll.why) said.push(`${poll.why}; it is asked again by itself. What you see goes up to ${localTime(data.end)}.`);
  return said.join(" ");
}

// The bars that a part of the time touches, as [first, last].
function buckets(window) {
  if (!window) return null;
  const { data } = state;
  const at = (seconds) => data.buckets.findIndex((one) => one.end > seconds);
  const first = at(window[0]);
  const last = at(window[1] - 1e-6);
  return first < 0 ? null : [first, last < 0 ? data.buckets.length - 1 : last];
}

function words(i) {
  const bucket = state.data.buckets[i];
  const shares = Object.entries(bucket.states).sort((a, b) => b[1] - a[1]);
  const named = shares.slice(0, NAMED_MAX).map(([name, seconds]) => `${name} ${percent(seconds / bucket.gpu_seconds)}`);
  const here = state.data.marks.filter((mark) => mark.time < bucket.end && (mark.end ?? mark.time) >= bucket.start);
  const marks = here.slice(0, 3).map((mark) => KINDS[mark.kind]?.(mark) ?? mark.kind);
  return [localSpan(bucket.start, bucket.end), named.join(", "), ...marks].join(" · ");
}

function drawWords() {
  const { data, cursor, picked, window } = state;
  const said = words(cursor);
  text($("timeline-words"), said);
  const slider = $("timeline-picture");
  attribute(slider, "aria-valuemax", String(data.buckets.length - 1));
  attribute(slider, "aria-valuenow", String(cursor));
  const chosen = picked ? `Selected ${span(picked).map(localTime).join(" to ")}. ` : "";
  attribute(slider, "aria-valuetext", chosen + said);
  $("timeline-show").hidden = picked === null;
  $("timeline-whole").hidden = picked === null && window === null;
  if (picked) text($("timeline-show"), `Show ${localSpan(...span(picked))} alone`);
}

function drawTable() {
  $("timeline-table").hidden = !$("timeline-details").open;
  if (!$("timeline-details").open) return;
  keyed($("timeline-rows"), "t-bucket", state.data.buckets, (bucket) => bucket.start, (node, bucket) => {
    const [first] = Object.entries(bucket.states).filter(([name]) => name !== "productive").sort((a, b) => b[1] - a[1]);
    put(node, { time: gpuTime(bucket.gpu_seconds), productive: percent((bucket.states.productive ?? 0) / bucket.gpu_seconds),
      cause: first ? `${first[0]} ${percent(first[1] / bucket.gpu_seconds)}` : "none" });
    field(node, "swatch").hidden = !first;
    if (first) swatch(field(node, "swatch"), first[0]);
    showTime(node.querySelector("time"), bucket.start);
  });
  keyed($("timeline-marks"), "t-mark", state.data.marks, (mark) => `${mark.kind} ${mark.time}`, (node, mark) => {
    put(node, { what: KINDS[mark.kind]?.(mark) ?? mark.kind });
    showTime(node.querySelector("time"), mark.time);
  });
}

// ---- What a person does --------------------------------------------------------------------------------------

const span = ([first, last]) => [state.data.buckets[first].start, state.data.buckets[last].end];

function moveTo(i, selecting) {
  const last = state.data.buckets.length - 1;
  const at = Math.min(Math.max(i, 0), last);
  if (selecting) {
    state.anchor ??= state.cursor;
    state.picked = [Math.min(state.anchor, at), Math.max(state.anchor, at)];
  } else Object.assign(state, { anchor: null, picked: null });
  state.cursor = at;
  draw();
}

function apply() {
  const picked = state.picked ?? [state.cursor, state.cursor];
  Object.assign(state, { picked: null, anchor: null });
  told.show(span(picked));
}

// Whether there was a selection to be given up.
export function dropSelection() {
  const had = state.picked !== null;
  Object.assign(state, { picked: null, anchor: null });
  if (had && state.data) draw();
  return had;
}

function onKey(event) {
  if (!state.data || event.ctrlKey || event.metaKey || event.altKey) return;
  const { cursor, data } = state;
  const to = { ArrowLeft: cursor - 1, ArrowDown: cursor - 1, ArrowRight: cursor + 1, ArrowUp: cursor + 1,
    PageDown: cursor - PAGE_STEPS, PageUp: cursor + PAGE_STEPS, Home: 0, End: data.buckets.length - 1 }[event.key];
  if (to !== undefined) moveTo(to, event.shiftKey);
  else if (event.key === "Enter") apply();
  else return;
  event.preventDefault();
}

// A press puts the cursor, a drag selects and shows what it selected when it ends.
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
    for (const [name, listener] of listeners) picture.removeEventListener(name, listener);
    if (one.type === "pointerup" && state.picked) apply();
    else dropSelection();
  };
  const listeners = [["pointermove", move], ["pointerup", end], ["pointercancel", end]];
  picture.setPointerCapture(event.pointerId);
  for (const [name, listener] of listeners) picture.addEventListener(name, listener);
}

export function listenToTimeline(show, heat) {
  Object.assign(told, { show, heat });
  $("timeline-picture").addEventListener("keydown", onKey);
  $("timeline-picture").addEventListener("pointerdown", onPointer);
  $("timeline-show").addEventListener("click", apply);
  $("timeline-whole").addEventListener("click", () => { dropSelection(); told.show(null); });
  $("timeline-details").addEventListener("toggle", () => state.data && drawTable());
  new ResizeObserver(() => state.data && draw()).observe($("timeline-picture"));
}
