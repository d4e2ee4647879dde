// One run: everything that the page says of it, from its document.
//
// In: api/v1/runs/NAME, and of a part of its time api/v1/runs/NAME/account. Out: text nodes, titles and widths. It
// computes no figure but what all restarts took together and differences of the API's figures: ratios are the API's,
// and percents are its GPU-seconds rounded so that they close to 100.0 as in `goodput report`.

import { facts } from "./facts.js";
import { figures, stateCost, stateTitle } from "./figures.js";
import { drawHang } from "./hang.js";
import { followHealth } from "./health.js";
import { $, ROWS, attribute, bar, field, keyed, paged, put, swatch, text } from "./nodes.js";
import { count, dollars, duration, gpuUnit, localSpan, percent, plural, tenths, tenthsText, times } from "./numbers.js";
import { drawRestarts } from "./restarts.js";
import { followRolling } from "./rolling.js";
import { drawStraggler } from "./straggler.js";
import { followTimeline } from "./timeline.js";
import { drawWaterfall } from "./waterfall.js";
import { FACTORS, MEANINGS, NO_FLOPS, STATUSES, statusOf } from "./words.js";

const SILENT_SECONDS = 30; // A living rank not reported for so long is marked.

const fresh = () => ({ run: null, part: null, window: null, why: "", filter: "", sort: "worst", shown: ROWS,
  restarts: { shown: 8 }, health: { shown: 8 } });
export const view = { name: null, ...fresh() };

export function openRun(name) {
  Object.assign(view, { name, ...fresh() });
  $("ranks-filter").value = "";
  $("ranks-sort").length = 2;
}

// The run, or of a part of its time the account of that with what the run does now.
const shown = ({ run, part }) => (part === null ? run :
  { ...run, ...part, status: run.status, hang: run.hang, live: run.live, windows: run.windows, errors: run.errors });

export function drawRun() {
  const run = shown(view);
  const head = $("run-head");
  const status = statusOf(run);
  put(head, { name: run.run, status, statusMeaning: STATUSES[status] ?? "" });
  attribute(field(head, "status"), "class", `status ${status in STATUSES ? status : ""}`);
  drawHang($("hang"), run);
  $("errors").hidden = run.errors.length === 0;
  keyed($("errors").querySelector("ul"), "t-error", run.errors, (error) => error, text);
  for (const node of document.querySelectorAll("[data-factor]")) drawFigure(node, run);
  keyed($("facts"), "t-fact", facts(run), ([name]) => name, (node, [name, value, title]) => {
    put(node, { name, value });
    attribute(node, "title", title ?? "");
  });
  drawPart();
  drawCause(run);
  drawStraggler(run);
  followHealth(view.run, view.health);
  drawWaterfall(run);
  followTimeline(view.run, view.window);
  drawAccount(run);
  keyed($("figures"), "t-figure", figures(run), ([name]) => name, (node, [name, value, detail, title]) => {
    put(node, { name, value, detail });
    attribute(node, "title", title);
    node.classList.toggle("unknown", value === "unknown");
  });
  drawRestarts(run, view.restarts);
  drawRanks(run);
  followRolling(view.run, view.sort);
}

// Says that a part of the run's time is shown, and what stands in the way where it cannot be.
function drawPart() {
  const { window, part, run, why } = view;
  $("part").hidden = window === null;
  if (window === null) return;
  const long = duration(window[1] - window[0]);
  text($("part-text"), part ? `Only ${localSpan(part.start, part.end)} is shown: ${duration(part.end - part.start)} of ` +
    `${duration(run.end - run.start)}.` : why ? `${why}: the whole run is shown until ${localSpan(...window)} can be.` :
    `Asking for ${localSpan(...window)} (${long}) …`);
}

export function orderBy(sort) {
  Object.assign(view, { sort, shown: ROWS });
  drawRun();
}

// The table of ranks with this one alone.
export function showRank(rank) {
  Object.assign(view, { filter: `rank ${rank}`, shown: ROWS });
  $("ranks-filter").value = view.filter;
  drawRun();
  $("h-ranks").scrollIntoView({ block: "start" });
  $("ranks-filter").focus({ preventScroll: true });
}

