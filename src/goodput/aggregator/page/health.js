// What happened to the hardware: a table of the events that hit the run that is open, and above the list of runs the
// nodes that had critical ones in the last hour.
//
// In: api/v1/runs/NAME/health and api/v1/health, each at most every 10 s. Out: rows; nothing where nothing happened.
// An answer that does not come leaves what was there: that the aggregator is silent the page says elsewhere.

import { ask } from "./ask.js";
import { $, field, attribute, keyed, paged, put, showTime, text } from "./nodes.js";
import { count, dollars, gpuUnit, plural } from "./numbers.js";

const EVERY_MS = 10_000;
const ANSWER_MS_MAX = 8000;
const EVENTS_MAX = 1000;
const HOUR_SECONDS = 3600;
const NODES_SHOWN = 8;
const SEVERITIES = { info: "info", warning: "warning", critical: "critical" };

const fresh = (name) => ({ name, run: null, view: null, events: [], next: 0, asking: null });
let state = fresh(null);
const nodes = { events: [], next: 0, asking: null };

// To be called at each refresh of a run; `view.shown` is how many rows are drawn.
export function followHealth(run, view) {
  if (state.name !== run.run) {
    state.asking?.abort();
    state = fresh(run.run);
  }
  Object.assign(state, { run, view });
  drawEvents();
  const mine = state;
  follow(mine, `runs/${encodeURIComponent(run.run)}/health?limit=${EVENTS_MAX}`, () => mine === state && drawEvents());
}

// To be called at each refresh of the list of runs.
export function followNodes() {
  drawNodes();
  const since = Math.floor(Date.now() / 1000) - HOUR_SECONDS;
  follow(nodes, `health?severity=critical&since=${since}&limit=${EVENTS_MAX}`, drawNodes);
}

async function follow(mine, path, then) {
  if (mine.asking || performance.now() < mine.next) return;
  mine.asking = new AbortController();
  const late = setTimeout(() => mine.asking?.abort(), ANSWER_MS_MAX);
  try {
    mine.events = (await ask(path, mine.asking.signal))?.events ?? mine.events;
  } catch {
    // As said above.
  } finally {
    clearTimeout(late);
    mine.asking = null;
    mine.next = performance.now() + EVERY_MS;
  }
  then();
}

function drawEvents() {
  const { run, events, view } = state;
  $("health").hidden = events.length === 0;
  if (events.length === 0) return;
  const unit = gpuUnit(run.gpu_seconds);
  text($("health-unit"), `Restart, ${unit.name}`);
  const key = (event) => `${event.node} ${event.number}`;
  keyed($("health-rows"), "t-health", paged(events, view, $("health-more"), "events"), key, (node, event) => {
    put(node, {
      node: event.node, severity: event.severity, what: what(event), device: event.device || "unknown",
      ranks: ranks(event), seconds: event.gpu_seconds === null ? "none known" : unit.text(event.gpu_seconds),
      cost: event.gpu_seconds === null ? "" : dollars(event.cost, run.cost?.total),
    });
    attribute(field(node, "severity"), "class", `tag ${SEVERITIES[event.severity] ?? ""}`);
    attribute(field(node, "what"), "title", event.text);
    showTime(node.querySelector("time"), event.time);
  });
}

function what({ kind, code, name }) {
  const words = [kind.replaceAll("_", " ")];
  if (code) words.push(String(code));
  if (name) words.push(name);
  return words.join(" ");
}

function ranks({ hits }) {
  const hit = [...new Set(hits.map((one) => one.rank))].sort((a, b) => a - b);
  const rest = hit.length - NODES_SHOWN;
  return hit.slice(0, NODES_SHOWN).join(", ") + (rest > 0 ? ` and ${count(rest)} more` : "");
}

function drawNodes() {
  const found = new Map();
  for (const { node } of nodes.events) found.set(node, (found.get(node) ?? 0) + 1);
  $("health-nodes").hidden = found.size === 0;
  const named = [...found].slice(0, NODES_SHOWN).map(([node, events]) => `${node} (${count(events)})`);
  const rest = found.size - named.length;
  text($("health-nodes-text"), `${plural(found.size, "node")} with critical hardware events in the last hour: ` +
    named.join(", ") + (rest > 0 ? ` and ${count(rest)} more` : "") + ".");
}
