// The built-in page: polls the JSON API and writes what it says into page.html.
//
// In: api/v1/runs and api/v1/runs/NAME, the address (#run=NAME, #runs). Out: text nodes, titles and widths.
// Every name comes from outside, so nothing is ever written as HTML. Nodes are kept by key and only changed where
// the text differs, so focus, selection and scrolling survive a refresh. It computes no figure: ratios are the
// API's, and percents are the API's GPU-seconds rounded so that they close to 100.0 as in `goodput report`.

const POLL_MS = 2000;
const ANSWER_MS_MAX = 10_000;
const LIST_EVERY = 5; // Polls between two looks at the list of runs while one run is shown.
const ROWS = 64; // Rows drawn at first, and more at each press of "show more".
const SILENT_SECONDS = 30; // A living rank not reported for so long is marked.

// The same lines as account/states.py; a test holds them together.
const MEANINGS = {
  productive: "compute phases of kept steps",
  loader: "waiting for the data loader",
  h2d: "copies to the device",
  communication: "collectives, as long as even the last rank waited",
  straggler: "collectives beyond that: waiting for a slower rank",
  launch: "the device idle because the host could not feed it",
  checkpoint: "saving checkpoints",
  evaluation: "evaluation",
  compile: "compilation and first-step work",
  startup: "from an attempt's start to its first step",
  restore: "loading a checkpoint",
  stall: "no step progress for too long",
  lost: "steps that had to be done again, or never finished",
  down: "no live process",
  queue: "waiting for the scheduler",
  unattributed: "inside an attempt, in no phase",
  unobserved: "an expected rank that nobody reported",
};
const FACTORS = {
  goodput: ["goodput", "share of all allocated GPU time that was useful work"],
  availability: ["availability", "time in kept steps ÷ allocated time"],
  step_efficiency: ["step efficiency", "productive time ÷ time in kept steps"],
  mfu: ["MFU", "model FLOPs of kept steps ÷ (peak × allocated time)"],
  compute_efficiency: ["compute efficiency", "model FLOPs ÷ (peak × productive time)"],
};
const NO_FLOPS = "needs flops_per_step and peak_flops_per_second in goodput.start";
const STATUSES = {
  running: "",
  finished: "every rank ended by itself",
  down: "no process of this run is alive; work after its last checkpoint counts as lost until it resumes",
  unobserved: "nobody has reported this run lately: is `goodput node` running on its hosts?",
};

const $ = (id) => document.getElementById(id);
const field = (root, name) => root.querySelector(`[data-f="${name}"]`);

// ---- Numbers for people ------------------------------------------------------------------------------------

const percent = (ratio) => (ratio == null ? "unknown" : `${(100 * ratio).toFixed(1)} %`);
const grouped = (value, digits) =>
  value.toLocaleString("en-US", { minimumFractionDigits: digits, maximumFractionDigits: digits });
const count = (value) => grouped(value, 0);
const times = (ratio) => (ratio == null ? "unknown" : `${ratio < 100 ? ratio.toFixed(2) : count(ratio)}×`);
const plural = (n, word) => `${count(n)} ${word}${n === 1 ? "" : "s"}`;

function duration(seconds) {
  if (seconds == null) return "unknown";
  if (seconds === 0) return "0 s";
  if (seconds < 0.0995) return `${(1000 * seconds).toFixed(0)} ms`;
  if (seconds < 59.95) return `${seconds.toFixed(seconds < 9.95 ? 2 : 1)} s`;
  const units = [[86400, "d"], [3600, "h"], [60, "min"], [1, "s"]];
  const whole = seconds < 3600 ? Math.round(seconds) : 60 * Math.round(seconds / 60);
  const i = units.findIndex(([size]) => whole >= size);
  const [[size, unit], [part, smaller]] = units.slice(i, i + 2);
  const rest = Math.floor((whole % size) / part);
  return `${Math.floor(whole / size)} ${unit}${rest ? ` ${rest} ${smaller}` : ""}`;
}

// One unit for all of a run's GPU time, so that a column can be compared by eye.
function gpuUnit(total) {
  return total < 7200
    ? { name: "GPU-seconds", text: (seconds) => grouped(seconds, 2) }
    : { name: "GPU-hours", text: (seconds) => grouped(seconds / 3600, total < 3.6e6 ? 3 : 1) };
}

// As many decimals as the whole needs, so that the parts of one run stand under each other.
const dollars = (value, whole) =>
  value == null ? "unknown" : `$${grouped(value, whole >= 1 ? 2 : whole >= 0.01 ? 4 : 6)}`;