function drawFigure(node, run) {
  const factor = node.dataset.factor;
  const [name, meaning] = FACTORS[factor];
  const ratio = run.factors[factor];
  if (!node.firstElementChild) node.append(...["span", "strong", "small"].map((tag) => document.createElement(tag)));
  const [label, figure, small] = node.children;
  const unknown = ratio == null;
  text(label, name);
  text(figure, percent(ratio));
  const why = run.errors.length ? "above 100 %, which cannot be: see the top" : NO_FLOPS;
  const { hfu } = run.factors;
  const more = factor === "mfu" && hfu !== null ? `; HFU ${percent(hfu)}` : "";
  text(small, "brief" in node.dataset ? "" : unknown && /mfu|compute/.test(factor) ? why : meaning + more);
  node.classList.toggle("unknown", unknown);
  attribute(node, "title", `${name}: ${meaning} (${run.basis[factor]})`);
}

// What nobody saw may have been useful, so no gain is promised for it.
const gain = (cause) => (cause.state === "unobserved" || cause.gain == null ? "" : times(cause.gain));

// One sentence on why the GPUs wait, and what to do, first on the page.
function drawCause(run) {
  const [first, ...others] = run.causes;
  const root = $("cause");
  field(root, "swatch").hidden = !first;
  swatch(field(root, "swatch"), first?.state);
  put(root, { sentence: sentence(run, first), doing: first ? "What to do: " : "" });
  if (first) {
    const faster = gain(first) ? `Without it the run would be at most ${gain(first)} as fast. ` : "";
    const spent = run.cost === null ? "" : `It has cost ${stateCost(run, first.state)} so far.`;
    put(root, { state: first.state, share: `${percent(first.share)} of all GPU time`, advice: first.advice,
      gain: faster + spent });
  } else put(root, { state: "none", share: "", advice: "All GPU time was productive.", gain: "" });
  $("causes").hidden = others.length === 0;
  text($("causes").querySelector("summary"), `${plural(others.length, "other cause")} and advice`);
  keyed($("causes").querySelector("dl"), "t-cause", others, (cause) => cause.state, (node, cause) => {
    swatch(field(node, "swatch"), cause.state);
    put(node, { state: `${cause.state}, ${percent(cause.share)}`, advice: cause.advice });
  });
}

function sentence(run, first) {
  if (run.factors.goodput === null) return "No GPU time was allocated yet.";
  if (!first) return "The GPUs did not wait.";
  const waste = percent(1 - run.factors.goodput);
  const { culprit } = run.straggler;
  const host = run.ranks.find((rank) => rank.rank === culprit)?.host;
  const who = culprit !== null && first.state === "straggler" ? `, rank ${culprit} on ${host || "an unnamed host"}` : "";
  // What a state is reads on from the state before it; here it stands alone.
  const what = (MEANINGS[first.state] ?? "").split(": ").at(-1);
  return `${waste} of the GPU time was not productive. The largest part of it, ${percent(first.share)} of all, went to ` +
    `${first.state}: ${what}${who}.`;
}

function drawAccount(run) {
  const unit = gpuUnit(run.gpu_seconds);
  const threshold = duration(run.stall_threshold_seconds);
  const shares = tenths(Object.values(run.states));
  const rows = Object.entries(run.states).map(([state, seconds], i) => ({ state, seconds, share: shares[i] }));
  bar($("account-bar"), run.states, "time account", view.sort);
  keyed($("account-rows"), "t-state", rows.filter((row) => row.seconds > 0), (row) => row.state, (node, row) => {
    const cause = run.causes.find((one) => one.state === row.state);
    swatch(field(node, "swatch"), row.state);
    put(node, { state: row.state, seconds: unit.text(row.seconds), percent: tenthsText(row.share),
      cost: stateCost(run, row.state), gain: cause ? gain(cause) : "",
      meaning: (MEANINGS[row.state] ?? "") + (row.state === "stall" ? ` (over ${threshold})` : "") +
        (run.basis[row.state] === "estimated" ? " (an estimate)" : "") });
    attribute(field(node, "seconds"), "title", stateTitle(run, row.state, row.seconds));
    const button = node.querySelector("button");
    button.dataset.state = row.state;
    attribute(button, "aria-pressed", String(view.sort === row.state));
    attribute(button, "title", "Mark this state in all bars, and order the ranks by it");
  });
  const closed = shares.reduce((sum, share) => sum + share, 0);
  text($("unit"), unit.name);
  put($("account-total"), { total: unit.text(run.gpu_seconds), percent: tenthsText(closed),
    cost: dollars(run.cost?.total, run.cost?.total) });
  $("run").classList.toggle("unpriced", run.cost === null);
}

