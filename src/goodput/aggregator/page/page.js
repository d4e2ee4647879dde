// The built-in page: polls the JSON API and has list.js and run.js write what it says into page.html.
//
// In: api/v1/runs and api/v1/runs/NAME, and the address: #run=NAME, #run=NAME&from=SECONDS&to=SECONDS for a part of its
// time, #runs, #runs&q=WORDS&sort=ORDER. Out: which section is shown, and what is asked for when. Every name comes from
// outside, so nothing is ever written as HTML. Nodes are kept by key and only changed where the text differs, so focus,
// selection and scrolling survive a refresh.

import { Busy, ask } from "./ask.js";
import { drawHeat, listenToHeat, redrawHeat } from "./heat.js";
import { followNodes } from "./health.js";
import { listenToKeys } from "./keys.js";
import { drawRuns, isOrder, list, sortBy } from "./list.js";
import { $, ROWS, text } from "./nodes.js";
import { count, duration, percent, zone } from "./numbers.js";
import { followPart } from "./part.js";
import { closeRolling } from "./rolling.js";
import { drawRun, openRun, orderBy, showRank, view } from "./run.js";
import { closeTimeline, dropSelection, listenToTimeline } from "./timeline.js";

const POLL_MS = 2000;
const POLL_MS_MAX = 10_000;
const SIGN_IN_MS = 120_000; // While nobody is signed in: each question is counted as a failure, and alerts watch those.
const ANSWER_MS_MAX = 8000;
const LIST_EVERY = 5; // Polls between two looks at the list of runs while one run is shown.
const RUNS_A_PAGE = 1000; // As many as the API lists at once.

// ---- The address, polling, and being honest about silence ----------------------------------------------------

const link = { goodAt: null, error: null, polls: 0, timer: null, abort: null };
const scrolls = { list: 0 };

