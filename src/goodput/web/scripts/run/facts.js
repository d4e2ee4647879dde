// Facts about a run besides its account: [name, value, explanation].

import { compact, count, dollars, duration, percent, plural, stepTime, unitOf } from "../text/numbers.js";
import { utcTime, zonedTime } from "../text/time.js";

export function facts(run) {
  const { kept, lost } = run.steps;
  const unit = unitOf(run);
  const { coverage } = run;
  return [
    ["Ranks", count(run.world_size)],
    ["Start", zonedTime(run.start), utcTime(run.start)],
    ["Duration", duration(run.end - run.start), `until ${utcTime(run.end)}`],
    [unit.head, unit.text(run.gpu_seconds), `allocated: every ${unit.worker} of every expected rank, from start to end`],
    ["Not productive", wasted(run, unit), `${unit.worker} time outside of the productive state`],
    ["Rank-steps", `${count(kept)} kept, ${count(lost)} lost`, "steps of all ranks together; lost ones were done again"],
    // Steps without any sample: samples are not reported.
    ["Samples", run.samples || !kept ? count(run.samples) : "unknown", "of all attempts together"],
    ...stepFacts(run.windows?.sliding),
    ["Restarts", count(run.restarts.length)],
    ["Observed", percent(coverage.time), `coverage: share of the allocated ${unit.worker} time for which there is a report`],
    ...clockFacts(run.clocks ?? []),
    ...copyFacts(run.device_copies),
    ...(run.is_on_cpu && coverage.device_clock === 0 ? [] : [["Device clock", percent(coverage.device_clock),
      "coverage: share of the time measured on the device; the rest is the host's clock"]]),
    ...(coverage.phases < 1 && coverage.phases !== null
      ? [["Phases", percent(coverage.phases), "coverage: share of the steps whose phases were measured"]] : []),
  ];
}

function wasted(run, unit) {
  const seconds = unit.text(run.gpu_seconds - run.states.productive);
  return run.cost === null ? seconds
    : `${seconds}, ${dollars(run.cost.total - run.cost.states.productive, run.cost.total)}`;
}

// Hosts whose clock is off; their ranks' times lie off those of the others, which leaves time not observed.
function clockFacts(clocks) {
  if (!clocks.length) return [];
  const named = clocks.slice(0, 4).map((one) =>
    `${one.host} ${duration(Math.abs(one.ahead_seconds))} ${one.ahead_seconds < 0 ? "behind" : "ahead"}`);
  const more = clocks.length > 4 ? `, and ${count(clocks.length - 4)} more` : "";
  return [["Clocks off", named.join(", ") + more,
    "times of ranks on these hosts differ by as much from the others': in between, time counts as not observed"]];
}

// How fast the last traced step copied to the device, of what `goodput probe` reached on that node.
function copyFacts(found) {
  if (!found) return [];
  const { ranks, rank, host, h2d_bytes_per_second: rate, reached_ratio: ratio } = found;
  const share = ratio === null ? "" : `, ${percent(ratio)} of what the node can do`;
  const which = ranks === 1 ? "" : `, the lowest of ${plural(ranks, "rank")}`;
  return [["Copies to GPU", `${compact(rate, "B")}/s${share}`,
    `from host memory, in the last step of rank ${rank}${host ? ` on ${host}` : ""} that a deep look traced${which}; what the ` +
    "node can do is pinned copies in goodput probe"]];
}

// Step time in the last five minutes; nothing where no step ended in them.
function stepFacts(window) {
  if (!window?.steps) return [];
  const { p50, p99, p999 } = window.step_seconds;
  const title = `of the steps that ended in the last five minutes; 99.9 % took at most ${stepTime(p999)}`;
  return [["Step time", `${stepTime(p50)}, p99 ${stepTime(p99)}`, `median and 99th percentile ${title}`]];
}
