// The table of ranks: one bar per rank, filtered and ordered, with what a live rank is doing now. More than GROUPED_FROM
// ranks are one row per host until the user filters them or opens a host.

import { isLive } from "../data/source.js";
import { $, attribute, bar, field, make, paged, put, text } from "../dom/nodes.js";
import { linkedText } from "../dom/rank_links.js";
import { Table, stateBar } from "../dom/table.js";
import { rankAddress, runAddress } from "../text/addresses.js";
import { count, duration, percent, plural } from "../text/numbers.js";

const GROUPED_FROM = 64;
const SILENT_SECONDS = 30; // A living rank without a report for so long is marked.
let [run, marked] = [null, null];

const COLUMNS = [
  { name: "rank", head: "Rank", class: "n", build: () => [make("a", { class: "rank" })], draw: drawNumber },
  { name: "host", head: "Host", draw: drawHost,
    build: () => [make("span", { "data-f": "host" }), " ", make("span", { class: "tag slow", "data-f": "slow" })] },
  { name: "stage", head: "Stage", title: "Of the pipeline", build: () => [], draw: drawStage },
  { name: "role", head: "Role", value: (row) => row.role ?? "" },
  { name: "states", head: "Time by state", class: "wide", build: stateBar,
    draw: (cell, row) => bar(cell.firstElementChild, row.states, row.rank === undefined ? `host ${row.host}` : `rank ${row.rank}`, run, marked) },
  { name: "caused", head: "Waiting caused", class: "n", title: "Of the time in which ranks waited for slower ones, the part in which they waited for this one",
    value: causedText },
  { name: "productive", head: "Productive", class: "n", value: (row) => percent(row.goodput) },
  { name: "steps", head: "Steps kept / lost", class: "n", value: ({ steps }) => `${count(steps.kept)} / ${count(steps.lost)}` },
  { name: "now", head: "Now, last step", title: "The phase it is in, for how long, and the last step it completed", live: true,
    build: () => [make("span", { class: "tag", "data-f": "tag" }), " ", make("span", { "data-f": "now" })], draw: drawNow },
];
const table = new Table($("ranks-table"), "rank-rows", COLUMNS);

export function drawRanks(shownRun, view) {
  [run, marked] = [shownRun, view.sort];
  $("run").classList.toggle("no-stages", run.ranks.every((rank) => (rank.stage ?? null) === null));
  const rows = filtered(run, view);
  drawOrders(run, view.sort);
  text($("ranks-count"), summary(run, rows));
  const hosts = view.filter.trim() === "" && run.ranks.length > GROUPED_FROM ? byHost(rows) : rows;
  const grouped = hosts.length < rows.length;
  table.setHead("rank", grouped ? "Ranks" : "Rank");
  table.draw(paged(grouped ? hosts : rows, view, $("ranks-more"), grouped ? "hosts" : "ranks"),
    (row) => (row.rank === undefined ? `host ${row.host}` : row.rank));
}

// A rank's number with its page, or a host's number of ranks, which opens them (see main.js).
function drawNumber(cell, { rank, ranks, host }) {
  const link = cell.firstElementChild;
  text(link, rank ?? plural(ranks, "rank"));
  attribute(link, "href", rank === undefined ? runAddress(run.run) : rankAddress(run.run, rank));
  if (rank === undefined) attribute(link, "data-host", host);
}

// One row for each host, in the order of the first of its ranks.
function byHost(rows) {
  const hosts = new Map();
  for (const row of rows) hosts.set(row.host, [...(hosts.get(row.host) ?? []), row]);
  return [...hosts.values()].map((there) => (there.length === 1 ? there[0] : hostRow(there)));
}

function hostRow(there) {
  const [{ host }] = there;
  const sum = (of) => there.reduce((total, row) => total + of(row), 0);
  const states = {};
  for (const row of there) {
    for (const [state, seconds] of Object.entries(row.states)) states[state] = (states[state] ?? 0) + seconds;
  }
  const tags = new Map();
  for (const { tag } of there) if (tag) tags.set(tag, (tags.get(tag) ?? 0) + 1);
  const slow = there.find((row) => row.slow);
  const stages = new Set(there.map((row) => row.stage));
  const [worst] = there.filter((row) => row.urgency > 0);
  const known = there.filter((row) => row.goodput !== null);
  return { host, states, ranks: there.length, role: "", stage: stages.size === 1 ? there[0].stage : null,
    caused: there[0].caused === null ? null : sum((row) => row.caused), stageCaused: there[0].stageCaused, slow: slow ? (slow.slow === "slow" ? `rank ${slow.rank} slow` : slow.slow) : "", tag: worst?.tag ?? there[0].tag,
    now: [...tags].map(([tag, number]) => `${plural(number, "rank")} ${tag}`).join(", "),
    goodput: known.length ? shareOf({ states })("productive") : null,
    steps: { kept: sum((row) => row.steps.kept), lost: sum((row) => row.steps.lost) } };
}

function drawHost(cell, row) {
  put(cell, { host: row.host || "unknown", slow: row.slow });
  attribute(cell, "title", row.host);
}

// What others waited for a rank, and for all of its stage.
export const waiting = ({ caused, stageCaused }) => (caused ?? 0) + stageCaused;

function causedText({ caused, stageCaused }) {
  if (caused === null) return "unknown";
  return stageCaused > 0 ? `${percent(caused)}, its stage ${percent(stageCaused)}` : percent(caused);
}

