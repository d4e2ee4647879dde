// How long the ranks of each stage of a pipeline wait in their sends and receives, where these are recorded.

import { $ } from "../dom/nodes.js";
import { linkedText } from "../dom/rank_links.js";
import { Table } from "../dom/table.js";
import { duration } from "../text/numbers.js";

const of = (operation, per) => (stage) => {
  const seconds = stage[operation]?.[per] ?? null; // Without declared microbatches nothing is known of one.
  return seconds === null ? "" : duration(seconds);
};

const COLUMNS = [
  { name: "stage", head: "Stage", build: () => [], draw: (cell, { run, stage }) => linkedText(cell, `stage ${stage}`, run) },
  { name: "recv", head: "Receives", class: "n", title: "Waiting in receives, per kept step", value: of("recv", "step_seconds") },
  { name: "recv-each", head: "per microbatch", class: "n", label: "Receives, per microbatch", value: of("recv", "microbatch_seconds") },
  { name: "send", head: "Sends", class: "n", title: "Waiting in sends, per kept step", value: of("send", "step_seconds") },
  { name: "send-each", head: "per microbatch", class: "n", label: "Sends, per microbatch", value: of("send", "microbatch_seconds") },
];
const table = new Table($("stage-waits-table"), "stage-wait-rows", COLUMNS);

export function drawPipeline({ run, pipeline }) {
  const waits = pipeline?.waits ?? []; // A document of an earlier version has none.
  const stages = new Map(waits.map(({ stage }) => [stage, { run, stage }]));
  for (const one of waits) stages.get(one.stage)[one.operation] = one;
  $("stage-waits").hidden = stages.size === 0;
  table.draw([...stages.values()], ({ stage }) => String(stage));
}
