// The data inlined in a page that `goodput replay --html` or `goodput report --html` wrote, under the API's paths.

import { leadingCause } from "./causes.js";

const element = document.getElementById("data");

// {written, command, runs: [account document], timelines: {run: timeline}, stories: {run: story}, log, runs_left_out}; null on a served page.
export const file = element === null ? null : JSON.parse(element.textContent);

// As getFromApi. Only the list of runs, a run, its timeline and its story are in a file.
export async function getFromFile(path) {
  const [names, query] = path.split("?");
  const [, name, view] = names.split("/");
  if (name === undefined) return { runs: file.runs.map(summary), total: file.runs.length, truncated: false };
  const wanted = new URLSearchParams(query).get("run") ?? decodeURIComponent(name); // See runPath.
  const run = file.runs.find((one) => one.run === wanted);
  if (view === "timeline") return file.timelines[run.run] ?? null;
  if (view === "story") return file.stories[run.run] ?? null;
  return view === undefined ? (run ?? null) : null;
}

// Those of the ranks that are listed and of those that were never seen.
function gpusOf({ is_on_cpu: onCpu, ranks, unseen_ranks: unseen = [] }) {
  const sum = (rows, of) => rows.reduce((total, row) => total + of(row), 0);
  return onCpu ? 0 : sum(ranks, (one) => one.devices) + sum(unseen, (one) => one.devices * one.ranks);
}

// What the others wait for: in a hang, else in each step.
function culpritOf({ hang = null, straggler, ranks }) {
  const { culprit, culprit_stage: stage = null } = straggler;
  if (hang) return hang.culprit === null ? null : { rank: hang.culprit, host: hang.host, stage: null };
  if (culprit === null && stage === null) return null;
  return { rank: culprit, stage: culprit === null ? stage : null, host: ranks.find((one) => one.rank === culprit)?.host ?? null };
}

// A row of the list of runs, as api/v1/runs has it.
function summary(run) {
  const { productive } = run.states;
  return {
    run: run.run, status: run.status, start: run.start, end: run.end, world_size: run.world_size,
    gpu_seconds: run.gpu_seconds, goodput: run.factors.goodput, mfu: run.factors.mfu,
    gpus: gpusOf(run), is_on_cpu: run.is_on_cpu ?? false, restarts: run.restarts.length, leading_cause: leadingCause(run), hang: Boolean(run.hang), states: run.states,
    waste_gpu_seconds: run.gpu_seconds - productive,
    culprit: culpritOf(run),
    cost: run.cost?.total ?? null,
    waste_cost: run.cost === null ? null : run.cost.total - run.cost.states.productive,
  };
}
