// The chart of the timeline: stacked areas that fill each bucket to 100 %, marks, a cursor and a selection.
//
// One SVG path per state and a group per mark; redrawn only when the data or the width changes.

import { svg } from "../dom/nodes.js";
import { capitalised } from "../text/numbers.js";
import { MEANINGS } from "../text/states.js";
import { tickTime } from "../text/time.js";

const HEIGHT = 190;
const MARKS_HEIGHT = 26; // Above the areas.
const AXIS_HEIGHT = 22;
const LEFT = 46;
const TICK_PIXELS = 170;

export class Areas {
  constructor(root) {
    this.root = root;
    this.data = null;
  }

  // The index of the bucket at `x` pixels from the left.
  bucketAt(x) {
    const n = this.data.buckets.length;
    return Math.min(Math.max(Math.floor(((x - LEFT) / (this.wide - LEFT)) * n), 0), n - 1);
  }

  // The state at a position, with its share of the bucket; null outside of the areas.
  stateAt(x, y) {
    const i = this.bucketAt(x);
    const share = 1 - (y - MARKS_HEIGHT) / HEIGHT;
    if (x < LEFT || share < 0 || share > 1) return null;
    const found = this.areas.find(({ low, high }) => high[i] > low[i] && share >= low[i] && share <= high[i]);
    return found === undefined ? null : { state: found.state, share: found.high[i] - found.low[i] };
  }

  // Moves the crosshair to a position, or with null hides it.
  cross(at) {
    if (!this.lines) return;
    for (const line of this.lines) line.setAttribute("visibility", at === null ? "hidden" : "visible");
    if (at === null) return;
    for (const name of ["x1", "x2"]) this.lines[0].setAttribute(name, at.x);
    for (const name of ["y1", "y2"]) this.lines[1].setAttribute(name, at.y);
  }

  draw(data, { worker, cursor, selected }) {
    const wide = Math.max(Math.floor(this.root.clientWidth), 240);
    if (this.root.clientWidth === 0) return;
    if (data !== this.data || wide !== this.wide) {
      Object.assign(this, { data, wide, worker });
      this.paint();
    }
    this.place(cursor, selected);
  }

  x(i) {
    return LEFT + ((this.wide - LEFT) * i) / this.data.buckets.length;
  }

  at(seconds) {
    const { start, end } = this.data;
    return LEFT + ((this.wide - LEFT) * Math.min(Math.max(seconds - start, 0), end - start)) / (end - start);
  }

  paint() {
    const { wide, data } = this;
    const high = MARKS_HEIGHT + HEIGHT + AXIS_HEIGHT;
    const root = svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img",
      "aria-label": `${capitalised(this.worker)} time by state over the run's life, each bucket 100 %` });
    this.areas = stacked(data.buckets);
    for (const area of this.areas) {
      root.append(svg("path", { d: this.outline(area), "data-area": area.state, ...hatched(area.state) }));
    }
    for (const share of [0, 0.5, 1]) {
      const y = MARKS_HEIGHT + HEIGHT * (1 - share);
      root.append(svg("line", { x1: LEFT, x2: wide, y1: y, y2: y, class: "grid" }));
      root.append(svg("text", { x: LEFT - 6, y: y + 4, class: "figure-end" }, `${100 * share} %`));
    }
    this.ticks(root);
    for (const mark of data.marks) root.append(this.mark(mark));
    this.shades = [0, 1].map(() => svg("rect", { y: MARKS_HEIGHT, height: HEIGHT, class: "shade" }));
    this.cursor = svg("rect", { y: MARKS_HEIGHT, height: HEIGHT, class: "cursor" });
    const hidden = { class: "cross", visibility: "hidden" };
    this.lines = [svg("line", { ...hidden, y1: MARKS_HEIGHT, y2: MARKS_HEIGHT + HEIGHT }), svg("line", { ...hidden, x1: LEFT, x2: wide })];
    root.append(...this.shades, this.cursor, ...this.lines);
    this.root.replaceChildren(root);
  }

  // Steps instead of slopes: a bucket is a sum over its time, with no detail inside.
  outline({ low, high }) {
    const y = (share) => (MARKS_HEIGHT + HEIGHT * (1 - share)).toFixed(1);
    const over = high.map((share, i) => `${this.x(i).toFixed(1)},${y(share)} ${this.x(i + 1).toFixed(1)},${y(share)}`);
    const under = low.map((share, i) => `${this.x(i + 1).toFixed(1)},${y(share)} ${this.x(i).toFixed(1)},${y(share)}`);
    return `M${over.join(" ")} ${under.reverse().join(" ")}Z`;
  }

  ticks(root) {
    const { start, end } = this.data;
    const ticks = Math.max(Math.floor((this.wide - LEFT) / TICK_PIXELS), 1);
    const days = end - start > 2 * 86_400;
    for (let i = 0; i <= ticks; i++) {
      const seconds = (start + ((end - start) * i) / ticks);
      const anchor = i === 0 ? "start" : i === ticks ? "end" : "middle";
      root.append(svg("text", { x: this.x((this.data.buckets.length * i) / ticks), y: MARKS_HEIGHT + HEIGHT + 16, class: "tick",
        "text-anchor": anchor }, tickTime(seconds, days)));
    }
  }

  mark(mark) {
    const x = this.at(mark.time);
    const group = svg("g", { class: `mark ${mark.kind}` });
    if (mark.kind === "stall") {
      group.append(svg("rect", { x, y: MARKS_HEIGHT - 6, width: Math.max(this.at(mark.end) - x, 3), height: 5 }));
    } else if (mark.kind === "restart") {
      group.append(svg("line", { x1: x, x2: x, y1: 12, y2: MARKS_HEIGHT + HEIGHT }));
      group.append(svg("path", { d: `M${x - 6},12 h12 l-6,-11 Z` }));
    } else group.append(svg("path", { d: `M${x},15 l4,4 l-4,4 l-4,-4 Z` }));
    return group;
  }

  place(cursor, selected) {
    const set = (node, from, to) => {
      node.setAttribute("x", this.x(from));
      node.setAttribute("width", Math.max(this.x(to) - this.x(from), 0));
    };
    set(this.cursor, cursor, cursor + 1);
    set(this.shades[0], 0, selected ? selected[0] : 0);
    set(this.shades[1], selected ? selected[1] + 1 : 0, selected ? this.data.buckets.length : 0);
  }
}

// Lost and unobserved time is hatched wherever it is drawn.
const hatched = (state) => (state === "lost" || state === "unobserved" ? { fill: `url(#hatch-${state})` } : { class: `s-${state}` });

// [{state, low, high}] in the order of MEANINGS, `low` and `high` by bucket; the last one ends at exactly 1.
export function stacked(buckets) {
  const present = new Set(buckets.flatMap((bucket) => Object.keys(bucket.states)));
  const states = Object.keys(MEANINGS).filter((state) => present.has(state));
  let low = buckets.map(() => 0);
  return states.map((state) => {
    const high = buckets.map((bucket, i) => {
      if (!(bucket.gpu_seconds > 0)) return low[i];
      const sum = low[i] + (bucket.states[state] ?? 0) / bucket.gpu_seconds;
      return Math.abs(1 - sum) < 1e-6 ? 1 : sum;
    });
    const area = { state, low, high };
    low = high;
    return area;
  });
}