// Shares in tenths of a percent that sum to exactly 1000 (largest remainder), as account/text.py has them.
function tenths(parts) {
  const total = parts.reduce((sum, part) => sum + part, 0);
  if (!(total > 0)) return parts.map(() => 0);
  const exact = parts.map((part) => (1000 * part) / total);
  const rounded = exact.map(Math.floor);
  const short = 1000 - rounded.reduce((sum, part) => sum + part, 0);
  const order = parts.map((_, i) => i).sort((a, b) => rounded[a] - exact[a] - (rounded[b] - exact[b]) || a - b);
  for (const i of order.slice(0, short)) rounded[i] += 1;
  return rounded;
}
const tenthsText = (share) => `${Math.floor(share / 10)}.${share % 10}`;

// The clock of whoever looks, year first; the UTC time is on hover.
function localTime(seconds) {
  const when = new Date(1000 * seconds);
  return new Date(when - 60_000 * when.getTimezoneOffset()).toISOString().slice(0, 19).replace("T", " ");
}
const utcTime = (seconds) => new Date(1000 * seconds).toISOString();

function showTime(node, seconds) {
  text(node, localTime(seconds));
  attribute(node, "datetime", utcTime(seconds));
  attribute(node, "title", utcTime(seconds));
}

// ---- Changing nodes only where something changed ------------------------------------------------------------

function text(node, value) {
  if (node.textContent !== String(value)) node.textContent = value;
}
function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}
function put(root, values) {
  for (const [name, value] of Object.entries(values)) text(field(root, name), value);
}
const width = (node, ratio) => node.style.setProperty("width", `${Math.min(Math.max(100 * ratio, 0), 100)}%`);
const swatch = (node, state) => attribute(node, "class", `swatch s-${state in MEANINGS ? state : "other"}`);

