// The tiles and the legend above the list of runs, over all listed runs together.
//
// Time of abandoned runs cannot be won back, and it is unknown when they ended: it is in no sum. Time of processes and time
// of GPUs are not one sum: runs without GPUs are left out where others have some.

import { $, keyed, make, put, swatch, text } from "../dom/nodes.js";
import { count, dollars, percent, plural, workTime, workerOf } from "../text/numbers.js";
import { MEANINGS, statusOf } from "../text/states.js";

export function drawFleet(listed) {
  const counted = listed.filter((run) => run.status !== "abandoned");
  const onGpus = counted.filter((run) => !run.is_on_cpu);
  const rows = onGpus.length ? onGpus : counted;
  const worker = workerOf(rows[0] ?? {});
  const sum = (of) => rows.reduce((total, run) => total + of(run), 0);
  const time = sum((run) => run.gpu_seconds);
  const waste = sum((run) => run.waste_gpu_seconds);
  const left = [[listed.length - counted.length, "abandoned run"], [counted.length - rows.length, "run without GPUs", "runs without GPUs"]];
  const running = listed.filter((run) => run.status === "running");
  const hanging = listed.filter((run) => statusOf(run) === "hangs");
  const tiles = [
    ["goodput", time > 0 ? percent(1 - waste / time) : "unknown", `of ${workTime(time, worker)}${without(left)}`],
    ["lost", ...lost(rows, waste, worker)],
    ["hanging", count(hanging.length), hanging.length === 0 ? "no run hangs" : names(hanging)],
    ["GPUs", ...gpus(running)],
  ];
  keyed($("fleet-tiles"), "t-tile", tiles, ([name]) => name, (node, [name, value, detail]) => {
    put(node, { name, value, detail });
    node.classList.toggle("bad", name === "hanging" && hanging.length > 0);
    node.classList.toggle("unknown", value === "unknown");
  });
  drawLegend(listed);
}

function without(left) {
  const parts = left.filter(([number]) => number > 0).map(([number, one, more = `${one}s`]) => `${count(number)} ${number === 1 ? one : more}`);
  return parts.length ? `; without ${parts.join(" and ")}` : "";
}

// GPUs of the runs that run now; a page in a file of an earlier version does not have their number.
function gpus(running) {
  if (running.some((run) => run.gpus === undefined)) return ["unknown", `in ${plural(running.length, "running run")}`];
  const onCpus = running.filter((run) => run.is_on_cpu).length;
  const ranks = running.reduce((total, run) => total + run.world_size, 0);
  const held = running.reduce((total, run) => total + run.gpus, 0);
  return [count(held), `${plural(ranks, "rank")} in ${plural(running.length, "running run")}${onCpus ? `, ${count(onCpus)} without GPUs` : ""}`];
}

function lost(rows, waste, worker) {
  const priced = rows.filter((run) => run.waste_cost !== null);
  if (priced.length === 0) return [workTime(waste, worker), `${worker} time that was not productive`];
  const money = priced.reduce((total, run) => total + run.waste_cost, 0);
  return [dollars(money, 100), `${workTime(waste, worker)} not productive${priced.length < rows.length ? "; dollars where a price is known" : ""}`];
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
