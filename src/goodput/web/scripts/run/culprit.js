// What the others of a run wait for: a rank, a host or a stage, and since when.

import { duration } from "../text/numbers.js";
import { localTime } from "../text/time.js";

const onHost = (host) => `on ${host || "an unnamed host"}`;

// {name, detail}: for the tile of a run. `name` is null where nothing stands out, undefined where that is not known.
export function culpritOf(run) {
  if (run.hang) return ofHang(run, run.hang);
  const { culprit, culprit_stage: stage = null, slow_issue: slow = null, slow_link: link = null, slowdown } = run.straggler;
  if (culprit !== null) return ofRank(run, culprit);
  if (stage !== null) return { name: `stage ${stage}`, detail: "has more work than the other stages" };
  if (slow !== null) return { name: `rank ${slow.rank}`, detail: `${onHost(slow.host)}, starts ${slow.operation} late` };
  if (link !== null) return { name: `rank ${link.rank}`, detail: `${onHost(link.host)}, its link is slow` };
  return slowdown === null ? { name: undefined, detail: "no step was reported by two ranks of a group" }
    : { name: null, detail: "no rank, host or stage is slow" };
}

function ofHang({ ranks }, { culprit, host, phase, phase_seconds: seconds, since, suspects }) {
  const there = ranks.filter((one) => one.host === host).length;
  if (culprit !== null && there > 1 && suspects.length === there && suspects.every((one) => one.host === host)) {
    return { name: `host ${host}`, detail: `all of its ranks; hangs since ${localTime(since)}` };
  }
  if (culprit === null) return { name: null, detail: `hangs since ${localTime(since)}; no rank stands out` };
  const where = phase === "none" ? "in no phase" : `in ${phase}`;
  return { name: `rank ${culprit}`, detail: `${onHost(host)}, ${where} for ${duration(seconds)}; hangs since ${localTime(since)}` };
}

// Where the answer of the document names a host or stage for a loss that others wait for, it knows more than the shares.
function ofRank(run, rank) {
  const { because, because_phase: phase = null, since_step: step, since_start: fromStart, hosts, shares } = run.straggler;
  const host = shares.find((one) => one.rank === rank)?.host ?? run.ranks.find((one) => one.rank === rank)?.host;
  const since = step === null ? "" : fromStart ? ", slow from the start" : `, slow since step ${step}`;
  const whole = run.answer?.state === "straggler" && run.answer.rank === null ? run.answer.host : wholeHost(run, hosts, shares);
  return { name: whole ? `host ${whole}` : `rank ${rank}`,
    detail: `${whole ? "all of its ranks" : onHost(host)}, ${phase ?? because}${since}` };
}

// The host of which at least two ranks, and all that it has, cause the waiting; each of them at least half its share.
function wholeHost({ ranks }, hosts, shares) {
  const [most] = hosts;
  if (!most) return null;
  const there = ranks.filter((one) => one.host === most.host).length;
  const slow = shares.filter((one) => one.host === most.host && one.share * there >= most.share / 2).length;
  return there > 1 && slow === there && most.share >= 0.5 ? most.host : null;
}
