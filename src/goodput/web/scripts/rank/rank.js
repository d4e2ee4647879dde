// The page of one rank of a run: its own time against the median of its group, its states, its node, GPU and stack.

import { putLinked, rankLink } from "../dom/rank_links.js";
import { $, attribute, bar, field, keyed, put, text } from "../dom/nodes.js";
import { Poll } from "../data/poll.js";
import { runPath } from "../data/api.js";
import { isLive } from "../data/source.js";
import { activity, shareOf } from "../run/ranks.js";
import { runAddress } from "../text/addresses.js";
import { count, duration, percent, plural, stepTime, times } from "../text/numbers.js";
import { nameText } from "../text/states.js";
import { zonedTime } from "../text/time.js";
import { drawBoards } from "../data/grafana.js";
import { drawOwnTime } from "./own_time.js";
import { closePhases, declaredOf, followPhases } from "./phases.js";
import { drawRankStates } from "./states.js";

const EVERY_MS = 20_000;
const TIMEOUT_MS = 130_000;
const NEIGHBOURS_SHOWN = 16;
const fresh = (run) => ({ run, heat: undefined, events: [], end: null,
  timeline: new Poll(EVERY_MS, TIMEOUT_MS), health: new Poll(EVERY_MS, TIMEOUT_MS) });
let state = fresh(null);

// Call at each refresh.
export function drawRank(run, number) {
  if (state.run !== run.run) {
    closeRank();
    state = fresh(run.run);
  }
  follow(run, number);
  draw(run, number);
}

export function closeRank() {
  closePhases();
  state.timeline.stop();
  state.health.stop();
  state = fresh(null);
}

function follow(run, number) {
  followPhases(run, number, () => draw(run, number));
  const then = (apply) => (answer) => {
    if (answer) apply(answer);
    draw(run, number);
  };
  if (state.end !== run.end) {
    state.timeline.request(runPath(run.run, "timeline"), then((answer) => Object.assign(state, { heat: answer.heat, end: run.end })));
  }
  if (isLive) state.health.request(runPath(run.run, "health", "limit=1000"), then((answer) => { state.events = answer.events; }));
}

function draw(run, number) {
  const rank = run.ranks.find((one) => one.rank === number);
  const root = $("rank");
  put(root, { name: `Rank ${number}`, run: nameText(run.run) });
  attribute(field(root, "run"), "href", runAddress(run.run));
  $("rank-missing").hidden = rank !== undefined;
  $("rank-body").hidden = rank === undefined;
  text($("rank-missing"), `No account of a rank ${number} is here: the run has ${plural(run.world_size, "rank")}.`);
  text(field(root, "tag"), "");
  if (rank === undefined) return;
  const live = (run.live ?? []).find((one) => one.rank === number);
  const now = activity(live);
  put(root, { tag: now.tag, host: `on ${rank.host || "an unnamed host"}${rank.role ? `, role ${rank.role}` : ""}` });
  attribute(field(root, "tag"), "class", `tag ${now.tag.replace(" ", "-")}`);
  const group = run.ranks.filter((one) => (one.role ?? "") === (rank.role ?? ""));
  keyed($("rank-tiles"), "t-figure", tiles(run, rank, live, now), ([name]) => name, (node, [name, value, detail]) => {
    put(node, { name, value, detail });
    node.classList.toggle("unknown", value === "unknown");
  });
  drawOwnTime(state.heat, number, state.timeline.error);
  bar($("rank-bar"), rank.states, `rank ${number}`, run);
  drawRankStates(rank, group);
  drawNode(run, rank, live);
  drawStack(run, number);
  drawBoards($("rank-boards"), run, [["Grafana: this rank", "goodput-rank", { rank: number }], ["Grafana: its node", "goodput-node", rank.host ? { node: rank.host } : {}]]);
}

