// The nodes with critical hardware events in the last hour, above the list of runs; from api/v1/health.

import { Poll } from "../data/poll.js";
import { isLive } from "../data/source.js";
import { $, text } from "../dom/nodes.js";
import { count, plural } from "../text/numbers.js";

const EVERY_MS = 10_000;
const TIMEOUT_MS = 8000;
const EVENTS_MAX = 1000;
const NODES_SHOWN = 8;
const poll = new Poll(EVERY_MS, TIMEOUT_MS, EVERY_MS, EVERY_MS);
let events = [];

// Call at each refresh of the list of runs.
export function followNodeAlerts() {
  if (!isLive) return;
  draw();
  const since = Math.floor(Date.now() / 1000) - 3600;
  poll.request(`health?severity=critical&since=${since}&limit=${EVENTS_MAX}`, (answer) => {
    events = answer?.events ?? events;
    draw();
  });
}

function draw() {
  const byNode = new Map();
  for (const { node } of events) byNode.set(node, (byNode.get(node) ?? 0) + 1);
  $("health-nodes").hidden = byNode.size === 0;
  const named = [...byNode].slice(0, NODES_SHOWN).map(([node, number]) => `${node} (${count(number)})`);
  const more = byNode.size - named.length;
  text($("health-nodes-text"), `${plural(byNode.size, "node")} with critical hardware events in the last hour: ` +
    named.join(", ") + (more > 0 ? ` and ${count(more)} more` : "") + ".");
}
