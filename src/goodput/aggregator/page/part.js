// The account of the part of a run's time that a person selected.
//
// In: api/v1/runs/NAME/account for that part, once, and again now and then while the run goes on, since its work may
// still be lost. Out: `view.part`, and in `view.why` what stands in the way.

import { Poll } from "./ask.js";

const EVERY_MS = 30_000;
const ANSWER_MS_MAX = 130_000; // The account is read from the ledger; the aggregator gives up a little before.
let asked = { key: "", poll: null };

// To be called at each refresh of a run, and when another part is selected. `drawn` is called when an answer is there.
export function followPart(view, drawn) {
  const { run, window } = view;
  const key = window === null ? "" : `${view.name} ${window.join(" ")}`;
  if (key !== asked.key) {
    asked.poll?.stop();
    asked = { key, poll: new Poll(EVERY_MS, ANSWER_MS_MAX) };
    Object.assign(view, { part: null, why: "" });
  }
  if (window === null || (view.part !== null && run.status !== "running")) return;
  const mine = asked;
  const [start, end] = window;
  mine.poll.now(`runs/${encodeURIComponent(view.name)}/account?start=${start}&end=${end}`, (part) => {
    if (mine !== asked) return;
    if (part) view.part = part;
    view.why = mine.poll.why;
    drawn();
  });
}
