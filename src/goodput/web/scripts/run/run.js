// The view of one run. Ratios are the API's; percents are its GPU-seconds rounded as in `goodput report`.

import { isLive } from "../data/source.js";
import { $, ROWS, attribute, field, keyed, put, text } from "../dom/nodes.js";
import { linkedText, putLinked } from "../dom/rank_links.js";
import { drawBoards } from "../data/grafana.js";
import { followTimeline } from "../charts/timeline.js";
import { count, duration, percent } from "../text/numbers.js";
import { FACTORS, NO_FLOPS, STATUSES, nameText, statusOf } from "../text/states.js";
import { localSpan } from "../text/time.js";
import { drawAccount } from "./account.js";
import { drawCause } from "./cause.js";
import { drawCollectives } from "./collectives.js";
import { facts } from "./facts.js";
import { THROUGHPUT, figures } from "./figures.js";
import { drawHang } from "./hang.js";
import { followHardwareEvents } from "./hardware_events.js";
import { drawPipeline } from "./pipeline.js";
import { drawRanks } from "./ranks.js";
import { followRecentWindows } from "./recent_windows.js";
import { drawRestarts } from "./restarts.js";
import { drawRoles } from "./roles.js";
import { drawSections } from "./sections.js";
import { drawStraggler } from "./straggler.js";
import { followStory } from "./story.js";
import { drawTiles } from "./tiles.js";

// run: the API's document; window: the selected part [from, to] of its time; part: the account of that part.
const fresh = () => ({ run: null, part: null, window: null, error: "", filter: "", stage: null, sort: "worst", shown: ROWS,
  story: { all: false }, restarts: { shown: 8 }, health: { shown: 8 } });
export const view = { name: null, ...fresh() };

export function openRun(name) {
  Object.assign(view, { name, ...fresh() });
  $("ranks-filter").value = "";
  $("ranks-sort").length = 2;
}

// The run, or the account of the selected part with the present state of the run.
const shown = ({ run, part }) => (part === null ? run :
  { ...run, ...part, status: run.status, hang: run.hang, live: run.live, windows: run.windows, errors: run.errors });

// That the account lacks steps of its run log.
function incomplete({ step_lines: steps }) {
  if (!steps?.incomplete) return [];
  return [`${count(steps.unusable)} of ${count(steps.read)} step lines of the log (${percent(steps.share)}) cannot be used, ` +
    `so the figures below are wrong by as much. The first is ${steps.first}.`];
}

// That times of hosts were moved, whose clocks were off.
const moved = ({ moved_clocks: clocks }) => (clocks ?? []).slice(0, 8).map(({ host, seconds: by }) =>
  `The clock of ${host} was off: its times were moved by ${by > 0 ? "+" : ""}${by.toFixed(3)} s.`);

export function drawRun() {
  const run = shown(view);
  $("run").classList.toggle("unpriced", run.cost === null);
  drawHead(run);
  drawHang($("hang"), run);
  const wrong = [...incomplete(run), ...moved(run), ...run.errors];
  $("errors").hidden = wrong.length === 0;
  keyed($("errors").querySelector("ul"), "t-item", wrong, (error) => error, (node, error) => linkedText(node, error, run.run));
  for (const node of document.querySelectorAll("[data-factor]")) drawFactor(node, run);
  drawTiles(run);
  keyed($("facts"), "t-fact", facts(run), ([name]) => name, (node, [name, value, title]) => {
    put(node, { name, value });
    attribute(node, "title", title ?? "");
  });
  drawSelection();
  drawCause(run);
  drawStraggler(run);
  followTimeline(view.run, view.window);
  followStory(view.run, view.story);
  drawAccount(run, view.sort);
  drawRoles(run, view.sort);
  drawCollectives(run);
  drawPipeline(run);
  keyed($("figures"), "t-figure", figures(run), ([name]) => name, (node, [name, value, detail, title]) => {
    put(node, { name, value });
    putLinked(node, { detail }, run.run);
    attribute(node, "title", title);
    node.classList.toggle("unknown", value === "unknown");
    node.classList.toggle("wrong", name === THROUGHPUT && wrongFigures(run).has("throughput"));
  });
  drawRestarts(run, view.restarts);
  drawRanks(run, view);
  if (isLive) {
    followHardwareEvents(view.run, view.health);
    followRecentWindows(view.run, view.sort);
  }
  drawSections();
}

function drawHead(run) {
  const head = $("run-head");
  const status = statusOf(run);
  put(head, { name: nameText(run.run), status, status_meaning: STATUSES[status] ?? "" });
  attribute(field(head, "status"), "class", `status ${status in STATUSES ? status : ""}`);
  drawBoards($("run-boards"), run, [["Grafana: this run", "goodput-run"]]);
}

// Shows that only a part of the run's time is shown, or why it cannot be.
function drawSelection() {
  const { window, part, run, error } = view;
  $("selection").hidden = window === null;
  if (window === null) return;
  const length = duration(window[1] - window[0]);
  text($("selection-text"), part ? `Only ${localSpan(part.start, part.end)} is shown: ${duration(part.end - part.start)} of ` +
    `${duration(run.end - run.start)}.` : error ? `${error}: the whole run is shown until ${localSpan(...window)} is available.` :
    `Loading ${localSpan(...window)} (${length}) …`);
}

export function orderRanks(sort) {
  Object.assign(view, { sort, shown: ROWS });
  drawRun();
}

// Lists the ranks of one host.
export function showHost(host) {
  Object.assign(view, { filter: `host ${host}`, shown: ROWS });
  $("ranks-filter").value = view.filter;
  $("ranks-filter").focus({ preventScroll: true });
  drawRun();
}

// Lists the ranks of the stage in the address, once; with null those that were listed for one no more.
export function showStage(stage) {
  if (view.stage === stage) return;
  const filter = stage === null ? "" : `stage ${stage}`;
  if (stage !== null || view.filter === `stage ${view.stage}`) {
    Object.assign(view, { filter, shown: ROWS });
    $("ranks-filter").value = filter;
  }
  view.stage = stage;
  drawRun();
  if (stage !== null) $("all-ranks").scrollIntoView({ block: "start" });
}

// The figures that wrong input makes wrong; lines of a log that cannot be used make all shares of time wrong.
function wrongFigures({ wrong_figures: wrong = [], step_lines: steps }) {
  return new Set([...wrong, ...(steps?.incomplete ? ["goodput", "availability", "step_efficiency"] : [])]);
}

function drawFactor(node, run) {
  const factor = node.dataset.factor;
  const [name, meaning] = FACTORS[factor];
  const ratio = run.factors[factor];
  if (!node.firstElementChild) node.append(...["span", "strong", "small"].map((tag) => document.createElement(tag)));
  const [label, figure, small] = node.children;
  const unknown = ratio == null;
  text(label, name);
  text(figure, percent(ratio));
  const reason = run.errors.length ? "above 100 %, which cannot be: see the top" : run.mfu_unknown ?? NO_FLOPS;
  const { hfu } = run.factors;
  const more = factor === "mfu" && hfu !== null ? `HFU ${percent(hfu)}`
    : factor === "compute_efficiency" && run.reachable
      ? `${percent(run.reachable.compute_efficiency)} of the probed peak` : "";
  text(small, unknown && factor === "mfu" ? reason : more);
  node.classList.toggle("unknown", unknown);
  node.classList.toggle("wrong", wrongFigures(run).has(factor));
  attribute(node, "title", `${name}: ${meaning} (${run.basis[factor] ?? "unknown"})`);
}