// ---- Ranks --------------------------------------------------------------------------------------------------

// A rank with what it does now, in words, and how much it deserves to be looked at.
function rankRow(rank, live, run) {
  const total = Object.values(rank.states).reduce((sum, seconds) => sum + seconds, 0);
  const share = (state) => (total > 0 ? (rank.states[state] ?? 0) / total : 0);
  const slow = rank.rank === run.straggler.culprit;
  const row = { ...rank, share, slow: slow ? "slow" : "", ...doing(live) };
  return { ...row, trouble: Math.max(row.trouble, slow ? 1 : 0) };
}

function doing(live) {
  if (!live) return { trouble: 3, tag: "never seen", now: "no report yet" };
  const step = live.step === null ? "no step yet" : `step ${live.step}`;
  if (!live.alive) return { trouble: live.ended === "finished" || live.ended === "cancelled" ? 0 : 3, tag: live.ended, now: step };
  const phase = live.phase === "none" ? "in no phase" : live.phase;
  const age = live.report_age_seconds;
  if (age > SILENT_SECONDS) return { trouble: 2, tag: "silent", now: `${phase}, seen ${duration(age)} ago · ${step}` };
  return { trouble: 0, tag: "alive", now: `${phase} ${duration(live.phase_seconds)} · ${step}` };
}

function rankRows(run) {
  const live = new Map(run.live.map((one) => [one.rank, one]));
  const words = view.filter.trim().toLowerCase();
  const rows = run.ranks.map((rank) => rankRow(rank, live.get(rank.rank), run)).filter((row) =>
    words === String(row.rank) || `rank ${row.rank}` === words ||
    [row.host, row.slow, row.tag, row.now].some((value) => value.toLowerCase().includes(words)));
  // In half percents, so that rows which differ by nothing do not change places at every refresh.
  const half = (row, state) => Math.round(200 * row.share(state));
  if (view.sort === "worst") rows.sort((a, b) =>
    b.trouble - a.trouble || half(a, "productive") - half(b, "productive") || a.rank - b.rank);
  else if (view.sort !== "rank") rows.sort((a, b) => half(b, view.sort) - half(a, view.sort) || a.rank - b.rank);
  return rows;
}

function drawRanks(run) {
  const rows = rankRows(run);
  drawOrders(run);
  text($("ranks-count"), rows.length < run.ranks.length ? `${count(rows.length)} of ${plural(run.ranks.length, "rank")}`
    : plural(rows.length, "rank"));
  keyed($("rank-rows"), "t-rank", paged(rows, view, $("ranks-more"), "ranks"), (row) => row.rank, (node, row) => {
    put(node, { rank: row.rank, host: row.host || "unknown", productive: percent(row.share("productive")),
      kept: count(row.steps.kept), lost: count(row.steps.lost), slow: row.slow, tag: row.tag, now: row.now });
    attribute(field(node, "host"), "title", row.host);
    attribute(field(node, "tag"), "class", `tag ${row.tag.replace(" ", "-")}`);
    bar(node.querySelector(".bar"), row.states, `rank ${row.rank}`, view.sort);
  });
}

function drawOrders(run) {
  const wanted = ["worst", "rank", ...Object.keys(run.states).filter((state) => run.states[state] > 0)];
  const select = $("ranks-sort");
  const missing = wanted.filter((value) => ![...select.options].some((option) => option.value === value));
  for (const state of missing) select.add(new Option(`most ${state}`, state));
  if (select.value !== view.sort) select.value = view.sort;
}