function tiles(run, rank, live, now) {
  const share = shareOf(rank);
  const caused = run.straggler.shares.find((one) => one.rank === rank.rank);
  const own = ownTime(rank.rank);
  return [
    ["productive", percent(share("productive")), `${count(rank.steps.kept)} steps kept, ${count(rank.steps.lost)} lost`],
    ["own time per step", own === null ? "unknown" : times(own.ratio), own === null ? "not among those that stand out"
      : `${stepTime(own.seconds)} against ${stepTime(own.median)}, the median`],
    ["waiting that it caused", caused ? percent(caused.share) : run.straggler.slowdown === null ? "unknown" : "0.0 %",
      "share of the time in which others waited for a slower rank"],
    ...(live ? [["last step", live.step === null ? "none" : count(live.step), now.now]] : []),
    ...(run.is_on_cpu ? [] : live ? [
      ["GPU", live.gpu_activity === null ? "unknown" : `${percent(live.gpu_activity)} active`,
        live.gpu_watts === null ? plural(rank.devices, "device") : `${count(live.gpu_watts)} W, ${plural(rank.devices, "device")}`]]
      : [["GPU", plural(rank.devices, "device"), "allocated to this rank"]]),
  ];
}

// Mean own time per step over the columns in which the rank and the median are known.
function ownTime(number) {
  const own = state.heat?.ranks.find((one) => one.rank === number)?.own_seconds;
  const known = (own ?? []).map((seconds, i) => [seconds, state.heat.median[i]]).filter(([a, b]) => a !== null && b);
  if (known.length === 0) return null;
  const mean = (of) => known.reduce((sum, pair) => sum + pair[of], 0) / known.length;
  return { seconds: mean(0), median: mean(1), ratio: mean(0) / mean(1) };
}

function drawNode(run, rank, live) {
  const others = run.ranks.filter((one) => one.host === rank.host && one.rank !== rank.rank);
  text($("rank-host"), rank.host || "unnamed");
  drawGpu(run, rank);
  text($("rank-seen"), !live ? "" : live.alive ? `Its last report is ${duration(live.report_age_seconds)} old.`
    : `Its process has ended: ${live.ended || "unknown why"}.`);
  text($("rank-alone"), others.length === 0 ? "No other rank of this run is on it." : "");
  keyed($("rank-neighbours"), "t-item", others.slice(0, NEIGHBOURS_SHOWN), (one) => one.rank, (node, one) => {
    if (!node.firstElementChild) node.append(rankLink(run.run, one.rank, `rank ${one.rank}`), document.createElement("span"));
    text(node.lastElementChild, ` ${percent(shareOf(one)("productive"))} productive`);
  });
  const events = state.events.filter((event) => event.hits.some((hit) => hit.rank === rank.rank)).slice(0, NEIGHBOURS_SHOWN);
  $("rank-no-events").hidden = events.length > 0 || !isLive;
  keyed($("rank-events"), "t-item", events, (event) => `${event.node} ${event.number}`, (node, event) => {
    const what = [event.kind.replaceAll("_", " "), event.code || "", event.name].filter(Boolean).join(" ");
    text(node, `${zonedTime(event.time)}: ${event.severity}, ${what}${event.device ? `, ${event.device}` : ""}`);
  });
}

// The GPU and the stage, each where it is known.
function drawGpu(run, rank) {
  const { device = "", device_uuid: uuid = "" } = declaredOf() ?? {};
  const stage = rank.stage ?? null;
  const facts = [
    [run.is_on_cpu ? "Device" : "GPU", device], [run.is_on_cpu ? "Device's UUID" : "GPU's UUID", uuid],
    ["Pipeline stage", stage === null ? "" : `stage ${stage}`], ["Role", rank.role ?? ""],
  ].filter(([, value]) => value !== "");
  keyed($("rank-gpu"), "t-fact", facts, ([name]) => name, (node, [name, value]) => {
    put(node, { name });
    putLinked(node, { value }, run.run);
  });
}

// The stack taken while the run hangs, else the lines at which it was sampled outside of phases.
function drawStack(run, number) {
  const { stack = null, stack_rank: of = null, stack_time: time } = run.hang ?? {};
  const sampled = run.stack_samples?.ranks.find((one) => one.rank === number);
  const hung = stack !== null && of === number;
  $("rank-stack").hidden = !hung && !sampled;
  text($("rank-stack-when"), hung ? `At ${zonedTime(time)}.` : sampled
    ? sampled.reason ?? `In no phase, ${plural(sampled.samples, "sample")}:` : "");
  text($("rank-stack-text"), hung ? stack : (sampled?.places ?? []).map((one) => `${percent(one.share)}  ${one.place}`).join("\n"));
  $("rank-stack-text").hidden = $("rank-stack-text").textContent === "";
}
