// The built-in page: polls for data, shows the list of runs or one run, and listens to the user.
//
// The same page is served by the aggregator and written to a file by `goodput replay --html` (see data/source.js).

import { goToRun, parseAddress, readListAddress, writeListAddress } from "./address.js";
import { drawHeatMap, listenToHeatMap, repaintHeatMap } from "./charts/heat_map.js";
import { clearSelection, closeTimeline, listenToTimeline } from "./charts/timeline.js";
import { closeTip, listenToTip } from "./charts/tip.js";
import { Busy, runPath } from "./data/api.js";
import { file } from "./data/file.js";
import { loadGrafana } from "./data/grafana.js";
import { get, isLive } from "./data/source.js";
import { $, ROWS, text } from "./dom/nodes.js";
import { showInstallation } from "./installation/installation.js";
import { listenToKeyboard } from "./keyboard.js";
import { drawLog, showMoreProblems } from "./run/log_problems.js";
import { closeRecentWindows } from "./run/recent_windows.js";
import { closeRank, drawRank } from "./rank/rank.js";
import { drawRun, openRun, orderRanks, showHost, showStage, view } from "./run/run.js";
import { drawSections, listenToSections } from "./run/sections.js";
import { followSelection } from "./run/selection.js";
import { closeStory } from "./run/story.js";
import { drawRuns, list, sortBy } from "./runs/list.js";
import { followNodeAlerts } from "./runs/node_alerts.js";
import { closeTrends } from "./runs/trend.js";
import { count, duration, percent } from "./text/numbers.js";
import { nameText } from "./text/states.js";
import { rankAddress, runAddress } from "./text/addresses.js";
import { zone, zonedTime } from "./text/time.js";

const POLL_MS = 2000;
const POLL_MS_MAX = 10_000;
const SIGN_IN_POLL_MS = 120_000; // Each request without a token counts as a failure that alerts watch.
const TIMEOUT_MS = 8000;
const LIST_EVERY = 5; // While a run is shown, the list of runs is loaded once in so many polls.
const RUNS_PER_REQUEST = 1000; // The API's maximum.

// ---- Polling -------------------------------------------------------------------------------------------------

const link = { updatedMs: null, error: null, polls: 0, timer: null, abort: null };
let listScroll = 0;
let runScroll = 0; // Where the open run was left for one of its ranks.

async function loadRuns(signal) {
  const runs = [];
  let answer;
  do {
    answer = await get(`runs?order=open&limit=${RUNS_PER_REQUEST}&offset=${runs.length}`, signal);
    runs.push(...answer.runs);
  } while (answer.truncated && answer.runs.length && runs.length < list.target);
  Object.assign(list, { runs, total: answer.total });
  text($("all"), `All runs (${count(list.total)})`);
}

async function refresh(signal) {
  let { run, rank = null, stage = null, list: listed, installation = false, window = null } = parseAddress();
  if (installation && isLive) {
    await showInstallation(signal);
    closeRun();
    return show("installation", "goodput: installation");
  }
  if (run === undefined || link.polls++ % LIST_EVERY === 0) await loadRuns(signal);
  if (run === undefined && !listed && list.runs.length === 1) {
    run = list.runs[0].run;
    history.replaceState(null, "", runAddress(run));
  }
  if (run === undefined) return showList();
  const account = await get(runPath(run), signal);
  closeTrends();
  if (view.name !== run) {
    runScroll = 0;
    openRun(run);
  }
  Object.assign(view, { run: account, window: isLive ? window : null });
  return rank === null ? showRun(stage) : showRank(rank);
}

async function poll() {
  clearTimeout(link.timer);
  link.abort?.abort();
  if (document.hidden) return;
  const mine = (link.abort = new AbortController());
  const silence = new Error(`The aggregator does not answer: nothing within ${TIMEOUT_MS / 1000} s.`);
  const timeout = setTimeout(() => mine.abort(silence), TIMEOUT_MS);
  const startMs = performance.now();
  try {
    await refresh(mine.signal);
    Object.assign(link, { updatedMs: performance.now(), error: null });
  } catch (error) {
    if (mine !== link.abort) return; // A newer poll took over: the address changed meanwhile.
    link.error = error instanceof Busy ? `${error.message}.` : error.message;
  } finally {
    clearTimeout(timeout);
  }
  if (mine !== link.abort) return;
  showAge();
  // The account of many thousand ranks takes a while: leave the aggregator most of its time.
  const pause = 3 * (performance.now() - startMs);
  const wait = $("signin").hidden ? Math.min(Math.max(POLL_MS, pause), POLL_MS_MAX) : SIGN_IN_POLL_MS;
  if (isLive) link.timer = setTimeout(poll, wait);
}

// How old the figures are, and what is wrong where they are not updated.
function showAge() {
  const age = link.updatedMs === null ? null : (performance.now() - link.updatedMs) / 1000;
  const ago = age === null || age < 60 ? `${Math.round(age)} s` : duration(age);
  const last = age === null ? "nothing received yet" : `last update ${ago} ago`;
  $("silent").hidden = link.error === null;
  document.body.classList.toggle("stale", link.error !== null);
  text($("silent-what"), link.error ?? "");
  text($("silent-age"), `The figures are old: ${last}. Retrying.`);
  if (!isLive) text($("age"), `written by ${file.command} on ${zonedTime(file.written)}`);
  else text($("age"), age === null ? "connecting …" : age < 3 ? "live" : last);
  text($("zone"), zone(Date.now() / 1000));
}