// One child of `parent` per item, reused by key, in the items' order.
function keyed(parent, template, items, keyOf, update) {
  const wanted = new Set(items.map((item) => String(keyOf(item))));
  const old = new Map();
  for (const child of [...parent.children]) {
    if (wanted.has(child.dataset.key)) old.set(child.dataset.key, child);
    else child.remove();
  }
  const focused = document.activeElement;
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    const node = old.get(key) ?? $(template).content.firstElementChild.cloneNode(true);
    node.dataset.key = key;
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
    update(node, item);
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

// The first `view.shown` of the rows, and a button for more of them.
function paged(rows, view, button, what) {
  const left = rows.length - view.shown;
  button.hidden = left <= 0;
  text(button, `Show ${count(Math.min(left, ROWS))} more of ${count(left)} ${what}`);
  return rows.slice(0, view.shown);
}

function bar(node, states, who) {
  const names = Object.keys(states);
  const shares = tenths(Object.values(states));
  const parts = names.map((state, i) => ({ state, share: shares[i] })).filter((part) => part.share > 0);
  keyed(node, "t-segment", parts, (part) => part.state, (segment, { state, share }) => {
    const label = `${state} ${tenthsText(share)} %`;
    const dim = view.sort in MEANINGS && view.sort !== state ? " dim" : "";
    attribute(segment, "class", `s-${state in MEANINGS ? state : "other"}${dim}`);
    attribute(segment, "title", `${label}: ${MEANINGS[state] ?? ""}`);
    segment.style.setProperty("flex-grow", share);
    text(segment.firstElementChild, label);
  });
  const said = parts.map((part) => `${part.state} ${tenthsText(part.share)} %`).join(", ");
  attribute(node, "aria-label", `${who}: ${said || "no time yet"}`);
}

// ---- The list of runs ---------------------------------------------------------------------------------------

const list = { runs: [], filter: "", shown: ROWS };

function drawRuns() {
  const words = list.filter.toLowerCase();
  const rows = list.runs.filter((run) =>
    [run.run, run.status, run.leading_cause ?? ""].some((value) => value.toLowerCase().includes(words)));
  text($("runs-count"), rows.length < list.runs.length ? `${count(rows.length)} of ${plural(list.runs.length, "run")}`
    : plural(rows.length, "run"));
  keyed($("runs-rows"), "t-run", paged(rows, list, $("runs-more"), "runs"), (run) => run.run, drawRunRow);
}

function drawRunRow(row, run) {
  put(row, {
    name: run.run, status: run.status, goodput: percent(run.goodput), mfu: percent(run.mfu),
    cause: run.leading_cause ?? "none", ranks: count(run.world_size), restarts: count(run.restarts),
    duration: duration(run.end - run.start),
  });
  attribute(field(row, "name"), "href", `#run=${encodeURIComponent(run.run)}`);
  attribute(field(row, "status"), "class", `status ${run.status in STATUSES ? run.status : ""}`);
  swatch(field(row, "swatch"), run.leading_cause ?? "none");
  field(row, "swatch").hidden = run.leading_cause === null;
  width(field(row, "meter"), run.goodput ?? 0);
  showTime(field(row, "start"), run.start);
}

// ---- One run ------------------------------------------------------------------------------------------------

const view = { name: null, run: null, filter: "", sort: "worst", shown: ROWS, restarts: { shown: 8 } };

function drawRun() {
  const run = view.run;
  const head = $("run-head");
  put(head, { name: run.run, status: run.status, statusMeaning: STATUSES[run.status] ?? "" });
  attribute(field(head, "status"), "class", `status ${run.status in STATUSES ? run.status : ""}`);
  for (const node of document.querySelectorAll("[data-factor]")) drawFigure(node, run.factors[node.dataset.factor]);
  keyed($("facts"), "t-fact", facts(run), ([name]) => name, (node, [name, value, title]) => {
    put(node, { name, value });
    attribute(node, "title", title ?? "");
  });
  drawCause(run);
  drawStraggler(run);
  drawAccount(run);
  drawRestarts(run);
  drawRanks(run);
}

function drawFigure(node, ratio) {
  const [name, meaning] = FACTORS[node.dataset.factor];
  if (!node.firstElementChild) node.append(...["span", "strong", "small"].map((tag) => document.createElement(tag)));
  const [label, figure, small] = node.children;
  const unknown = ratio == null;
  text(label, name);
  text(figure, percent(ratio));
  text(small, "brief" in node.dataset ? "" : unknown && /mfu|compute/.test(node.dataset.factor) ? NO_FLOPS : meaning);
  node.classList.toggle("unknown", unknown);
  attribute(node, "title", `${name}: ${meaning}`);
}

function facts(run) {
  const { kept, lost } = run.steps;
  const price = hourPrice(run);
  const cost = (run.gpu_seconds / 3600) * price;
  const unit = gpuUnit(run.gpu_seconds);
  return [
    ["Ranks", count(run.world_size)],
    ["Start", localTime(run.start), utcTime(run.start)],
    ["Duration", duration(run.end - run.start), `until ${utcTime(run.end)}`],
    [unit.name, unit.text(run.gpu_seconds), "allocated: every GPU of every expected rank, from start to end"],
    ...(price == null ? [] : [["Cost", dollars(cost, cost), `at $${price.toFixed(2)} a GPU-hour`]]),
    ["Rank-steps", `${count(kept)} kept, ${count(lost)} lost`, "steps of all ranks together; lost ones were done again"],
    ["Samples", count(run.samples), "of all attempts together"],
    ["Restarts", count(run.restarts.length)],
    ["Observed", percent(run.coverage.ranks), "coverage: share of the allocated GPU time that somebody reported"],
    ["Device clock", percent(run.coverage.device_clock),
      "coverage: share of the time measured on the device; the rest is the host's clock"],
    ...(run.factors.hfu == null ? [] : [["HFU", percent(run.factors.hfu), "as MFU, with recomputation counted"]]),
  ];
}

// The API prices the causes; the price of a GPU-hour follows from any of them.
function hourPrice(run) {
  const priced = run.causes.find((cause) => cause.cost != null && cause.gpu_seconds > 0);
  return priced ? (3600 * priced.cost) / priced.gpu_seconds : null;
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
    const whole = (run.gpu_seconds / 3600) * (hourPrice(run) ?? 0);
    const spent = first.cost == null ? "" : `It has cost ${dollars(first.cost, whole)} so far.`;
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

function drawStraggler(run) {
  const { culprit, because, slowdown, shares } = run.straggler;
  const host = run.ranks.find((rank) => rank.rank === culprit)?.host;
  put($("straggler"), culprit === null
    ? { culprit: "none", host: "", because: slowdown === null ? "No step was reported by two ranks of a group." :
        "No single rank is slow: none exceeds the median of its group by 2 %." }
    : { culprit: `rank ${culprit}`, host: `on ${host || "an unnamed host"}`,
        because: `Because of ${because}: it spends more time there than the median of its group` +
          `${MEANINGS[because] ? ` (${MEANINGS[because]})` : ""}.` });
  text(field($("straggler"), "slowdown"), slowdown === null ? "" :
    `The run is ${times(slowdown)} slower than with the same work spread evenly.`);
  const shown = culprit === null ? [] : shares.slice(0, 4);
  keyed($("shares"), "t-share", shown, (share) => share.rank, (node, share) => {
    put(node, { who: `rank ${share.rank}`, share: percent(share.share) });
    attribute(node, "title", `rank ${share.rank} on ${share.host} caused ${percent(share.share)} of the waiting`);
    width(field(node, "meter"), share.share);
  });
}

function drawAccount(run) {
  const unit = gpuUnit(run.gpu_seconds);
  const price = hourPrice(run);
  const threshold = duration(run.stall_threshold_seconds);
  const cost = (seconds) => dollars(price && (seconds / 3600) * price, (run.gpu_seconds / 3600) * price);
  const shares = tenths(Object.values(run.states));
  const rows = Object.entries(run.states).map(([state, seconds], i) => ({ state, seconds, share: shares[i] }));
  bar($("account-bar"), run.states, "time account");
  keyed($("account-rows"), "t-state", rows.filter((row) => row.seconds > 0), (row) => row.state, (node, row) => {
    const cause = run.causes.find((one) => one.state === row.state);
    swatch(field(node, "swatch"), row.state);
    put(node, { state: row.state, seconds: unit.text(row.seconds), percent: tenthsText(row.share),
      cost: cost(row.seconds), gain: cause ? gain(cause) : "",
      meaning: (MEANINGS[row.state] ?? "") + (row.state === "stall" ? ` (over ${threshold})` : "") });
    attribute(field(node, "seconds"), "title", `${row.seconds} GPU-seconds`);
    const button = node.querySelector("button");
    button.dataset.state = row.state;
    attribute(button, "aria-pressed", String(view.sort === row.state));
    attribute(button, "title", "Mark this state in all bars, and order the ranks by it");
  });
  const closed = shares.reduce((sum, share) => sum + share, 0);
  text($("unit"), unit.name);
  put($("account-total"), { total: unit.text(run.gpu_seconds), percent: tenthsText(closed), cost: cost(run.gpu_seconds) });
  $("run").classList.toggle("unpriced", price == null);
}

function drawRestarts(run) {
  const rows = [...run.restarts].reverse();
  const unit = gpuUnit(run.gpu_seconds);
  $("restarts").hidden = rows.length === 0;
  $("restarts-none").hidden = rows.length > 0;
  const shown = paged(rows, view.restarts, $("restarts-more"), "restarts");
  keyed($("restart-rows"), "t-restart", shown, (row) => row.attempt, (node, row) => {
    put(node, { attempt: row.attempt, down: duration(row.down_seconds), steps: count(row.lost_steps),
      lost: `${unit.text(row.lost_gpu_seconds)} ${unit.name}`, resume: row.resume_step ?? "unknown" });
    showTime(field(node, "time"), row.time);
  });
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
  const step = live.step === null ? "no step done" : `step ${live.step} done`;
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
    bar(node.querySelector(".bar"), row.states, `rank ${row.rank}`);
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
  if (run === undefined) return showList();
  const document_ = await ask(`runs/${encodeURIComponent(run)}`, signal);
  if (view.name !== run) openRun(run);
  view.run = document_;
  return showRun();
}

function showList() {
  text($("empty-url"), location.origin);
  if (list.runs.length === 0) return show("empty", "goodput: no runs yet");
  drawRuns();
  return show("runs", "goodput");
}

function openRun(name) {
  Object.assign(view, { name, run: null, filter: "", sort: "worst", shown: ROWS, restarts: { shown: 8 } });
  $("ranks-filter").value = "";
  $("ranks-sort").length = 2;
}

function showRun() {
  text($("missing-name"), view.name);
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
  link.timer = setTimeout(poll, Math.max(POLL_MS, 4 * (performance.now() - began)));
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
  $("runs-filter").addEventListener("input", (e) => { Object.assign(list, { filter: e.target.value, shown: ROWS }); drawRuns(); });
  $("ranks-filter").addEventListener("input", (e) => { Object.assign(view, { filter: e.target.value, shown: ROWS }); redraw(); });
  $("ranks-sort").addEventListener("change", (e) => orderBy(e.target.value));
  $("account-rows").addEventListener("click", (e) => {
    const state = e.target.closest("button")?.dataset.state;
    if (state) orderBy(view.sort === state ? "worst" : state);
  });
  $("runs-more").addEventListener("click", () => { list.shown += ROWS; drawRuns(); });
  $("ranks-more").addEventListener("click", () => { view.shown += ROWS; redraw(); });
  $("restarts-more").addEventListener("click", () => { view.restarts.shown += ROWS; redraw(); });
  setInterval(() => { if (!document.hidden) showAge(); }, 1000);
}

listen();
poll();
