// What the page says of states, factors and statuses.

// The same lines as account/states.py; a test holds them together.
export const MEANINGS = {
  productive: "compute phases of kept steps",
  loader: "waiting for the data loader",
  h2d: "copies to the device",
  communication: "collectives, as long as even the last rank waited",
  straggler: "collectives beyond that: waiting for a slower rank",
  launch: "the device idle because the host could not feed it",
  checkpoint: "saving checkpoints",
  evaluation: "evaluation",
  compile: "compilation and first-step work",
  startup: "from an attempt's start to its first step",
  restore: "loading a checkpoint",
  stall: "no step progress for too long",
  lost: "steps that had to be done again, or never finished",
  down: "no live process",
  queue: "waiting for the scheduler",
  unattributed: "inside an attempt, in no phase",
  unobserved: "an expected rank that nobody reported",
};
export const FACTORS = {
  goodput: ["goodput", "share of all allocated GPU time that was useful work"],
  availability: ["availability", "time in kept steps ÷ allocated time"],
  step_efficiency: ["step efficiency", "productive time ÷ time in kept steps"],
  mfu: ["MFU", "model FLOPs of kept steps ÷ (peak × allocated time)"],
  compute_efficiency: ["compute efficiency", "model FLOPs ÷ (peak × productive time)"],
};
export const NO_FLOPS = "needs flops_per_step and peak_flops_per_second in goodput.start";
export const STATUSES = {
  running: "",
  hangs: "its processes live, and no rank completes a step",
  finished: "every rank of its last attempt ended by itself",
  down: "no process of this run is alive; work after its last checkpoint counts as lost until it resumes",
  failed: "somebody said that it failed and is over; work after its last checkpoint counts as lost",
  cancelled: "somebody said that it is over; work after its last checkpoint counts as lost",
  unobserved: "nobody has reported this run lately: is goodput node running on its hosts?",
};
// What a person is told: to the API a run that hangs is running.
export const statusOf = (run) => (run.hang ? "hangs" : run.status);
