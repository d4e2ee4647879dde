// Why the GPUs wait, and what to do: the leading cause in one sentence with its advice, what is paid once, and the others.

import { orderedCauses } from "../data/causes.js";
import { $, field, keyed, put, swatch, text } from "../dom/nodes.js";
import { putLinked } from "../dom/rank_links.js";
import { capitalised, duration, percent, plural, tenths, tenthsText, times, unitOf, workerOf } from "../text/numbers.js";
import { MEANINGS } from "../text/states.js";
import { stateCost } from "./figures.js";

// How many times faster the run would be. Unobserved time may have been useful, so no gain is promised for it.
export const gain = (cause) => (cause.state === "unobserved" || cause.gain == null ? "" : times(cause.gain));

// The bounds of a gain by replay. Where other ranks wait for those in the state, a gain by share is not what they would gain.
export function basis(cause) {
  return cause.gain_basis === "replay" ? interval(cause) : ", by its share alone";
}

function interval({ gain_low: low = null, gain_high: high = null }) {
  if (low === null || high === null || times(low) === times(high)) return "";
  return ` (95 %: ${times(low)} to ${times(high)})`;
}

// As in the table of states, where the percents sum to exactly 100.
function shareOf({ states }, { state }) {
  return `${tenthsText(tenths(Object.values(states))[Object.keys(states).indexOf(state)])} %`;
}

export function drawCause(run) {
  const causes = orderedCauses(run);
  const [why, next] = answerLines(run);
  // A failure is none of the causes: they all stay in the list.
  const [first, ...others] = run.failure && why ? [undefined, ...causes] : causes;
  const root = $("cause");
  field(root, "swatch").hidden = !first;
  swatch(field(root, "swatch"), first?.state);
  putLinked(root, { sentence: why ?? sentence(run, first) }, run.run);
  put(root, { advice_label: first || next ? "What to do: " : "" });
  if (first) {
    const unit = unitOf(run);
    const faster = gain(first) ? `Without it the run would be ${gain(first)} as fast${basis(first)}. ` : "";
    const cost = run.cost === null ? "" : ` and ${stateCost(run, first.state)}`;
    putLinked(root, { advice: next ?? first.advice, gain: `${faster}It has taken ${unit.text(first.gpu_seconds)} ${unit.name}${cost} so far.${wholeRun(run, first)}${once(run, others)}` }, run.run);
  } else {
    putLinked(root, { advice: next ?? (run.gpu_seconds > 0 ? `All ${workerOf(run)} time was productive.` : ""), gain: "" }, run.run);
  }
  $("causes").hidden = others.length === 0;
  text($("causes").querySelector("summary"), `${plural(others.length, first ? "other cause" : "cause")} and advice`);
  keyed($("causes").querySelector("dl"), "t-cause", others, (cause) => cause.state, (node, cause) => {
    swatch(field(node, "swatch"), cause.state);
    put(node, { state: `${cause.state}, ${shareOf(run, cause)}` });
    putLinked(node, { advice: cause.advice }, run.run);
  });
}

// What a cause will have cost when the run has made all of its steps; over a typical length only if that differs.
function wholeRun({ whole_run: whole }, cause) {
  if (!whole || whole.done >= whole.steps) return "";
  if (whole.basis === "typical" && percent(cause.whole_run_share) === percent(cause.share)) return "";
  const [run, known] = whole.basis === "declared" ? ["Over the whole run of", ""]
    : ["In a run of", " (a typical length, since total_steps is not declared)"];
  return ` ${run} ${plural(whole.steps, "step")}${known} it would be ${percent(cause.whole_run_share)}, an estimate.`;
}

const ONCE_SHARE_MIN = 0.01;

function once({ gpu_seconds: all }, causes) {
  const share = (cause) => (cause.once_gpu_seconds ?? 0) / all;
  const parts = causes.filter((cause) => share(cause) >= ONCE_SHARE_MIN).sort((a, b) => share(b) - share(a))
    .map((cause) => `${cause.state} ${percent(share(cause))}`);
  return parts.length ? ` Paid once, at the run's start and end: ${parts.join(", ")}.` : "";
}

// Of a run that hangs or failed, what the document's answer says: why, and what to do. [] of others.
function answerLines({ hang, failure = null, answer }) {
  const [, why, next] = hang || failure ? answer?.lines ?? [] : [];
  if (!why || !next) return [];
  const plain = (line) => line.replace(/^\w+: /, "");
  const said = plain(why);
  return [capitalised(said), plain(next)];
}

function sentence(run, first) {
  if (run.factors.goodput === null || !(run.gpu_seconds > 0)) return `No ${workerOf(run)} time is known.`;
  if (!first) return `The ${run.is_on_cpu ? "processes" : "GPUs"} did not wait.`;
  const largest = first === run.causes[0] ? "The largest part of it"
    : first.avoidable_gpu_seconds === undefined ? "The largest recurring part" : "The largest part that can be avoided";
  const waste = percent(1 - run.factors.goodput);
  const { culprit, culprit_stage: stage = null } = run.straggler;
  const host = run.ranks.find((rank) => rank.rank === culprit)?.host;
  const slow = culprit !== null ? `, rank ${culprit} on ${host || "an unnamed host"}`
    : stage !== null ? `, stage ${stage}` : "";
  return `${waste} of the ${workerOf(run)} time was not productive. ${largest}, ${shareOf(run, first)} of all, went to ` +
    `${first.state}: ${meaningOf(run, first.state)}${first.state === "straggler" ? slow : ""}.`;
}

// The threshold belongs to the meaning of a stall.
export function meaningOf(run, state) {
  const stall = state === "stall" ? ` (over ${duration(run.stall_threshold_seconds)})` : "";
  return `${MEANINGS[state] ?? ""}${stall}${run.basis[state] === "estimated" ? " (an estimate)" : ""}`;
}
