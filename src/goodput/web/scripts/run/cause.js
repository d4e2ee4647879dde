// Why the GPUs wait, and what to do: the leading cause in one sentence with its advice, and the other causes.

import { $, field, keyed, put, swatch, text } from "../dom/nodes.js";
import { duration, gpuUnit, percent, plural, times } from "../text/numbers.js";
import { MEANINGS } from "../text/states.js";
import { stateCost } from "./figures.js";

// How many times faster the run would be. Unobserved time may have been useful, so no gain is promised for it.
export const gain = (cause) => (cause.state === "unobserved" || cause.gain == null ? "" : times(cause.gain));

export function drawCause(run) {
  const [first, ...others] = run.causes;
  const root = $("cause");
  field(root, "swatch").hidden = !first;
  swatch(field(root, "swatch"), first?.state);
  put(root, { sentence: sentence(run, first), advice_label: first ? "What to do: " : "" });
  if (first) {
    const unit = gpuUnit(run.gpu_seconds);
    const faster = gain(first) ? `Without it the run would be at most ${gain(first)} as fast. ` : "";
    const cost = run.cost === null ? "" : ` and ${stateCost(run, first.state)}`;
    put(root, { state: first.state, share: `${percent(first.share)} of all GPU time`, advice: first.advice,
      gain: `${faster}It has taken ${unit.text(first.gpu_seconds)} ${unit.name}${cost} so far.` });
  } else {
    put(root, { state: "none", share: "", advice: run.gpu_seconds > 0 ? "All GPU time was productive." : "", gain: "" });
  }
  $("causes").hidden = others.length === 0;
  text($("causes").querySelector("summary"), `${plural(others.length, "other cause")} and advice`);
  keyed($("causes").querySelector("dl"), "t-cause", others, (cause) => cause.state, (node, cause) => {
    swatch(field(node, "swatch"), cause.state);
    put(node, { state: `${cause.state}, ${percent(cause.share)}`, advice: cause.advice });
  });
}

function sentence(run, first) {
  if (run.factors.goodput === null || !(run.gpu_seconds > 0)) return "No GPU time is known.";
  if (!first) return "The GPUs did not wait.";
  const waste = percent(1 - run.factors.goodput);
  const { culprit, culprit_stage: stage = null } = run.straggler;
  const host = run.ranks.find((rank) => rank.rank === culprit)?.host;
  const slow = culprit !== null ? `, rank ${culprit} on ${host || "an unnamed host"}`
    : stage !== null ? `, stage ${stage}` : "";
  const meaning = MEANINGS[first.state] ?? "";
  return `${waste} of the GPU time was not productive. The largest part of it, ${percent(first.share)} of all, went to ` +
    `${first.state}: ${meaning}${first.state === "straggler" ? slow : ""}.`;
}

// The threshold belongs to the meaning of a stall.
export function meaningOf(run, state) {
  const stall = state === "stall" ? ` (over ${duration(run.stall_threshold_seconds)})` : "";
  return `${MEANINGS[state] ?? ""}${stall}${run.basis[state] === "estimated" ? " (an estimate)" : ""}`;
}