// {run: NAME, window: [from, to] or null} for #run=NAME, {list: true} for #runs, else {}: open the only run, or the list.
function route() {
  const found = /^#run=(.*?)(?:&from=([\d.]{1,20})&to=([\d.]{1,20}))?$/s.exec(location.hash);
  if (!found) return { list: /^#runs(&|$)/.test(location.hash) };
  const [from, to] = [Number(found[2]), Number(found[3])];
  const window_ = from < to ? [from, to] : null;
  try {
    return { run: decodeURIComponent(found[1]), window: window_ };
  } catch {
    return { run: found[1], window: window_ };
  }
}

// Filter and order of the list are in its address, so that a link to what one sees can be sent.
function takeListAddress() {
  const told = new URLSearchParams(location.hash.replace(/^#runs&?/, ""));
  if (!/^#runs(&|$)/.test(location.hash)) return;
  list.filter = (told.get("q") ?? "").slice(0, 200);
  list.sort = isOrder(told.get("sort") ?? "") ? told.get("sort") : "-start";
  if ($("runs-filter").value !== list.filter) $("runs-filter").value = list.filter;
}

function putListAddress() {
  const said = new URLSearchParams();
  if (list.filter) said.set("q", list.filter);
  if (list.sort !== "-start") said.set("sort", list.sort);
  history.replaceState(null, "", `#runs${said.size ? `&${said}` : ""}`);
  $("all").href = location.hash;
}

function showWindow(span) {
  const part = span === null ? "" : `&from=${span[0].toFixed(3)}&to=${span[1].toFixed(3)}`;
  const hash = `#run=${encodeURIComponent(view.name)}${part}`;
  if (location.hash !== hash) location.hash = hash;
}

function show(id, title) {
  const changed = $(id).hidden;
  for (const section of document.querySelector("main").children) section.hidden = section.id !== id;
  if (document.title !== title) document.title = title;
  if (!changed || link.goodAt === null) return;
  $(id).querySelector("h1")?.focus({ preventScroll: true });
  window.scrollTo(0, id === "runs" ? scrolls.list : 0);
}

async function askRuns(signal) {
  const found = [];
  let page;
  do {
    page = await ask(`runs?limit=${RUNS_A_PAGE}&offset=${found.length}`, signal);
    found.push(...page.runs);
  } while (page.truncated && page.runs.length && found.length < list.wanted);
  Object.assign(list, { runs: found, total: page.total });
  text($("all"), `All runs (${count(list.total)})`);
}

async function refresh(signal) {
  let { run, list: listed, window: part = null } = route();
  if (run === undefined || link.polls++ % LIST_EVERY === 0) await askRuns(signal);
  if (run === undefined && !listed && list.runs.length === 1) {
    run = list.runs[0].run;
    history.replaceState(null, "", `#run=${encodeURIComponent(run)}`);
  }
  if (run === undefined) return showList();
  const document_ = await ask(`runs/${encodeURIComponent(run)}`, signal);
  if (view.name !== run) openRun(run);
  Object.assign(view, { run: document_, window: part });
  return showRun();
}

function closeRun() {
  closeRolling();
  closeTimeline();
}

function showList() {
  closeRun();
  text($("empty-url"), location.origin);
  if (list.runs.length === 0) return show("empty", "goodput: no runs yet");
  drawRuns();
  followNodes();
  return show("runs", "goodput");
}

function showRun() {
  text($("missing-name"), view.name);
  if (view.run === null) {
    closeRun();
    return show("missing", "goodput: no such run");
  }
  // What is hidden has no width to be drawn in.
  show("run", `${percent(view.run.factors.goodput)} ${view.run.run} – goodput`);
  followPart(view, redraw);
  return drawRun();
}

const redraw = () => view.run && drawRun();

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
    link.error = error instanceof Busy ? `${error.message}.` : error.message;
  } finally {
    clearTimeout(late);
  }
  if (mine !== link.abort) return;
  showAge();
  // An account of many thousand ranks takes a while to make: leave the aggregator most of its time.
  const rest = 3 * (performance.now() - began);
  const wait = $("signin").hidden ? Math.min(Math.max(POLL_MS, rest), POLL_MS_MAX) : SIGN_IN_MS;
  link.timer = setTimeout(poll, wait);
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
  text($("zone"), zone(Date.now() / 1000));
}

function listen() {
  history.scrollRestoration = "manual";
  window.addEventListener("hashchange", () => { takeListAddress(); poll(); });
  window.addEventListener("scroll", () => { if (!$("runs").hidden) scrolls.list = window.scrollY; }, { passive: true });
  document.addEventListener("visibilitychange", poll);
  document.addEventListener("theme", redrawHeat);
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", redrawHeat);
  for (const form of document.forms) {
    if (form.method === "get") form.addEventListener("submit", (event) => event.preventDefault());
  }
  listenToList();
  listenToRun();
  listenToKeys({ whole: () => { if (!$("run").hidden && !dropSelection()) showWindow(null); } });
  setInterval(() => { if (!document.hidden) showAge(); }, 1000);
}

function listenToList() {
  const redrawn = () => { putListAddress(); drawRuns(); };
  $("runs-filter").addEventListener("input", (event) => {
    Object.assign(list, { filter: event.target.value, shown: ROWS });
    redrawn();
  });
  $("runs-sort").addEventListener("change", (event) => { list.sort = event.target.value; redrawn(); });
  document.querySelector("#runs thead").addEventListener("click", (event) => {
    const name = event.target.closest("button")?.dataset.sort;
    if (name) { sortBy(name); redrawn(); }
  });
  $("runs-clear").addEventListener("click", () => {
    Object.assign(list, { filter: "", shown: ROWS });
    $("runs-filter").value = "";
    redrawn();
    $("runs-filter").focus();
  });
  $("runs-more").addEventListener("click", () => { list.shown += ROWS; drawRuns(); });
  $("runs-older").addEventListener("click", () => { list.wanted = list.runs.length + RUNS_A_PAGE; poll(); });
}

function listenToRun() {
  $("ranks-filter").addEventListener("input", (event) => {
    Object.assign(view, { filter: event.target.value, shown: ROWS });
    redraw();
  });
  $("ranks-sort").addEventListener("change", (event) => orderBy(event.target.value));
  $("account-rows").addEventListener("click", (event) => {
    const state = event.target.closest("button")?.dataset.state;
    if (state) orderBy(view.sort === state ? "worst" : state);
  });
  $("ranks-more").addEventListener("click", () => { view.shown += ROWS; redraw(); });
  $("restarts-more").addEventListener("click", () => { view.restarts.shown += ROWS; redraw(); });
  $("health-more").addEventListener("click", () => { view.health.shown += ROWS; redraw(); });
  $("part-whole").addEventListener("click", () => showWindow(null));
  listenToTimeline(showWindow, drawHeat);
  listenToHeat(showRank);
}

// Whoever signed in may sign out.
async function lookWhoAsks() {
  const found = await ask("access").catch(() => null);
  $("signout").hidden = !found?.session;
}

listen();
takeListAddress();
poll();
lookWhoAsks();
