// From peak to useful work: each factor of the chain, and between two factors what took the rest, as bars that step down.
//
// In: the API's account. Out: an SVG of DOM nodes, drawn anew when the account or the width changes, and the same as
// a table. Percents are of the allocated GPU time. What lies in kept steps and what lies outside is not told state by
// state: a save may be either. So the three that may be both stand together, in steps and between steps.

import { $, keyed, put, svg, text } from "./nodes.js";
import { dollars, gpuUnit, percent } from "./numbers.js";
import { MEANINGS, NO_FLOPS } from "./words.js";

const AROUND = ["queue", "down", "unobserved", "startup", "restore", "compile", "stall", "lost"];
const INSIDE = ["loader", "h2d", "communication", "straggler", "launch"];
const NARROW = 620;
const HEAD = 18;
const SMALL = 1e-3;
const drawn = { key: "" };

// [{name, kind: level | gap, state, seconds, from}]: `from` is where a gap's bar begins; all in GPU-seconds.
export function chain(run) {
  const whole = run.gpu_seconds;
  const { availability, goodput, compute_efficiency: compute, mfu } = run.factors;
  const time = (states) => states.reduce((sum, state) => sum + (run.states[state] ?? 0), 0);
  const productive = run.states.productive ?? 0;
  const kept = availability === null ? productive : availability * whole;
  const mixed = Math.max(whole - productive - time(AROUND) - time(INSIDE), 0);
  const between = Math.min(Math.max(whole - kept - time(AROUND), 0), mixed);
  const rows = [level("allocated", whole, "every GPU of every expected rank, from start to end")];
  let [left, small] = [whole, 0];
  const gap = (name, state, seconds, meaning) => {
    if (seconds < whole * SMALL) small += seconds;
    else rows.push({ name, kind: "gap", state, seconds, from: (left -= seconds), meaning });
  };
  // Too small to be seen one by one; without them the bars would not close.
  const others = (name) => {
    if (small > whole * 1e-6) rows.push({ name, kind: "gap", state: "other", seconds: small, from: (left -= small),
      meaning: `states of under ${percent(SMALL)} each` });
    small = 0;
  };
  for (const state of AROUND) gap(state, state, run.states[state] ?? 0, MEANINGS[state]);
  gap("between steps", "unattributed", between, "saving, evaluation and unnamed time between steps");
  others("others outside");
  rows.push(level("in kept steps", kept, "availability: time in kept steps ÷ allocated time"));
  left = kept;
  for (const state of INSIDE) gap(state, state, run.states[state] ?? 0, MEANINGS[state]);
  gap("saving, other", "checkpoint", mixed - between, "checkpoints, evaluation and unnamed time in steps");
  others("others inside");
  rows.push(level("productive", productive, "goodput: compute phases of kept steps"));
  const why = run.errors.length ? "above 100 %, which cannot be: see the top" : NO_FLOPS;
  if (compute === null) return [...rows, level("useful work", null, `MFU: ${why}`)];
  left = productive;
  gap("slow kernels", "launch", productive * (1 - compute), "compute that was slower than the peak");
  return [...rows, level("useful work", mfu === null ? productive * compute : mfu * whole, "MFU: model FLOPs ÷ peak")];
}

// A level of the chain: what is left of the allocated time.
const level = (name, seconds, meaning) => ({ name, kind: "level", seconds, from: 0, meaning });

export function drawWaterfall(run) {
  const root = $("waterfall");
  const rows = chain(run);
  const unit = gpuUnit(run.gpu_seconds);
  const price = run.cost === null || !(run.gpu_seconds > 0) ? null : run.cost.total / run.gpu_seconds;
  const said = (row) => ({
    ...row, share: row.seconds === null ? null : row.seconds / run.gpu_seconds,
    amount: row.seconds === null ? "unknown" : `${row.kind === "gap" ? "−" : ""}${unit.text(row.seconds)}`,
    cost: price === null || row.seconds === null ? "" : dollars(row.seconds * price, run.cost.total),
  });
  const all = rows.map(said);
  text($("waterfall-unit"), unit.name);
  keyed($("waterfall-rows"), "t-step", all, (row) => row.name, (node, row) => {
    put(node, { name: row.name, amount: row.amount, share: percent(row.share), cost: row.cost, meaning: row.meaning });
    node.classList.toggle("level", row.kind === "level");
  });
  const wide = Math.max(Math.floor(root.clientWidth), 240);
  const key = JSON.stringify([wide, run.gpu_seconds, all]);
  if (key === drawn.key || root.clientWidth === 0) return;
  drawn.key = key;
  root.replaceChildren(picture(all, run.gpu_seconds, wide, unit));
}

function picture(rows, whole, wide, unit) {
  const narrow = wide < NARROW;
  const high = narrow ? 44 : 27;
  const [left, right] = narrow ? [0, 0] : [128, rows[0].cost ? 250 : 176];
  const scale = (wide - left - right) / whole;
  const said = rows.map((row) => `${row.name} ${percent(row.share)}`).join(", ");
  const root = svg("svg", { viewBox: `0 0 ${wide} ${HEAD + rows.length * high}`, width: wide, height: HEAD + rows.length * high,
    role: "img", "aria-label": `From peak to useful work: ${said}` });
  const insets = rows[0].cost ? [150, 76, 0] : [76, 0, 0];
  const columns = (...values) => values.map((value, i) => [value, insets[i]]);
  const figures = (values, base, kind) => (narrow
    ? [svg("text", { x: wide, y: base, class: kind }, values.map(([value]) => value).filter(Boolean).join(" · "))]
    : values.map(([value, inset]) => svg("text", { x: wide - inset, y: base, class: kind }, value)));
  root.append(...figures(columns(unit.name, "percent", rows[0].cost && "cost"), 12, "figure-end tick"));
  rows.forEach((row, i) => {
    const top = HEAD + i * high;
    const bar = narrow ? top + 22 : top + 4;
    const group = svg("g", { class: row.kind });
    group.append(svg("title", {}, `${row.name}: ${row.amount} ${unit.name}, ${percent(row.share)}. ${row.meaning}`));
    if (row.seconds !== null) {
      const [x, length] = [left + row.from * scale, Math.max(row.seconds * scale, 1)];
      group.append(svg("rect", { x, y: bar, width: length, height: 18, rx: 2, ...paint(row) }));
      // Where the next bar goes on; where words lie between the bars it would cross them.
      const edge = row.kind === "gap" ? x : x + length;
      if (!narrow && rows[i + 1] && rows[i + 1].seconds !== null) {
        group.append(svg("line", { x1: edge, x2: edge, y1: bar + 18, y2: bar + high, class: "joint" }));
      }
    }
    const base = narrow ? top + 16 : bar + 13;
    group.append(svg("text", { x: 0, y: base, class: "name" }, row.name));
    group.append(...figures(columns(row.amount, percent(row.share), row.cost), base, "figure-end"));
    root.append(group);
  });
  return root;
}

function paint(row) {
  if (row.kind === "level") return { class: "level" };
  return hatched(row.state);
}

// Lost and unobserved time is hatched wherever it is drawn.
export function hatched(state) {
  return state === "lost" || state === "unobserved" ? { fill: `url(#hatch-${state})` } : { class: `s-${state}` };
}
