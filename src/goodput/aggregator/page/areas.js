// The picture of the account over time: areas that fill each bar to 100 %, lanes of marks, a cursor, a selection.
//
// In: the API's timeline and where the cursor is. Out: SVG of DOM nodes, at most a path per state and a node per mark;
// the areas are drawn anew only when the data or the width changes. A state is hatched where it is hatched in bars.

import { svg } from "./nodes.js";
import { localTime } from "./numbers.js";
import { MEANINGS } from "./words.js";
import { hatched } from "./waterfall.js";

const HIGH = 200;
const LANE = 26; // Of the marks, above the areas.
const AXIS = 22;
const LEFT = 46;
const TICK_PIXELS = 170;

export class Areas {
  constructor(root) {
    this.root = root;
    this.data = null;
  }

  // The bar under a place, in pixels from the left.
  bucketAt(x) {
    const n = this.data.buckets.length;
    return Math.min(Math.max(Math.floor(((x - LEFT) / (this.wide - LEFT)) * n), 0), n - 1);
  }

  draw(data, { cursor, picked }) {
    const wide = Math.max(Math.floor(this.root.clientWidth), 240);
    if (this.root.clientWidth === 0) return;
    if (data !== this.data || wide !== this.wide) {
      Object.assign(this, { data, wide });
      this.paint();
    }
    this.place(cursor, picked);
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
    const high = LANE + HIGH + AXIS;
    const root = svg("svg", { viewBox: `0 0 ${wide} ${high}`, width: wide, height: high, role: "img",
      "aria-label": "GPU time by state over the run's life, each bar 100 %" });
    for (const area of stacked(data.buckets)) {
      const path = svg("path", { d: this.outline(area), "data-area": area.state, ...hatched(area.state) });
      path.append(svg("title", {}, `${area.state}: ${MEANINGS[area.state] ?? ""}`));
      root.append(path);
    }
    for (const share of [0, 0.5, 1]) {
      const y = LANE + HIGH * (1 - share);
      root.append(svg("line", { x1: LEFT, x2: wide, y1: y, y2: y, class: "grid" }));
      root.append(svg("text", { x: LEFT - 6, y: y + 4, class: "figure-end" }, `${100 * share} %`));
    }
    this.ticks(root);
    for (const mark of data.marks) root.append(this.mark(mark));
    this.shades = [0, 1].map(() => svg("rect", { y: LANE, height: HIGH, class: "shade" }));
    this.cursor = svg("rect", { y: LANE, height: HIGH, class: "cursor" });
    root.append(...this.shades, this.cursor);
    this.root.replaceChildren(root);
  }

  // Steps, not slopes: a bar is a sum over its time, and nothing is known within it.
  outline({ low, high }) {
    const y = (share) => (LANE + HIGH * (1 - share)).toFixed(1);
    const over = high.map((share, i) => `${this.x(i).toFixed(1)},${y(share)} ${this.x(i + 1).toFixed(1)},${y(share)}`);
    const under = low.map((share, i) => `${this.x(i + 1).toFixed(1)},${y(share)} ${this.x(i).toFixed(1)},${y(share)}`);
    return `M${over.join(" ")} ${under.reverse().join(" ")}Z`;
  }

  ticks(root) {
    const { start, end } = this.data;
    const many = Math.max(Math.floor((this.wide - LEFT) / TICK_PIXELS), 1);
    const days = end - start > 2 * 86_400;
    for (let i = 0; i <= many; i++) {
      const when = localTime(start + ((end - start) * i) / many);
      const anchor = i === 0 ? "start" : i === many ? "end" : "middle";
      root.append(svg("text", { x: this.x((this.data.buckets.length * i) / many), y: LANE + HIGH + 16, class: "tick",
        "text-anchor": anchor }, days ? when.slice(5, 16) : when.slice(11)));
    }
  }

  mark(mark) {
    const x = this.at(mark.time);
    const group = svg("g", { class: `mark ${mark.kind}` });
    group.append(svg("title", {}, `${mark.kind}, ${localTime(mark.time)}`));
    if (mark.kind === "stall") {
      group.append(svg("rect", { x, y: LANE - 6, width: Math.max(this.at(mark.end) - x, 3), height: 5 }));
    } else if (mark.kind === "restart") {
      group.append(svg("line", { x1: x, x2: x, y1: 12, y2: LANE + HIGH }));
      group.append(svg("path", { d: `M${x - 6},12 h12 l-6,-11 Z` }));
    } else group.append(svg("path", { d: `M${x},15 l4,4 l-4,4 l-4,-4 Z` }));
    return group;
  }

  place(cursor, picked) {
    const set = (node, from, to) => {
      node.setAttribute("x", this.x(from));
      node.setAttribute("width", Math.max(this.x(to) - this.x(from), 0));
    };
    set(this.cursor, cursor, cursor + 1);
    set(this.shades[0], 0, picked ? picked[0] : 0);
    set(this.shades[1], picked ? picked[1] + 1 : 0, picked ? this.data.buckets.length : 0);
  }
}

// [{state, low, high}] by bar, from the states in their order; the last one ends at 1, so no gap is left at the top.
export function stacked(buckets) {
  const there = new Set(buckets.flatMap((bucket) => Object.keys(bucket.states)));
  const states = Object.keys(MEANINGS).filter((state) => there.has(state));
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
