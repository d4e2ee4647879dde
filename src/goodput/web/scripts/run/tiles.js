// The tiles at the top of a run besides its factors: what was lost, and the culprit.

import { putLinked } from "../dom/rank_links.js";
import { $, attribute, put } from "../dom/nodes.js";
import { capitalised, dollars, percent, unitOf, workerOf } from "../text/numbers.js";
import { culpritOf } from "./culprit.js";

export function drawTiles(run) {
  put($("tile-lost"), lost(run));
  attribute($("tile-lost"), "title", `${capitalised(workerOf(run))} time that was not productive, and what it cost`);
  const { name, detail } = culpritOf(run);
  putLinked($("tile-culprit"), { value: name === undefined ? "unknown" : name ?? "none", detail }, run.run);
  $("tile-culprit").classList.toggle("bad", Boolean(name));
  $("tile-culprit").classList.toggle("unknown", !name);
}

function lost(run) {
  const unit = unitOf(run);
  const seconds = run.gpu_seconds - run.states.productive;
  const share = run.gpu_seconds > 0 ? `${percent(seconds / run.gpu_seconds)} of ` : "";
  const whole = `${unit.text(run.gpu_seconds)} ${unit.name}`;
  if (run.cost === null) return { value: `${unit.text(seconds)} ${unit.short}`, detail: `${run.is_on_cpu ? `${unit.name}: ` : ""}${share}${run.is_on_cpu ? unit.text(run.gpu_seconds) : whole}; needs gpu_hour_cost for money` };
  return { value: dollars(run.cost.total - run.cost.states.productive, run.cost.total),
    detail: `${unit.text(seconds)} ${unit.name}: ${share}${whole}, ${dollars(run.cost.total, run.cost.total)}` };
}
