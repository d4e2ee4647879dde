// The restarts, newest first, with what each has cost: in, the API's run; out, a table and one line that sums it up.

import { $, keyed, paged, put, showTime, text } from "./nodes.js";
import { count, dollars, duration, gpuUnit, plural } from "./numbers.js";

export function drawRestarts(run, view) {
  const rows = [...run.restarts].reverse();
  const unit = gpuUnit(run.gpu_seconds);
  $("restarts").hidden = rows.length === 0;
  text($("restarts-sum"), rows.length === 0 ? "None." : summed(rows, unit, run.cost?.total));
  text($("restarts-unit"), `In all, ${unit.name}`);
  const shown = paged(rows, view, $("restarts-more"), "restarts");
  keyed($("restart-rows"), "t-restart", shown, (row) => row.attempt, (node, row) => {
    put(node, {
      attempt: row.attempt, resume: row.resume_step ?? "unknown", down: duration(row.down_seconds),
      steps: count(row.lost_steps), lost: unit.text(row.lost_gpu_seconds), startup: unit.text(row.startup_gpu_seconds),
      whole: unit.text(row.gpu_seconds), cost: dollars(row.cost, run.cost?.total),
    });
    showTime(node.querySelector("time"), row.time);
  });
}

function summed(rows, unit, whole) {
  const sum = (name) => rows.reduce((total, row) => total + row[name], 0);
  const cost = rows.some((row) => row.cost === null) ? "" : ` and ${dollars(sum("cost"), whole)}`;
  return `${plural(rows.length, "restart")} took ${unit.text(sum("gpu_seconds"))} ${unit.name}${cost}: ` +
    "being down, steps that were lost, and coming back to the first step.";
}
