// Texts for states, factors and statuses.

import { isLive } from "../data/source.js";

// The same texts as in account/states.py; a test compares them.
export const MEANINGS = {
  productive: "compute phases of kept steps",
  loader: "waiting for the data loader",
  h2d: "copies to the device",
  communication: "collectives, as long as even the last rank waited",
  straggler: "waiting in collectives for a slower rank",
  bubble: "a pipeline's unavoidable fill and drain",
  launch: "the device idle because the host could not feed it",
  checkpoint: "saving checkpoints",
  evaluation: "evaluation",
  rollout: "making the data of the next update with the model (reinforcement learning)",
  compile: "compilation and first-step work",
  startup: "from an attempt's start to its first step",
  restore: "loading a checkpoint",
  stall: "no step progress for too long",
  lost: "steps that had to be done again, or never finished",
  down: "no live process",
  queue: "waiting for the scheduler",
  unattributed: "inside an attempt, in no phase",
  unobserved: "an expected rank without a report",
};
export const FACTORS = {
  goodput: ["goodput", "share of all allocated time that was useful work"],
  availability: ["availability", "time in kept steps ÷ allocated time"],
  step_efficiency: ["step efficiency", "productive time ÷ time in kept steps"],
  mfu: ["MFU", "model FLOPs of kept steps ÷ (peak × allocated time)"],
  compute_efficiency: ["compute efficiency", "model FLOPs ÷ (peak × productive time)"],
};
export const NO_FLOPS = "needs flops_per_step and peak_flops_per_second in goodput.start";
export const STATUSES = {
  pending: "its first account is being computed",
  running: isLive ? "" : "it was running when this file was written, or its log ends while it runs",
  hangs: "no rank completes a step",
  finished: "every rank of its last attempt ended normally",
  failed: "its processes have ended and not all finished, or it was reported as failed; work after its last " +
    "checkpoint counts as lost, and time since then as no one's until it is started again",
  cancelled: "it was reported as over; work after its last checkpoint counts as lost",
  abandoned: "it showed no life for a day, or as long as the aggregator is set to wait; no time is counted since, " +
    "until it reports again",
  unobserved: isLive ? "no recent report of this run: is goodput node running on its hosts?"
    : "no recent report of this run when this file was written",
};
// A name of blanks alone, or with some around it, would not be seen.
export const nameText = (name) => (name !== name.trim() || name === "" ? `“${name.replaceAll(/\s/g, "\u00a0")}”` : name);
// The API has no status for a hang: such a run is running.
export const statusOf = (run) => (run.hang && run.status === "running" ? "hangs" : run.status);
