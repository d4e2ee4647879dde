// The built-in page: polls the JSON API and writes what it says into page.html.
//
// In: api/v1/runs and api/v1/runs/NAME, the address (#run=NAME, #runs); rolling.js asks for a run's last minutes and
// hours besides. Out: text nodes, titles and widths.
// Every name comes from outside, so nothing is ever written as HTML. Nodes are kept by key and only changed where
// the text differs, so focus, selection and scrolling survive a refresh. It computes no figure but what all restarts
// took together: ratios are the API's, and percents are its GPU-seconds rounded so that they close to 100.0 as in
// `goodput report`.

import { facts } from "./facts.js";
import { figures, stateCost, stateTitle } from "./figures.js";
import { drawHang } from "./hang.js";
import { followHealth, followNodes } from "./health.js";
import { $, ROWS, attribute, bar, field, keyed, paged, put, showTime, swatch, text, width } from "./nodes.js";
import { count, dollars, duration, gpuUnit, percent, plural, tenths, tenthsText, times } from "./numbers.js";
import { drawRestarts } from "./restarts.js";
import { closeRolling, followRolling } from "./rolling.js";
import { drawStraggler } from "./straggler.js";
import { FACTORS, MEANINGS, NO_FLOPS, STATUSES } from "./words.js";

const POLL_MS = 2000;
const POLL_MS_MAX = 10_000;
const ANSWER_MS_MAX = 8000;
const LIST_EVERY = 5; // Polls between two looks at the list of runs while one run is shown.
const SILENT_SECONDS = 30; // A living rank not reported for so long is marked.

// ---- The list of runs ---------------------------------------------------------------------------------------

const list = { runs: [], filter: "", shown: ROWS };

function drawRuns() {
  const words = list.filter.toLowerCase();
  const rows = list.runs.filter((run) =>
    [run.run, run.hang ? "hangs" : run.status, run.leading_cause ?? ""].some((value) => value.toLowerCase().includes(words)));
  text($("runs-count"), rows.length < list.runs.length ? `${count(rows.length)} of ${plural(list.runs.length, "run")}`
    : plural(rows.length, "run"));
  keyed($("runs-rows"), "t-run", paged(rows, list, $("runs-more"), "runs"), (run) => run.run, drawRunRow);
}

function drawRunRow(row, run) {
  put(row, {
    name: run.run, status: run.hang ? "hangs" : run.status, goodput: percent(run.goodput), mfu: percent(run.mfu),
    cause: run.leading_cause ?? "none", ranks: count(run.world_size), restarts: count(run.restarts),
    duration: duration(run.end - run.start),
  });
  attribute(field(row, "name"), "href", `#run=${encodeURIComponent(run.run)}`);
  attribute(field(row, "status"), "class", `status ${run.hang ? "hangs" : run.status in STATUSES ? run.status : ""}`);
  swatch(field(row, "swatch"), run.leading_cause ?? "none");
  field(row, "swatch").hidden = run.leading_cause === null;
  width(field(row, "meter"), run.goodput ?? 0);
  showTime(field(row, "start"), run.start);
}

// ---- One run ------------------------------------------------------------------------------------------------

const view = { name: null, run: null, filter: "", sort: "worst", shown: ROWS, restarts: { shown: 8 },
  health: { shown: 8 } };

