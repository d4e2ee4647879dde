// What is known of a run besides its account, as [name, value, title]: in, the API's run; out, texts. Knows no page.

import { count, duration, gpuUnit, percent, utcTime, zonedTime } from "./numbers.js";

export function facts(run) {
  const { kept, lost } = run.steps;
  const unit = gpuUnit(run.gpu_seconds);
  return [
    ["Ranks", count(run.world_size)],
    ["Start", zonedTime(run.start), utcTime(run.start)],
    ["Duration", duration(run.end - run.start), `until ${utcTime(run.end)}`],
    [unit.name, unit.text(run.gpu_seconds), "allocated: every GPU of every expected rank, from start to end"],
    ["Rank-steps", `${count(kept)} kept, ${count(lost)} lost`, "steps of all ranks together; lost ones were done again"],
    ["Samples", count(run.samples), "of all attempts together"],
    ...stepFacts(run.windows.sliding),
    ["Restarts", count(run.restarts.length)],
    ["Observed", percent(run.coverage.time), "coverage: share of the allocated GPU time that somebody reported"],
    ["Device clock", percent(run.coverage.device_clock),
      "coverage: share of the time measured on the device; the rest is the host's clock"],
  ];
}

// Step time lately; nothing where no step ended in the window.
function stepFacts({ steps, step_seconds: { p50, p99, p999 } }) {
  if (!steps) return [];
  const tail = `of the steps that ended in the last five minutes; 99.9 % took at most ${seconds(p999)}`;
  return [["Step time", `${seconds(p50)}, p99 ${seconds(p99)}`, `median and 99th percentile ${tail}`]];
}

function seconds(value) {
  return value == null ? "unknown" : value < 1 ? `${(1000 * value).toPrecision(3)} ms` : duration(value);
}