// ---- What is shown -------------------------------------------------------------------------------------------

function show(id, title) {
  const changed = $(id).hidden;
  for (const section of document.querySelector("main").children) section.hidden = section.id !== id;
  if (document.title !== title) document.title = title;
  if (!changed || link.updatedMs === null) return;
  $(id).querySelector("h1")?.focus({ preventScroll: true });
  window.scrollTo(0, { runs: listScroll, run: runScroll }[id] ?? 0);
}

function closeRun() {
  closeRecentWindows();
  closeStory();
  closeTimeline();
  closeRank();
}

function showList() {
  closeRun();
  text($("empty-url"), location.origin);
  if (list.runs.length === 0) return show("empty", "goodput: no runs yet");
  drawRuns();
  followNodeAlerts();
  return show("runs", "goodput");
}

function showRun(stage = null) {
  text($("missing-name"), nameText(view.name));
  if (view.run === null) {
    closeRun();
    return show("missing", "goodput: no such run");
  }
  // Shown before it is drawn: hidden charts have no width.
  show("run", `${percent(view.run.factors.goodput)} ${nameText(view.run.run)} – goodput`);
  followSelection(view, redraw);
  drawRun();
  return showStage(stage);
}

function showRank(rank) {
  if (view.run === null) return showRun();
  show("rank", `rank ${rank} of ${nameText(view.run.run)} – goodput`);
  return drawRank(view.run, rank);
}

const redraw = () => view.run && drawRun();
const showWindow = (window) => goToRun(view.name, window);

// ---- The user ------------------------------------------------------------------------------------------------

function listen() {
  history.scrollRestoration = "manual";
  window.addEventListener("hashchange", () => { readListAddress(); poll(); });
  window.addEventListener("scroll", () => { if (!$("runs").hidden) listScroll = window.scrollY;
    if (!$("run").hidden) runScroll = window.scrollY; }, { passive: true });
  if (isLive) document.addEventListener("visibilitychange", poll);
  document.addEventListener("theme", repaintHeatMap);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", repaintHeatMap);
  for (const form of document.forms) {
    if (form.method === "get") form.addEventListener("submit", (event) => event.preventDefault());
  }
  listenToList();
  listenToRun();
  listenToKeyboard(() => { if (!closeTip() && !$("run").hidden && !clearSelection()) showWindow(null); });
  if (isLive) setInterval(() => { if (!document.hidden) showAge(); }, 1000);
}

function listenToList() {
  const redrawList = () => { writeListAddress(); drawRuns(); };
  $("runs-filter").addEventListener("input", (event) => {
    Object.assign(list, { filter: event.target.value, shown: ROWS });
    redrawList();
  });
  $("runs-sort").addEventListener("change", (event) => { list.sort = event.target.value; redrawList(); });
  document.querySelector("#runs thead").addEventListener("click", (event) => {
    const name = event.target.closest("button")?.dataset.sort;
    if (name) { sortBy(name); redrawList(); }
  });
  $("runs-clear").addEventListener("click", () => {
    Object.assign(list, { filter: "", shown: ROWS });
    $("runs-filter").value = "";
    redrawList();
    $("runs-filter").focus();
  });
  $("runs-more").addEventListener("click", () => { list.shown += ROWS; drawRuns(); });
  $("runs-older").addEventListener("click", () => { list.target = list.runs.length + RUNS_PER_REQUEST; poll(); });
}

function listenToRun() {
  $("ranks-filter").addEventListener("input", (event) => {
    Object.assign(view, { filter: event.target.value, shown: ROWS });
    redraw();
  });
  $("ranks-sort").addEventListener("change", (event) => orderRanks(event.target.value));
  $("account-table").addEventListener("click", (event) => {
    const state = event.target.closest("button")?.dataset.state;
    if (state) orderRanks(view.sort === state ? "worst" : state);
  });
  $("ranks-table").addEventListener("click", (event) => {
    const host = event.target.closest("a[data-host]")?.dataset.host;
    if (host === undefined) return;
    event.preventDefault();
    showHost(host);
  });
  $("ranks-more").addEventListener("click", () => { view.shown += ROWS; redraw(); });
  $("story-more").addEventListener("click", () => { view.story.all = !view.story.all; redraw(); });
  $("restarts-more").addEventListener("click", () => { view.restarts.shown += ROWS; redraw(); });
  $("health-more").addEventListener("click", () => { view.health.shown += ROWS; redraw(); });
  $("log-more").addEventListener("click", () => showMoreProblems(ROWS));
  $("selection-whole").addEventListener("click", () => showWindow(null));
  listenToTimeline(showWindow, (...drawn) => {
    drawHeatMap(...drawn);
    drawSections();
  });
  listenToHeatMap((rank) => { location.hash = rankAddress(view.name, rank); });
  listenToSections();
  listenToTip();
}

// Sign-out is for browsers with a session, not for clients that send a token in a header; the installation for tokens of
// all runs.
async function showAllowed() {
  const access = await get("access").catch(() => null);
  $("signout").hidden = !access?.session;
  $("to-installation").hidden = access !== null && !access.runs.includes("*");
}

document.body.classList.toggle("in-file", !isLive);
listen();
readListAddress();
poll();
if (isLive) {
  showAllowed();
  loadGrafana();
} else drawLog();
