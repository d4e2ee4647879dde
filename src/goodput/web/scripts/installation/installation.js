// The state of the aggregator and of the agents that push to it; from api/v1/installation.

import { get } from "../data/source.js";
import { $, attribute, field, keyed, make, put, text, width } from "../dom/nodes.js";
import { Table } from "../dom/table.js";
import { compact, count, duration, percent, plural } from "../text/numbers.js";

const FULL = 0.9; // of a bound
const SKEW_SECONDS = 5;
const SOON_SECONDS = 14 * 86_400;
const ROWS_MAX = 64;
const CLOCKS_MAX = 16; // those that are off most

const meter = () => [make("span", { class: "meter" }, make("i", { "data-f": "meter" })), make("span", { "data-f": "share" })];
// Made when the view is first shown, since other views and pages in a file have no use for their elements.
let tables = null;

const makeTables = () => ({
  bounds: new Table($("bounds-table"), "bounds-rows", [
    { name: "bound", head: "Bound", value: ([name]) => name.replaceAll("_", " ") },
    { name: "share", head: "Used", build: meter, draw: drawShare },
  ]),
  agents: new Table($("agents-table"), "agents-rows", [
    { name: "version", head: "Version", value: ([version]) => version },
    { name: "nodes", head: "Nodes", class: "n", value: ([, nodes]) => count(nodes) },
  ]),
  clocks: new Table($("clocks-table"), "clocks-rows", [
    { name: "node", head: "Node", value: (clock) => clock.node },
    { name: "offset", head: "Ahead of the aggregator", class: "n", value: (clock) => duration(clock.seconds) },
  ]),
  refused: new Table($("refused-table"), "refused-rows", [
    { name: "what", head: "What", value: (row) => row.what },
    { name: "reason", head: "Reason", value: (row) => row.reason.replaceAll("_", " ") || "–" },
    { name: "count", head: "Count", class: "n", value: (row) => count(row.count) },
  ]),
});
// What was refused when the page was opened, so that it says what is being refused now.
let before = null;

function drawShare(cell, [, share]) {
  put(cell, { share: percent(share) });
  width(field(cell, "meter"), share);
}

// Loads and draws it; throws as `get` does.
export async function showInstallation(signal) {
  const found = await get("installation", signal);
  $("installation-none").hidden = found !== null;
  $("installation-body").hidden = found === null;
  if (found === null) return text($("installation-none"), "This aggregator is too old to report it.");
  before ??= sum(found.refused);
  tables ??= makeTables();
  drawProblems(problems(found));
  drawFacts(found);
  tables.bounds.draw(Object.entries(found.bounds).sort((a, b) => b[1] - a[1]), ([name]) => name);
  tables.agents.draw(Object.entries(found.agents).slice(0, ROWS_MAX), ([version]) => version);
  tables.clocks.draw(found.clock_offsets.slice(0, CLOCKS_MAX), (clock) => clock.node);
  tables.refused.draw(found.refused.slice(0, ROWS_MAX), (row) => `${row.what} ${row.reason}`);
  for (const [name, rows] of [["clocks", found.clock_offsets], ["refused", found.refused]]) {
    $(`${name}-none`).hidden = rows.length > 0;
    $(`${name}-table`).hidden = rows.length === 0;
  }
}

const sum = (rows) => rows.reduce((total, row) => total + row.count, 0);

function problems(found) {
  const now = Date.now() / 1000;
  const full = Object.entries(found.bounds).filter(([, share]) => share >= FULL);
  const skewed = found.clock_offsets.filter((clock) => Math.abs(clock.seconds) > SKEW_SECONDS);
  const versions = Object.keys(found.agents);
  const since = sum(found.refused) - before;
  return [
    ...full.map(([bound, share]) => `${bound.replaceAll("_", " ")}: ${percent(share)} of the bound is used`),
    ...found.failing_files.map((file) => `the newest ${file} file cannot be loaded; the previous one is in use`),
    ...Object.entries(found.expires).filter(([, at]) => at - now < SOON_SECONDS)
      .map(([what, at]) => (at < now ? `the ${what} has expired` : `the next ${what} expires in ${duration(at - now)}`)),
    ...(skewed.length ? [`${plural(skewed.length, "node")} with a clock that is more than ${SKEW_SECONDS} s off, ` +
      `${skewed[0].node} by ${duration(skewed[0].seconds)}`] : []),
    ...(versions.length > 1 ? [`agents of ${count(versions.length)} versions: ${versions.join(", ")}`] : []),
    ...(since > 0 ? [`${plural(since, "refusal")} since this page was opened`] : []),
  ];
}

function drawProblems(found) {
  $("installation-problems").hidden = found.length === 0;
  $("installation-well").hidden = found.length > 0;
  keyed($("installation-problems"), "t-item", found, (line) => line, text);
}

function drawFacts({ version, ledger, memory_bytes, memory_limit_bytes }) {
  const bytes = (value) => (value === null ? "unknown" : compact(value, "B"));
  const of = memory_limit_bytes === null ? "" : ` of ${bytes(memory_limit_bytes)}`;
  const facts = [
    ["Aggregator", version], ["Memory", bytes(memory_bytes) + of], ["Ledger", bytes(ledger.bytes)],
    ["Freed by compaction", bytes(ledger.freed_bytes)], ["Runs in memory", count(ledger.runs_in_memory)],
    ["Runs in the ledger alone", count(ledger.runs)],
  ];
  keyed($("installation-facts"), "t-fact", facts, ([name]) => name, (node, [name, value]) => {
    put(node, { name, value });
    attribute(node, "data-fact", name);
  });
}
