// The hang at the top of a run: which rank, where, since when, and its stack.

import { attribute, field, keyed, put, showTime, text } from "../dom/nodes.js";
import { linkedText, putLinked } from "../dom/rank_links.js";
import { count, duration, plural } from "../text/numbers.js";
import { zone, zonedTime } from "../text/time.js";

const KINDS = {
  dead: "its process is dead",
  elsewhere: "elsewhere than the ranks that wait",
  silent: "its node does not report any more",
  finished: "has finished while the others wait",
  behind: "waits in another collective than the others",
  "dead before": "was dead while the others still went on",
  "silent before": "was silent while the others still went on",
};
const phaseName = (name) => (name === "none" ? "no phase" : name);
const hostName = (name) => name || "an unnamed host";

export function drawHang(root, { hang, status, run }) {
  root.hidden = !hang;
  if (!hang) return;
  const known = hang.culprit !== null;
  const verb = status === "running" ? "Hangs" : "Hung until it ended";
  const obvious = known && hang.victims > 0 && hang.suspects[0].kind === "elsewhere" && !hang.collective;
  putLinked(root, {
    culprit: known ? `${verb}: ${culpritName(hang)}` : `${verb}, and no rank stands out`,
    phase: known ? `in ${phaseName(hang.phase)} for ${duration(hang.phase_seconds)}` : "",
    seconds: duration(hang.seconds),
    victims: `${plural(hang.victims, "rank")} wait${hang.victims === 1 ? "s" : ""} in communication.`,
    reason: obvious ? "" : `${hang.reason}.`,
  }, run);
  showTime(field(root, "since"), hang.since);
  put(root, { zone: zone(hang.since) });
  drawSuspects(root.querySelector("details.suspects"), hang, run);
  drawStack(root.querySelector("details.stack"), hang);
}

// A host once, where all of its ranks are dead or silent.
function culpritName({ culprit, host, host_ranks: ranks }) {
  return ranks ? `host ${hostName(host)}, all ${count(ranks)} of its ranks` : `rank ${culprit} on ${hostName(host)}`;
}

function drawSuspects(root, { suspects, culprit, host, host_ranks: ranks }, run) {
  const others = suspects.filter((one) => (ranks ? one.host !== host : one.rank !== culprit));
  root.hidden = others.length === 0;
  text(root.querySelector("summary"), plural(others.length, "other suspect"));
  keyed(root.querySelector("ul"), "t-item", others, (one) => one.rank, (node, one) => {
    const step = one.step === null ? "no step yet" : `step ${count(one.step)}`;
    linkedText(node, `rank ${one.rank} on ${hostName(one.host)}: ${phaseName(one.phase)} ${duration(one.seconds)}, ${step}`, run);
    attribute(node, "title", KINDS[one.kind] ?? one.kind);
  });
}

function drawStack(root, { stack, stack_rank: rank, stack_time: time }) {
  root.hidden = stack === null;
  if (stack === null) return;
  text(root.querySelector("summary"), `Stack of rank ${rank} at ${zonedTime(time)}`);
  text(root.querySelector("pre"), stack);
}
