// The tiles and the legend above the list of runs, over all listed runs together.
//
// GPU time of abandoned runs cannot be won back, and it is unknown when they ended: it is in no sum.

import { $, keyed, make, put, swatch, text } from "../dom/nodes.js";
import { count, dollars, gpuTime, percent, plural } from "../text/numbers.js";
import { MEANINGS, statusOf } from "../text/states.js";

export function drawFleet(listed) {
  const rows = listed.filter((run) => run.status !== "abandoned");
  const sum = (of) => rows.reduce((total, run) => total + of(run), 0);
  const time = sum((run) => run.gpu_seconds);
  const waste = sum((run) => run.waste_gpu_seconds);
  const left = listed.length - rows.length;
  const running = listed.filter((run) => run.status === "running");
  const hanging = listed.filter((run) => statusOf(run) === "hangs");
  const ranks = running.reduce((total, run) => total + run.world_size, 0);
  const tiles = [
    ["goodput", time > 0 ? percent(1 - waste / time) : "unknown", `of ${gpuTime(time)}${left ? `; without ${plural(left, "abandoned run")}` : ""}`],
    ["lost", ...lost(rows, waste)],
    ["hanging", count(hanging.length), hanging.length === 0 ? "no run hangs" : names(hanging)],
    ["ranks running", count(ranks), `in ${plural(running.length, "run")}`],
  ];
  keyed($("fleet-tiles"), "t-tile", tiles, ([name]) => name, (node, [name, value, detail]) => {
    put(node, { name, value, detail });
    node.classList.toggle("bad", name === "hanging" && hanging.length > 0);
    node.classList.toggle("unknown", value === "unknown");
  });
  drawLegend(listed);
}

function lost(rows, waste) {
  const priced = rows.filter((run) => run.waste_cost !== null);
  if (priced.length === 0) return [gpuTime(waste), "GPU time that was not productive"];
  const money = priced.reduce((total, run) => total + run.waste_cost, 0);
  return [dollars(money, 100), `${gpuTime(waste)} not productive${priced.length < rows.length ? "; dollars where a price is known" : ""}`];
}

const names = (runs) => runs.slice(0, 3).map((run) => run.run).join(", ") + (runs.length > 3 ? ` and ${count(runs.length - 3)} more` : "");

function drawLegend(rows) {
  const present = Object.keys(MEANINGS).filter((state) => rows.some((run) => run.states[state] > 0));
  keyed($("fleet-legend"), () => make("li", {}, make("i"), make("span")), present, (state) => state, (item, state) => {
    swatch(item.firstElementChild, state);
    text(item.lastElementChild, state);
    item.title = MEANINGS[state];
  });
}
