// Figures derived from the account: [name, value, detail, explanation] for checkpoints, throughput, pipeline, cost, energy.
// An unknown figure says what would make it known.

import { compact, count, dollars, duration, percent, plural, workerOf } from "../text/numbers.js";

export const THROUGHPUT = "Throughput goodput";

export function figures(run) {
  const blocks = [checkpoints(run.checkpoints), throughput(run)];
  if (run.pipeline) blocks.push(pipeline(run.pipeline));
  return [...blocks, cost(run), energy(run)];
}

function checkpoints(found) {
  const { committed, save_seconds: save, interval_seconds: interval, best_interval_seconds: best } = found;
  const title = `Best interval after ${found.source}.`;
  const unfinished = found.unfinished ? " One was begun and never committed." : "";
  if (committed === 0) return ["Best checkpoint interval", duration(best), `No checkpoint was committed.${unfinished}`, title];
  const now = interval === null ? "" : `Now one is saved each ${duration(interval)}` +
    `${save === null ? " and takes the steps no time" : ` and takes ${duration(save)}`}. `;
  const basis = best !== null ? "Estimate, for the failures seen. " : found.failures === 0 ? "No failure was seen. " : "";
  const failures = found.failures > 0 ? `, ${plural(found.failures, "failure")}` +
    `${found.seconds_between_failures === null ? "" : ` (one each ${duration(found.seconds_between_failures)})`}` : "";
  return ["Best checkpoint interval", duration(best),
    `${basis}${now}${count(committed)} committed${failures}.${unfinished}`, title];
}

function throughput({ throughput: rate, steps }) {
  const name = THROUGHPUT;
  const title = "samples (or tokens) of kept steps ÷ those of the ideal rate in the same wall time";
  if (!rate.samples) return [name, "unknown", steps.kept ? "No samples were reported." : "No step was kept.", title];
  const actual = `${compact(rate.samples)} kept samples, ${compact(rate.samples_per_second)} samples/s`;
  const who = reporters(rate);
  if (rate.goodput === null) {
    const why = rate.ideal_basis === "given" ? "which is more than the ideal given"
      : rate.samples_basis === "one rank" || rate.samples_basis === "some ranks" ? "the ideal may be that of a rank or of all"
        : "too few steps to see an ideal";
    return [name, "unknown", `${actual}; ${why}.${who}`, title];
  }
  const basis = { given: "the ideal given", "best shown": "the best it has shown" }[rate.ideal_basis];
  return [name, percent(rate.goodput), `${actual} of ${compact(rate.ideal_samples_per_second)}, ${basis}.${who}`, title];
}

// Which ranks report the samples, where that decides what they are.
function reporters({ samples_basis: basis, samples_ranks: ranks, samples_per_second: rate }) {
  const notes = {
    "one rank": "Only one rank reports samples, taken as those of the whole run.",
    "some ranks": `Only ${plural(ranks, "rank")} report samples, taken as those of the whole run.`,
    "same on each rank": `The sum of ${plural(ranks, "equal rank")}; ${compact(rate / ranks)}/s if each reports the whole batch.`,
    "whole batch on each rank": `${plural(ranks, "rank")} each report the whole batch, which is counted once.`,
  };
  return notes[basis] ? ` ${notes[basis]}` : "";
}

function pipeline({ stages, microbatches, bubble, ideal_bubble: ideal, excess, waits = [] }) {
  const most = waits.reduce((found, one) => (found && found.step_seconds >= one.step_seconds ? found : one), null);
  const longest = most === null ? "" : ` Stage ${most.stage} waits longest: ${duration(most.step_seconds)} a step in ` +
    `${most.operation}${most.microbatch_seconds === null ? "" : `, ${duration(most.microbatch_seconds)} a microbatch`}.`;
  const least = ideal === null ? "What cannot be avoided is unknown: needs microbatches in goodput.start."
    : `${percent(ideal)} cannot be avoided with ${plural(microbatches, "microbatch").replace("chs", "ches")}` +
      `${excess > 0 ? `; ${percent(excess)} can` : ""}.`;
  return ["Pipeline bubble", percent(bubble), `${plural(stages, "stage")}. ${least}${longest}`,
    "time in kept steps spent waiting for other stages; with p stages and m microbatches at least (p − 1) / (m + p − 1)"];
}

function cost(run) {
  const { cost: total, per_dollar: per } = run;
  if (total === null) return ["Cost", "unknown", "Needs gpu_hour_cost in goodput.start.", ""];
  const productive = `${dollars(total.states.productive, total.total)} of it productive`;
  return ["Cost", dollars(total.total, total.total), `${productive}. ${each(run, per, 1, "dollar")}`, ""];
}

function energy(run) {
  const { energy: joules, per_joule: per, basis } = run;
  const needs = `Needs gpu_power_watts in goodput.start${run.is_on_cpu ? "" : ", or an agent that reads the GPUs' energy"}.`;
  if (joules === null) return ["Energy", "unknown", needs, ""];
  const [size, unit] = joules.total < 3.6e5 ? [1e3, "kJ"] : [3.6e6, "kWh"];
  const estimate = basis.energy === "measured" ? "" : "Estimate. ";
  return ["Energy", `${compact(joules.total / size)} ${unit}`, `${estimate}${each(run, per, size, unit)}`,
    estimate ? "what was measured, else time × mean power" : "measured while the ranks' processes ran"];
}

// What was useful for each dollar, kJ or kWh.
function each(run, per, size, unit) {
  if (!per) return "";
  const parts = [`${compact(size * per.productive_gpu_seconds)} productive ${workerOf(run)}-seconds`];
  if (per.samples !== null) parts.push(`${compact(size * per.samples)} samples`);
  if (per.flops !== null) parts.push(`${compact(size * per.flops, "FLOP")}`);
  return `For each ${unit} ${parts.join(", ")}.`;
}

export function stateCost({ cost: total }, state) {
  return total === null ? "unknown" : dollars(total.states[state] ?? 0, total.total);
}

export const stateTitle = (run, state, seconds) =>
  `${seconds} ${workerOf(run)}-seconds${run.energy?.states[state] == null ? "" : `, ${count(run.energy.states[state])} J`}`;
