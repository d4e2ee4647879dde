// From peak to useful work: a waterfall of the chain of factors, and the states that take the rest between two of them.
//
// Percents are of the allocated GPU time. The account does not split states by inside and outside of kept steps, and a
// save may be either: the three states that may be both are shown together, once in steps and once between steps.

import { $, svg } from "../dom/nodes.js";
import { Table } from "../dom/table.js";
import { dollars, gpuUnit, percent } from "../text/numbers.js";
import { MEANINGS, NO_FLOPS } from "../text/states.js";

const OUTSIDE = ["queue", "down", "unobserved", "startup", "restore", "compile", "stall", "lost"];
const INSIDE = ["loader", "h2d", "communication", "straggler", "bubble", "launch"];
const NARROW_PIXELS = 620;
const HEAD_PIXELS = 18;
const SMALL = 1e-3; // States below this share are merged.
let drawnKey = "";

const table = new Table($("waterfall-table"), "waterfall-rows", [
  { name: "step", head: "Step", value: (row) => row.name },
  { name: "time", head: "GPU time", class: "n", value: (row) => row.amount },
  { name: "share", head: "Of what was allocated", class: "n", value: (row) => percent(row.share) },
  { name: "cost", head: "Cost", class: "n costs", value: (row) => row.cost },
  { name: "meaning", head: "What it is", class: "meaning", value: (row) => row.meaning },
]);

// [{name, kind: level | gap, state, seconds, from}]: `from` is where a gap's bar begins; all in GPU-seconds.
export function chain(run) {
  const whole = run.gpu_seconds;
  const { availability, goodput, compute_efficiency: compute, mfu } = run.factors;
  const time = (states) => states.reduce((sum, state) => sum + (run.states[state] ?? 0), 0);
  const productive = run.states.productive ?? 0;
  const kept = availability === null ? productive : availability * whole;
  const mixed = Math.max(whole - productive - time(OUTSIDE) - time(INSIDE), 0);
  const between = Math.min(Math.max(whole - kept - time(OUTSIDE), 0), mixed);
  const rows = [level("allocated", whole, "every GPU of every expected rank, from start to end")];
  let [left, small] = [whole, 0];
  const gap = (name, state, seconds, meaning) => {
    if (seconds < whole * SMALL) small += seconds;
    else rows.push({ name, kind: "gap", state, seconds, from: (left -= seconds), meaning });
  };
  // States too small to be seen one by one; without them the bars would not add up.
  const others = (name) => {
    if (small > whole * 1e-6) rows.push({ name, kind: "gap", state: "other", seconds: small, from: (left -= small),
      meaning: `states of under ${percent(SMALL)} each` });
    small = 0;
  };
  for (const state of OUTSIDE) gap(state, state, run.states[state] ?? 0, MEANINGS[state]);
  gap("between steps", "unattributed", between, "saving, evaluation, rollouts and unnamed time between steps");
  others("others outside");
  rows.push(level("in kept steps", kept, "availability: time in kept steps ÷ allocated time"));
  left = kept;
  for (const state of INSIDE) gap(state, state, run.states[state] ?? 0, MEANINGS[state]);
  gap("saving, other", "checkpoint", mixed - between, "checkpoints, evaluation, rollouts and unnamed time in steps");
  others("others inside");
  rows.push(level("productive", productive, "goodput: compute phases of kept steps"));
  const reason = run.errors.length ? "above 100 %, which cannot be: see the top" : run.mfu_unknown ?? NO_FLOPS;
  if (compute === null) return [...rows, level("useful work", null, `MFU: ${reason}`)];
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
  const described = (row) => ({
    ...row, share: row.seconds === null ? null : row.seconds / run.gpu_seconds,
    amount: row.seconds === null ? "unknown" : `${row.kind === "gap" ? "−" : ""}${unit.text(row.seconds)}`,
    cost: price === null || row.seconds === null ? "" : dollars(row.seconds * price, run.cost.total),
  });
  const all = rows.map(described);
  table.setHead("time", unit.name);
  table.draw(all, (row) => row.name, (node, row) => node.classList.toggle("level", row.kind === "level"));
  const wide = Math.max(Math.floor(root.clientWidth), 240);
  const key = JSON.stringify([wide, run.gpu_seconds, all]);
  if (key === drawnKey || root.clientWidth === 0) return;
  drawnKey = key;
  root.replaceChildren(picture(all, run.gpu_seconds, wide, unit));
}

function picture(rows, whole, wide, unit) {
  const narrow = wide < NARROW_PIXELS;
  const high = narrow ? 44 : 27;
  const [left, right] = narrow ? [0, 0] : [128, rows[0].cost ? 250 : 176];
  const scale = (wide - left - right) / whole;
  const label = rows.map((row) => `${row.name} ${percent(row.share)}`).join(", ");
  const root = svg("svg", { viewBox: `0 0 ${wide} ${HEAD_PIXELS + rows.length * high}`, width: wide, height: HEAD_PIXELS + rows.length * high,
    role: "img", "aria-label": `From peak to useful work: ${label}` });
  const insets = rows[0].cost ? [150, 76, 0] : [76, 0, 0];
  const columns = (...values) => values.map((value, i) => [value, insets[i]]);
  const figures = (values, base, kind) => (narrow
    ? [svg("text", { x: wide, y: base, class: kind }, values.map(([value]) => value).filter(Boolean).join(" · "))]
    : values.map(([value, inset]) => svg("text", { x: wide - inset, y: base, class: kind }, value)));
  root.append(...figures(columns(unit.name, "percent", rows[0].cost && "cost"), 12, "figure-end tick"));
  rows.forEach((row, i) => {
    const top = HEAD_PIXELS + i * high;
    const bar = narrow ? top + 22 : top + 4;
    const group = svg("g", { class: row.kind });
    group.append(svg("title", {}, `${row.name}: ${row.amount} ${unit.name}, ${percent(row.share)}. ${row.meaning}`));
    if (row.seconds !== null) {
      const [x, length] = [left + row.from * scale, Math.max(row.seconds * scale, 1)];
      group.append(svg("rect", { x, y: bar, width: length, height: 18, rx: 2, ...paint(row) }));
      // A line to where the next bar continues; on a phone the names lie between the bars.
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
