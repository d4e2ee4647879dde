// The hang at the top of a run: in, the API's run; out, text nodes. Who, where, since when, and the stack.
//
// Hosts, phases and stacks are whatever the nodes sent, so they are only ever text.

import { attribute, field, keyed, put, showTime, text } from "./nodes.js";
import { count, duration, plural, zone, zonedTime } from "./numbers.js";

const KINDS = {
  dead: "its process is dead",
  elsewhere: "elsewhere than the ranks that wait",
  silent: "its node does not report any more",
  finished: "has finished while the others wait",
  behind: "waits in another collective than the others",
  "dead before": "was dead while the others still went on",
  "silent before": "was silent while the others still went on",
};
const phaseOf = (name) => (name === "none" ? "no phase" : name);
const hostOf = (name) => name || "an unnamed host";

export function drawHang(root, { hang }) {
  root.hidden = !hang;
  if (!hang) return;
  const known = hang.culprit !== null;
  const plain = known && hang.victims > 0 && hang.suspects[0].kind === "elsewhere";
  put(root, {
    who: known ? `Hangs: rank ${hang.culprit} on ${hostOf(hang.host)}` : "Hangs, and no rank stands out",
    where: known ? `in ${phaseOf(hang.phase)} for ${duration(hang.phase_seconds)}` : "",
    seconds: duration(hang.seconds),
    victims: `${plural(hang.victims, "rank")} wait${hang.victims === 1 ? "s" : ""} in communication.`,
    reason: plain ? "" : `${hang.reason}.`,
  });
  showTime(field(root, "since"), hang.since);
  put(root, { zone: zone(hang.since) });
  drawSuspects(root.querySelector("details.suspects"), hang);
  drawStack(root.querySelector("details.stack"), hang);
}

function drawSuspects(root, { suspects, culprit }) {
  const others = suspects.filter((one) => one.rank !== culprit);
  root.hidden = others.length === 0;
  text(root.querySelector("summary"), plural(others.length, "other suspect"));
  keyed(root.querySelector("ul"), "t-suspect", others, (one) => one.rank, (node, one) => {
    const step = one.step === null ? "no step yet" : `step ${count(one.step)}`;
    text(node, `rank ${one.rank} on ${hostOf(one.host)}: ${phaseOf(one.phase)} ${duration(one.seconds)}, ${step}`);
    attribute(node, "title", KINDS[one.kind] ?? one.kind);
  });
}

function drawStack(root, { stack, stack_rank: rank, stack_time: time }) {
  root.hidden = stack === null;
  if (stack === null) return;
  text(root.querySelector("summary"), `Stack of rank ${rank} at ${zonedTime(time)}`);
  text(root.querySelector("pre"), stack);
}
