// Goodput over the life of each run in the list, as a line of buckets; from the timelines of the rows on the screen.
//
// A timeline is read from the ledger, and that of a run that is over may bring it back to memory. So only rows that are
// seen are requested, one at a time, that of a running run again after EVERY_MS.

import { runPath } from "../data/api.js";
import { Poll } from "../data/poll.js";
import { isLive } from "../data/source.js";
import { attribute, make, svg } from "../dom/nodes.js";
import { percent } from "../text/numbers.js";

const POINTS = 24;
const [WIDTH, HEIGHT] = [84, 24];
const EVERY_MS = 120_000;
const FAILED_MS = 60_000;
const TIMEOUT_MS = 130_000;
// By run: {end, points, nextMs}; `points` are goodputs by bucket, null where nothing was allocated, [] where unknown.
const trends = new Map();
const seen = new Set(); // Cells on the screen.
const requests = { poll: new Poll(0, TIMEOUT_MS), name: null };
const observer = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) seen.add(target);
    else seen.delete(target);
  }
  followTrends();
});

export const trendCell = () => [make("span", { class: "trend", role: "img" })];

export function drawTrend(cell, run) {
  const node = cell.firstElementChild;
  if (node.run === undefined) observer.observe(node);
  node.run = run;
  paint(node);
}

// Requests the trend of a row on the screen that has none or an old one, unless one is under way.
export function followTrends() {
  for (const node of seen) if (!node.isConnected) forget(node);
  const due = [...seen].map(({ run }) => run).filter(isDue);
  if (due.length === 0 || requests.poll.pending) return;
  const [{ run: name, end }] = due;
  const poll = (requests.poll = new Poll(0, TIMEOUT_MS));
  poll.request(runPath(name, "timeline", `points=${POINTS}`), (answer) => {
    const points = answer === null ? (trends.get(name)?.points ?? []) : answer.buckets.map(goodputOf);
    trends.set(name, { end: answer === null ? null : end, points, nextMs: performance.now() + (poll.error ? FAILED_MS : EVERY_MS) });
    for (const node of seen) if (node.run.run === name) paint(node);
    queueMicrotask(() => setTimeout(followTrends)); // After the poll has noted that it is over.
  });
}

export function closeTrends() {
  requests.poll.stop();
}

function forget(node) {
  observer.unobserve(node);
  seen.delete(node);
}

function isDue({ run, end, status }) {
  const known = trends.get(run);
  if (known === undefined) return status !== "pending";
  return isLive && known.end !== end && performance.now() >= known.nextMs;
}

const goodputOf = ({ gpu_seconds: all, states }) => (all > 0 ? (states.productive ?? 0) / all : null);

// A line from 0 % at the bottom to 100 %, broken where nothing was allocated.
function paint(node) {
  const points = trends.get(node.run.run)?.points ?? [];
  const key = JSON.stringify(points);
  if (node.drawn === key) return;
  node.drawn = key;
  const known = points.filter((value) => value !== null);
  const words = known.length === 0 ? "goodput over time: not known yet"
    : `goodput over time: ${percent(known[0])} at first, ${percent(known.at(-1))} at last, from ${percent(Math.min(...known))} to ${percent(Math.max(...known))}`;
  attribute(node, "aria-label", words);
  attribute(node, "data-tip", `${node.run.run}\n${words}`);
  node.replaceChildren(...(known.length ? [picture(points)] : []));
}

function picture(points) {
  const root = svg("svg", { viewBox: `0 0 ${WIDTH} ${HEIGHT}`, width: WIDTH, height: HEIGHT, "aria-hidden": "true" });
  const [x, y] = [(i) => ((WIDTH * i) / points.length).toFixed(1), (share) => (2 + (HEIGHT - 4) * (1 - share)).toFixed(1)];
  let [path, isOn] = ["", false];
  points.forEach((share, i) => {
    if (share !== null) path += `${isOn ? "L" : "M"}${x(i)},${y(share)} H${x(i + 1)} `;
    isOn = share !== null;
  });
  root.append(svg("line", { x1: 0, x2: WIDTH, y1: HEIGHT - 2, y2: HEIGHT - 2, class: "base" }), svg("path", { d: path }));
  return root;
}
