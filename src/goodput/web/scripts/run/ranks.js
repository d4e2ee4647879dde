// The table of ranks: one bar per rank, filtered and ordered, with what a live rank is doing now.

import { isLive } from "../data/source.js";
import { $, attribute, bar, field, make, paged, put, text } from "../dom/nodes.js";
import { Table, stateBar } from "../dom/table.js";
import { count, duration, percent, plural } from "../text/numbers.js";

const SILENT_SECONDS = 30; // A living rank without a report for so long is marked.
let marked = null;

const COLUMNS = [
  { name: "rank", head: "Rank", class: "n", value: (row) => row.rank },
  { name: "host", head: "Host", draw: drawHost,
    build: () => [make("span", { "data-f": "host" }), " ", make("span", { class: "tag slow", "data-f": "slow" })] },
  { name: "role", head: "Role", value: (row) => row.role ?? "" },
  { name: "states", head: "Time by state", class: "wide", build: stateBar,
    draw: (cell, row) => bar(cell.firstElementChild, row.states, `rank ${row.rank}`, marked) },
  { name: "productive", head: "Productive", class: "n", value: (row) => percent(row.goodput) },
  { name: "steps", head: "Steps kept / lost", class: "n", value: (row) => `${count(row.steps.kept)} / ${count(row.steps.lost)}` },
  { name: "now", head: "Now, last step", title: "The phase it is in, for how long, and the last step it completed", live: true,
    build: () => [make("span", { class: "tag", "data-f": "tag" }), " ", make("span", { "data-f": "now" })], draw: drawNow },
];
const table = new Table($("ranks-table"), "rank-rows", COLUMNS);

export function drawRanks(run, view) {
  marked = view.sort;
  const rows = filtered(run, view);
  drawOrders(run, view.sort);
  text($("ranks-count"), summary(run, rows));
  table.draw(paged(rows, view, $("ranks-more"), "ranks"), (row) => row.rank);
}

function drawHost(cell, row) {
  put(cell, { host: row.host || "unknown", slow: row.slow });
  attribute(cell, "title", row.host);
}

function drawNow(cell, row) {
  put(cell, { tag: row.tag, now: row.now });
  attribute(field(cell, "tag"), "class", `tag ${row.tag.replace(" ", "-")}`);
}

// A rank with its shares of time, what it does now, and how urgently it needs attention.
function rowOf(rank, live, run) {
  const total = Object.values(rank.states).reduce((sum, seconds) => sum + seconds, 0);
  const share = (state) => (total > 0 ? (rank.states[state] ?? 0) / total : 0);
  // The work of a rank without any report is unknown, not 0.
  const goodput = total > (rank.states.unobserved ?? 0) ? share("productive") : null;
  const slow = rank.rank === run.straggler.culprit;
  const row = { ...rank, share, goodput, slow: slow ? "slow" : "", ...activity(live) };
  return { ...row, urgency: Math.max(row.urgency, slow ? 1 : 0) };
}

function activity(live) {
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

function filtered(run, view) {
  const live = new Map((run.live ?? []).map((one) => [one.rank, one]));
  const words = view.filter.trim().toLowerCase();
  const rows = run.ranks.map((rank) => rowOf(rank, live.get(rank.rank), run)).filter((row) =>
    words === String(row.rank) || `rank ${row.rank}` === words ||
    [row.host, row.role ?? "", row.slow, row.tag, row.now].some((value) => value.toLowerCase().includes(words)));
  // In half percents, so that rows which hardly differ do not change places at every refresh.
  const half = (row, state) => Math.round(200 * row.share(state));
  if (view.sort === "worst") rows.sort((a, b) =>
    b.urgency - a.urgency || (b.goodput === null) - (a.goodput === null) ||
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
