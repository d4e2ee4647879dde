// Hardware events that hit the open run, from api/v1/runs/NAME/health. The section is hidden where there are none.

import { runPath } from "../data/api.js";
import { Poll } from "../data/poll.js";
import { $, attribute, field, make, paged, showTime, text } from "../dom/nodes.js";
import { rankLink } from "../dom/rank_links.js";
import { Table, timeCell } from "../dom/table.js";
import { count, dollars, unitOf } from "../text/numbers.js";

const EVERY_MS = 10_000;
const TIMEOUT_MS = 8000;
const EVENTS_MAX = 1000;
const RANKS_SHOWN = 8;
const SEVERITIES = ["info", "warning", "critical"];

const fresh = (name) => ({ name, run: null, view: null, events: [], poll: new Poll(EVERY_MS, TIMEOUT_MS, EVERY_MS, EVERY_MS) });
let state = fresh(null);

const COLUMNS = [
  { name: "time", head: "Time", label: "Time", build: timeCell, draw: (cell, event) => showTime(cell.firstElementChild, event.time) },
  { name: "node", head: "Node", value: (event) => event.node },
  { name: "what", head: "What", draw: drawWhat,
    build: () => [make("span", { "data-f": "severity" }), " ", make("span", { "data-f": "what" })] },
  { name: "device", head: "Device", value: (event) => event.device || "unknown" },
  { name: "ranks", head: "Ranks", build: () => [], draw: drawHit },
  { name: "restart", head: "Restart", class: "n",
    title: "Down, lost and startup of the restart attributed to it: a rank that it hit failed within 10 minutes",
    value: (event) => (event.gpu_seconds === null ? "none known" : unitOf(state.run).text(event.gpu_seconds)) },
  { name: "cost", head: "Cost", class: "n costs",
    value: (event) => (event.gpu_seconds === null ? "" : dollars(event.cost, state.run.cost?.total)) },
];
const table = new Table($("health-table"), "health-rows", COLUMNS);

// Call at each refresh of a run; `view.shown` is how many rows are drawn.
export function followHardwareEvents(run, view) {
  if (state.name !== run.run) {
    state.poll.stop();
    state = fresh(run.run);
  }
  Object.assign(state, { run, view });
  draw();
  state.poll.request(runPath(run.run, "health", `limit=${EVENTS_MAX}`), (answer) => {
    state.events = answer?.events ?? state.events;
    draw();
  });
}

function draw() {
  const { run, events, view } = state;
  $("health").hidden = events.length === 0;
  if (events.length === 0) return;
  table.setHead("restart", `Restart, ${unitOf(run).name}`);
  table.draw(paged(events, view, $("health-more"), "events"), (event) => `${event.node} ${event.number}`);
}

function drawWhat(cell, event) {
  const [severity, what] = [field(cell, "severity"), field(cell, "what")];
  text(severity, event.severity);
  attribute(severity, "class", `tag ${SEVERITIES.includes(event.severity) ? event.severity : ""}`);
  text(what, [event.kind.replaceAll("_", " "), event.code || "", event.name].filter(Boolean).join(" "));
  attribute(what, "title", event.text);
}

function drawHit(cell, { hits }) {
  const hit = [...new Set(hits.map((one) => one.rank))].sort((a, b) => a - b);
  const more = hit.length - RANKS_SHOWN;
  const key = `${state.run.run} ${hit.join(" ")}`;
  if (cell.dataset.linked === key) return;
  cell.dataset.linked = key;
  const links = hit.slice(0, RANKS_SHOWN).flatMap((rank, i) => [i ? ", " : "", rankLink(state.run.run, rank, String(rank))]);
  cell.replaceChildren(...links, more > 0 ? ` and ${count(more)} more` : "");
}