function drawRun() {
  const run = view.run;
  const head = $("run-head");
  put(head, { name: run.run, status: run.status, statusMeaning: STATUSES[run.status] ?? "" });
  attribute(field(head, "status"), "class", `status ${run.status in STATUSES ? run.status : ""}`);
  drawHang($("hang"), run);
  $("errors").hidden = run.errors.length === 0;
  keyed($("errors").querySelector("ul"), "t-error", run.errors, (error) => error, text);
  for (const node of document.querySelectorAll("[data-factor]")) drawFigure(node, run);
  keyed($("facts"), "t-fact", facts(run), ([name]) => name, (node, [name, value, title]) => {
    put(node, { name, value });
    attribute(node, "title", title ?? "");
  });
  drawCause(run);
  drawStraggler(run);
  followHealth(run, view.health);
  drawAccount(run);
  keyed($("figures"), "t-figure", figures(run), ([name]) => name, (node, [name, value, detail, title]) => {
    put(node, { name, value, detail });
    attribute(node, "title", title);
    node.classList.toggle("unknown", value === "unknown");
  });
  drawRestarts(run, view.restarts);
  drawRanks(run);
  followRolling(run, view.sort);
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

function drawCause(run) {
  const [first, ...others] = run.causes;
  const root = $("cause");
  field(root, "swatch").hidden = !first;
  swatch(field(root, "swatch"), first?.state);
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
  if (!live.alive) return { trouble: live.ended === "finished" ? 0 : 3, tag: live.ended, now: step };
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

// ---- The address, polling, and being honest about silence ----------------------------------------------------

const link = { goodAt: null, error: null, polls: 0, timer: null, abort: null };
const scrolls = { list: 0 };

// {run: NAME} for #run=NAME, else {list: true} for #runs, else {}: open the only run, or the list.
function route() {
  const found = /^#run=(.*)$/s.exec(location.hash);
  if (!found) return { list: location.hash === "#runs" };
  try {
    return { run: decodeURIComponent(found[1]) };
  } catch {
    return { run: found[1] };
  }
}

function show(id, title) {
  const changed = $(id).hidden;
  for (const section of document.querySelector("main").children) section.hidden = section.id !== id;
  if (document.title !== title) document.title = title;
  if (!changed || link.goodAt === null) return;
  $(id).querySelector("h1")?.focus({ preventScroll: true });
  window.scrollTo(0, id === "runs" ? scrolls.list : 0);
}

async function ask(path, signal) {
  const answer = await fetch(`api/v1/${path}`, { signal, cache: "no-store" }).catch((error) => {
    throw error instanceof TypeError ? new Error("The aggregator does not answer: no connection.") : error;
  });
  if (answer.status === 404) return null;
  if (!answer.ok) throw new Error(`The aggregator answers with an error: HTTP ${answer.status}.`);
  return answer.json();
}

async function refresh(signal) {
  let { run, list: listed } = route();
  if (run === undefined || link.polls++ % LIST_EVERY === 0) {
    list.runs = (await ask("runs", signal))?.runs ?? [];
    text($("all"), `All runs (${count(list.runs.length)})`);
  }
  if (run === undefined && !listed && list.runs.length === 1) {
    run = list.runs[0].run;
    history.replaceState(null, "", `#run=${encodeURIComponent(run)}`);
  }
  if (run === undefined) {
    closeRolling();
    return showList();
  }
  const document_ = await ask(`runs/${encodeURIComponent(run)}`, signal);
  if (view.name !== run) openRun(run);
  view.run = document_;
  return showRun();
}

function showList() {
  text($("empty-url"), location.origin);
  if (list.runs.length === 0) return show("empty", "goodput: no runs yet");
  drawRuns();
  followNodes();
  return show("runs", "goodput");
}

function openRun(name) {
  Object.assign(view, { name, run: null, filter: "", sort: "worst", shown: ROWS, restarts: { shown: 8 },
    health: { shown: 8 } });
  $("ranks-filter").value = "";
  $("ranks-sort").length = 2;
}

function showRun() {
  text($("missing-name"), view.name);
  if (view.run === null) closeRolling();
  if (view.run === null) return show("missing", "goodput: no such run");
  drawRun();
  return show("run", `${percent(view.run.factors.goodput)} ${view.run.run} – goodput`);
}

async function poll() {
  clearTimeout(link.timer);
  link.abort?.abort();
  if (document.hidden) return;
  const mine = (link.abort = new AbortController());
  const silence = new Error(`The aggregator does not answer: nothing within ${ANSWER_MS_MAX / 1000} s.`);
  const late = setTimeout(() => mine.abort(silence), ANSWER_MS_MAX);
  const began = performance.now();
  try {
    await refresh(mine.signal);
    Object.assign(link, { goodAt: performance.now(), error: null });
  } catch (error) {
    if (mine !== link.abort) return; // A newer poll took over: the address changed meanwhile.
    link.error = error.message;
  } finally {
    clearTimeout(late);
  }
  if (mine !== link.abort) return;
  showAge();
  // An account of many thousand ranks takes a while to make: leave the aggregator most of its time.
  const rest = 3 * (performance.now() - began);
  link.timer = setTimeout(poll, Math.min(Math.max(POLL_MS, rest), POLL_MS_MAX));
}

function showAge() {
  const age = link.goodAt === null ? null : (performance.now() - link.goodAt) / 1000;
  const ago = age === null || age < 60 ? `${Math.round(age)} s` : duration(age);
  const last = age === null ? "nothing received yet" : `last update ${ago} ago`;
  $("silent").hidden = link.error === null;
  document.body.classList.toggle("stale", link.error !== null);
  text($("silent-what"), link.error ?? "");
  text($("silent-age"), `What you see is old: ${last}. Trying again by itself.`);
  text($("age"), age === null ? "connecting …" : age < 3 ? "live" : last);
}

function listen() {
  history.scrollRestoration = "manual";
  window.addEventListener("hashchange", poll);
  window.addEventListener("scroll", () => { if (!$("runs").hidden) scrolls.list = window.scrollY; }, { passive: true });
  document.addEventListener("visibilitychange", poll);
  for (const form of document.forms) form.addEventListener("submit", (event) => event.preventDefault());
  const redraw = () => view.run && drawRun();
  const orderBy = (sort) => { Object.assign(view, { sort, shown: ROWS }); redraw(); };
  const filterBy = (what, event) => Object.assign(what, { filter: event.target.value, shown: ROWS });
  $("runs-filter").addEventListener("input", (event) => { filterBy(list, event); drawRuns(); });
  $("ranks-filter").addEventListener("input", (event) => { filterBy(view, event); redraw(); });
  $("ranks-sort").addEventListener("change", (e) => orderBy(e.target.value));
  $("account-rows").addEventListener("click", (e) => {
    const state = e.target.closest("button")?.dataset.state;
    if (state) orderBy(view.sort === state ? "worst" : state);
  });
  $("runs-more").addEventListener("click", () => { list.shown += ROWS; drawRuns(); });
  $("ranks-more").addEventListener("click", () => { view.shown += ROWS; redraw(); });
  $("restarts-more").addEventListener("click", () => { view.restarts.shown += ROWS; redraw(); });
  $("health-more").addEventListener("click", () => { view.health.shown += ROWS; redraw(); });
  setInterval(() => { if (!document.hidden) showAge(); }, 1000);
}

listen();
poll();
