// Communication by process group and operation, where collectives are recorded. The rows sum to the states.

import { $, text } from "../dom/nodes.js";
import { Table } from "../dom/table.js";
import { compact, count, percent, unitOf } from "../text/numbers.js";

let unit = null;
let total = 0;

const COLUMNS = [
  { name: "group", head: "Process group",
    value: (row) => row.group || (["", "other"].includes(row.operation) ? "" : "several groups") },
  { name: "operation", head: "Operation", value: (row) => row.operation || "not recorded" },
  { name: "time", head: "Time", class: "n",
    title: "Not known where the device waits for calls, not the host, and nobody has measured for how long: see the note",
    value: (row) => (row.gpu_seconds === null ? "not known" : unit.text(row.gpu_seconds)) },
  { name: "share", head: "Share", class: "n", title: "Of communication, straggler and bubble",
    value: (row) => (row.gpu_seconds === null ? "" : percent(total > 0 ? row.gpu_seconds / total : 0)) },
  { name: "skew", head: "Late ranks", class: "n",
    title: "Of this time, the part in which ranks waited for the last one to arrive; the rest is what all paid: transfer, in a pipeline also its schedule",
    value: skew },
  { name: "hidden", head: "Hidden", class: "n",
    title: "Time in which calls were under way and training did not wait; unknown where waiting does not tell when they ended",
    value: ({ hidden_gpu_seconds: low = null, hidden_gpu_seconds_max: high = null }) =>
      (low === null ? "" : between(unit.text(low), unit.text(high))) },
  { name: "ranks", head: "Ranks", class: "n", value: (row) => (row.operation ? count(row.ranks) : "") },
  { name: "calls", head: "Calls", class: "n", value: (row) => (row.calls === null ? "" : count(row.calls)) },
  { name: "bytes", head: "Data", class: "n", title: "The ranks' own parts of the tensors",
    value: (row) => (row.bytes === null ? "" : compact(row.bytes, "B")) },
  { name: "bus", head: "Bus", class: "n",
    title: "What the links of a rank carried at most (≤) while training waited, or at least (≥) while its calls were on the device, as the bus bandwidth of nccl-tests; of what goodput probe reached, or of the nominal rate of the links",
    value: bus },
];
const table = new Table($("collectives-table"), "collective-rows", COLUMNS);

function between(low, high) {
  return low === high ? low : `${low} to ${high}`;
}

function skew({ gpu_seconds: whole, skew_gpu_seconds: least = 0, transfer_gpu_seconds: transfer = 0 }) {
  if (!(whole > 0)) return "";
  return least + transfer > 0 ? between(percent(least / whole), percent(1 - transfer / whole)) : "unknown";
}

function bus({ bus_bytes_per_second_max: upper, bus_bytes_per_second_min: lower, bus_ceiling_bytes_per_second: most = null,
  bus_ceiling_source: source }) {
  const rate = upper || lower;
  if (!rate) return "";
  const carried = `${upper ? "≤" : "≥"} ${compact(rate, "B/s")}`;
  return most === null ? carried : `${carried}, ${percent(rate / most)} of ${source}`;
}

export function drawCollectives(run) {
  const rows = run.collectives ?? []; // A document of an earlier version has none.
  $("collectives").hidden = rows.length === 0;
  unit = unitOf(run);
  total = rows.reduce((sum, row) => sum + row.gpu_seconds, 0);
  table.setHead("time", unit.head);
  table.draw(rows, (row) => `${row.group} ${row.operation}`);
  text($("collectives-note"), [
    run.basis.collectives === "estimated" ?
      "An estimate: a part of what was recorded is lost, stalled, outside the selection, or on the device's clock." : "",
    rows.some((row) => row.gpu_seconds === null) ?
      "Not known: the device waits for these calls, not the host. NCCL's profiler plugin measures how long, where steps are on the device's clock; goodput run loads it." : "",
  ].filter(Boolean).join(" "));
}
