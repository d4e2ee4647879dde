// What follows from the account, as [name, value, detail, title]: checkpoints, throughput, pipeline, money, energy.
//
// In: the API's run. Out: texts. Whoever could make an unknown figure known is told how. Knows no page.

import { compact, count, dollars, duration, percent, plural } from "./numbers.js";

export function figures(run) {
  const blocks = [checkpoints(run.checkpoints), throughput(run.throughput)];
  if (run.pipeline) blocks.push(pipeline(run.pipeline));
  return [...blocks, cost(run), energy(run)];
}

function checkpoints(saving) {
  const { committed, save_seconds: save, interval_seconds: interval, best_interval_seconds: best } = saving;
  const now = interval === null ? "" : `Now one is saved each ${duration(interval)}`;
  const takes = save === null ? " and takes the steps no time" : ` and takes ${duration(save)}`;
  const why = committed === 0 ? "No checkpoint was committed." : best === null && saving.failures === 0
    ? "No failure was seen. " : best === null ? "" : "Estimate, for the failures seen. ";
  const unfinished = saving.unfinished ? " One was begun and never committed." : "";
  return ["Best checkpoint interval", duration(best), `${why}${now && `${now}${takes}.`}${unfinished}`, saving.source];
}

function throughput(rate) {
  const name = "Throughput goodput";
  const title = "samples (or tokens) of kept steps ÷ those of the ideal rate in the same wall time";
  if (!rate.samples) return [name, "unknown", "No samples were reported.", title];
  const kept = compact(rate.samples_per_second);
  if (rate.goodput === null) {
    const why = rate.ideal_basis === "given" ? "which is more than the ideal given" : "too few steps to see an ideal";
    return [name, "unknown", `${kept} samples/s; ${why}.`, title];
  }
  const basis = { given: "the ideal given", "best shown": "the best it has shown" }[rate.ideal_basis];
  return [name, percent(rate.goodput), `${kept} samples/s of ${compact(rate.ideal_samples_per_second)}, ${basis}.`, title];
}

function pipeline({ stages, microbatches, bubble, ideal_bubble: ideal, excess }) {
  const least = ideal === null ? "What cannot be avoided is unknown: needs microbatches in goodput.start."
    : `${percent(ideal)} cannot be avoided with ${plural(microbatches, "microbatch").replace("chs", "ches")}` +
      `${excess > 0 ? `; ${percent(excess)} can` : ""}.`;
  return ["Pipeline bubble", percent(bubble), `${plural(stages, "stage")}. ${least}`,
    "time in kept steps spent waiting for other stages"];
}

function cost({ cost: spent, per_dollar: per }) {
  if (spent === null) return ["Cost", "unknown", "Needs gpu_hour_cost in goodput.start.", ""];
  const productive = `${dollars(spent.states.productive, spent.total)} of it productive`;
  return ["Cost", dollars(spent.total, spent.total), `${productive}. ${each(per, 1, "dollar")}`, ""];
}

function energy({ energy: spent, per_joule: per, basis }) {
  const needs = "Needs gpu_power_watts in goodput.start, or an agent that reads the GPUs' energy.";
  if (spent === null) return ["Energy", "unknown", needs, ""];
  const [size, unit] = spent.total < 3.6e5 ? [1e3, "kJ"] : [3.6e6, "kWh"];
  const guess = basis.energy === "estimated" ? "Estimate. " : "";
  return ["Energy", `${compact(spent.total / size)} ${unit}`, `${guess}${each(per, size, unit)}`,
    guess ? "what was measured, else GPU time × mean power" : "measured while the ranks' processes ran"];
}

// What was useful for each dollar, kJ or kWh.
function each(per, size, unit) {
  if (!per) return "";
  const said = [`${compact(size * per.productive_gpu_seconds)} productive GPU-seconds`];
  if (per.samples !== null) said.push(`${compact(size * per.samples)} samples`);
  if (per.flops !== null) said.push(`${compact(size * per.flops, "FLOP")}`);
  return `For each ${unit} ${said.join(", ")}.`;
}

// Cost of a state beside its GPU time.
export function stateCost({ cost: spent }, state) {
  return spent === null ? "unknown" : dollars(spent.states[state] ?? 0, spent.total);
}

export const stateTitle = ({ energy: spent }, state, seconds) =>
  `${seconds} GPU-seconds${spent?.states[state] == null ? "" : `, ${count(spent.states[state])} J`}`;