function drawStage(cell, { stage }) {
  linkedText(cell, stage === null ? "" : `stage ${stage}`, run.run);
}

function drawNow(cell, row) {
  put(cell, { tag: row.tag, now: row.now });
  attribute(field(cell, "tag"), "class", `tag ${row.tag.replace(" ", "-")}`);
}

const totalOf = ({ states }) => Object.values(states).reduce((sum, seconds) => sum + seconds, 0);

// The share of a state in a rank's time, as a function of the state.
export function shareOf(rank) {
  const total = totalOf(rank);
  return (state) => (total > 0 ? (rank.states[state] ?? 0) / total : 0);
}

// A rank with its shares of time, what it does now, and how urgently it needs attention.
function rowOf(rank, live, run) {
  const [total, share] = [totalOf(rank), shareOf(rank)];
  // The work of a rank without any report is unknown, not 0.
  const goodput = total > (rank.states.unobserved ?? 0) ? share("productive") : null;
  const slow = rank.rank === run.straggler.culprit;
  const isSlowStage = run.straggler.culprit_stage != null && rank.stage === run.straggler.culprit_stage;
  const row = { ...rank, stage: rank.stage ?? null, share, goodput, slow: slow ? "slow" : isSlowStage ? "slow stage" : "", ...activity(live) };
  return { ...row, urgency: Math.max(row.urgency, slow || isSlowStage ? 1 : 0) };
}

// What a rank does now, and how urgently it needs attention.
export function activity(live) {
  if (!isLive) return { urgency: 0, tag: "", now: "" };
  if (!live) return { urgency: 3, tag: "never seen", now: "no report yet" };
  const step = live.step === null ? "no step yet" : `step ${live.step}`;
  const ended = live.ended === "finished" || live.ended === "cancelled";
  if (!live.alive) return { urgency: ended ? 0 : 3, tag: live.ended, now: step };
  const phase = live.phase === "none" ? "in no phase" : live.phase;
  const age = live.report_age_seconds;
  if (age > SILENT_SECONDS) return { urgency: 2, tag: "silent", now: `${phase}, seen ${duration(age)} ago · ${step}` };
  return { urgency: 0, tag: "alive", now: `${phase} ${duration(live.phase_seconds)} · ${step}` };
}

// The ranks of a run with what the table shows of them, by number.
export function rankRows(run) {
  const live = new Map((run.live ?? []).map((one) => [one.rank, one]));
  const others = run.straggler.slowdown === null ? null : 0; // What nobody waited for has no share.
  const caused = new Map(run.straggler.shares.map((one) => [one.rank, one.share]));
  const byStage = new Map(run.straggler.stages.map((one) => [one.stage, one.share]));
  return new Map(run.ranks.map((rank) => [rank.rank, { ...rowOf(rank, live.get(rank.rank), run),
    caused: caused.get(rank.rank) ?? others, stageCaused: byStage.get(rank.stage) ?? 0 }]));
}

function filtered(run, view) {
  const words = view.filter.trim().toLowerCase();
  const isStage = /^stage \d+$/.test(words);
  const rows = [...rankRows(run).values()].filter((row) => isStage ? `stage ${row.stage}` === words :
    words === String(row.rank) || `rank ${row.rank}` === words || `host ${row.host}`.toLowerCase() === words ||
    [row.host, row.role ?? "", row.slow, row.tag, row.now].some((value) => value.toLowerCase().includes(words)));
  // In half percents, so that rows which hardly differ do not change places at every refresh.
  const halves = (share) => Math.round(200 * share);
  const half = (row, state) => halves(row.share(state));
  if (view.sort === "worst") rows.sort((a, b) =>
    b.urgency - a.urgency || (b.goodput === null) - (a.goodput === null) || halves(waiting(b)) - halves(waiting(a)) ||
    half(a, "productive") - half(b, "productive") || a.rank - b.rank);
  else if (view.sort !== "rank") rows.sort((a, b) => half(b, view.sort) - half(a, view.sort) || a.rank - b.rank);
  return rows;
}

// How many ranks are listed, and the spread of their goodput.
function summary(run, rows) {
  if (rows.length < run.ranks.length) return `${count(rows.length)} of ${plural(run.ranks.length, "rank")}`;
  const known = rows.map((row) => row.goodput).filter((goodput) => goodput !== null).sort((a, b) => a - b);
  const left = run.left_out?.ranks ?? 0;
  const unseen = (run.unseen_ranks ?? []).reduce((sum, range) => sum + range.ranks, 0);
  const all = (left ? `The ${count(rows.length)} ranks with the lowest goodput, of ${count(rows.length + left)}`
    : plural(rows.length, "rank")) + (unseen ? `, and ${count(unseen)} more that never reported` : "");
  if (known.length < 2) return all;
  const median = (known[Math.floor((known.length - 1) / 2)] + known[Math.floor(known.length / 2)]) / 2;
  return `${all}; goodput ${percent(known[0])} to ${percent(known.at(-1))}, median ${percent(median)}`;
}

function drawOrders(run, sort) {
  const orders = ["worst", "rank", ...Object.keys(run.states).filter((state) => run.states[state] > 0)];
  const select = $("ranks-sort");
  const missing = orders.filter((value) => ![...select.options].some((option) => option.value === value));
  for (const state of missing) select.add(new Option(`most ${state}`, state));
  if (select.value !== sort) select.value = sort;
}
