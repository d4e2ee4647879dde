// The slow rank: which rank the others wait for, since when, and how much of the waiting each rank, host and stage causes.

import { $, attribute, field, keyed, put, text, width } from "../dom/nodes.js";
import { linkedText, putLinked } from "../dom/rank_links.js";
import { compact, count, duration, percent, plural, times } from "../text/numbers.js";
import { MEANINGS } from "../text/states.js";

const RANKS_SHOWN = 4;
const PLACES_SHOWN = 2;
const STRETCHES_SHOWN = 20;

export function drawStraggler(run) {
  const { culprit, because, slowdown, culprit_stage: stage = null } = run.straggler;
  const { because_phase: phase = null, stage_because_phase: stagePhase = null, slow_issue: slow = null, slow_link: link = null } =
    run.straggler;
  const host = run.ranks.find((rank) => rank.rank === culprit)?.host;
  const named = shares(run);
  $("straggler").hidden = culprit === null && stage === null && slow === null && link === null && run.straggler.onsets.length === 0;
  $("why").classList.toggle("alone", $("straggler").hidden);
  putLinked($("straggler"), culprit === null && stage !== null
    ? { culprit: `stage ${stage}`, host: "", because: moreWork(stagePhase) }
    : culprit === null && slow !== null
    ? { culprit: `rank ${slow.rank}`, host: `on ${slow.host || "an unnamed host"}`, because: slowCalls("It", slow) }
    : culprit === null && link !== null
    ? { culprit: `rank ${link.rank}`, host: `on ${link.host || "an unnamed host"}`, because: slowLink(link) }
    : culprit === null
    ? { culprit: slowdown === null ? "unknown" : "none", host: "", because: slowdown === null
        ? "No step was reported by two ranks of a group."
        : "No single rank is slow: none exceeds the median of its group by 2 % and explains the waiting." }
    : { culprit: `rank ${culprit}`, host: `on ${host || "an unnamed host"}`,
        because: `It spends more time in ${because}${MEANINGS[because] ? ` (${MEANINGS[because]})` : ""}` +
          `${phase === null || phase === because ? "" : `, mostly in ${phase},`} ` +
          `than the median of its group${since(run.straggler)}.${stage === null ? "" : ` Stage ${stage} is slow too.`}` +
          (slow === null ? "" : ` ${slowCalls(slow.rank === culprit ? "It" : `Rank ${slow.rank}`, slow)}`) +
          (link === null ? "" : ` ${slowLink(link)}`) }, run.run);
  text(field($("straggler"), "slowdown"), slowdown === null ? "" :
    `The run is ${times(slowdown)} slower than with the same work spread evenly.`);
  keyed($("shares"), "t-share", named, (share) => share.name, (node, { name, share, title, apart }) => {
    put(node, { share: percent(share) });
    putLinked(node, { name }, run.run);
    attribute(node, "title", `${title} caused ${percent(share)} of the waiting`);
    node.classList.toggle("apart", apart);
    width(field(node, "meter"), share);
  });
  drawStretches(run.straggler.onsets, run.run);
}

function slowCalls(who, { operation, group, seconds, usual_seconds: usual }) {
  return `${who} takes ${duration(seconds)} a step to start ${operation} in ${group}, others ${duration(usual)}: ` +
    "all ranks wait while it does.";
}

function slowLink(link) {
  const receiver = link.receiver === null ? "a rank" : `rank ${link.receiver}`;
  const to = `${receiver} on ${link.receiver_host || "an unnamed host"} (${link.receiver_address})`;
  return `The link of rank ${link.rank} (${link.address}) is slow: rank ${link.sender} sends ${to} ` +
    `${compact(link.bytes_per_second, "B/s")} while it has data to send, ${percent(link.busy_share)} of the time; other links carry ` +
    `${compact(link.usual_bytes_per_second, "B/s")}. ${percent(link.retransmitted_share)} of the segments were sent again, the round ` +
    `trip takes ${duration(link.rtt_seconds)}.`;
}

function moreWork(phase) {
  return `It has more work than the other stages of the pipeline${phase === null ? "" : `, mostly in ${phase}`}: ` +
    "move layers from it to other stages.";
}

function since({ since_step: step, since_start: fromStart }) {
  if (step === null) return "";
  return fromStart ? ", from the start" : `, since step ${step}`;
}

// Hosts and stages are left out where they repeat what the ranks show.
function shares({ straggler, ranks, pipeline }) {
  const hosts = new Set(ranks.map((rank) => rank.host)).size;
  const row = (name, share, i, title = name) => ({ name, share, title, apart: i === 0 });
  const places = (list, what) => list.slice(0, PLACES_SHOWN).map((place, i) =>
    row(`${what} ${place[what]}`, place.share, i, `all ranks of ${what} ${place[what]} together`));
  return [
    ...(straggler.culprit === null ? [] : straggler.shares.slice(0, RANKS_SHOWN)
      .map((share) => row(`rank ${share.rank}`, share.share, 1, `rank ${share.rank} on ${share.host}`))),
    ...(hosts > 1 && hosts < ranks.length ? places(straggler.hosts, "host") : []),
    ...(pipeline ? places(straggler.stages, "stage") : []),
  ];
}

// The stretches of steps in which a rank was slow: those that go on, then the newest.
function drawStretches(onsets, run) {
  const details = $("stretches");
  details.hidden = onsets.length === 0;
  if (details.hidden) return;
  const newest = [...onsets].sort((a, b) => (a.last_step !== null) - (b.last_step !== null) ||
    b.first_step - a.first_step || a.rank - b.rank);
  text(details.querySelector("summary"), `${plural(onsets.length, "stretch").replace("chs", "ches")} of slow steps` +
    (onsets.length > STRETCHES_SHOWN ? `, ${STRETCHES_SHOWN} shown` : ""));
  keyed(details.querySelector("ul"), "t-item", newest.slice(0, STRETCHES_SHOWN),
    (one) => `${one.rank} ${one.attempt} ${one.first_step}`, (node, { rank, first_step: first, last_step: last, from_start: fromStart }) => {
      const until = last === null ? "" : ` until step ${count(last)}`;
      linkedText(node, `rank ${rank}: ${fromStart ? `from the start${until}` : last === null ? `since step ${count(first)}`
        : `steps ${count(first)} to ${count(last)}`}`, run);
    });
}
