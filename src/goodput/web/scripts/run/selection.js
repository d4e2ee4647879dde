// The account of a selected part of a run's time, from api/v1/runs/NAME/account.

import { runPath } from "../data/api.js";
import { Poll } from "../data/poll.js";

const EVERY_MS = 30_000;
const TIMEOUT_MS = 130_000; // The account is read from the ledger; the aggregator gives up a little earlier.
let poll = new Poll(EVERY_MS, TIMEOUT_MS);
let polled = "";

// Call at each refresh of a run, and when the selection changes. Sets `view.part` to the account, `view.error` to what
// went wrong, and calls `redraw`. A running run is polled again, since its work may still be lost.
export function followSelection(view, redraw) {
  const { run, window } = view;
  const key = window === null ? "" : `${view.name} ${window.join(" ")}`;
  if (key !== polled) {
    poll.stop();
    [poll, polled] = [new Poll(EVERY_MS, TIMEOUT_MS), key];
    Object.assign(view, { part: null, error: "" });
  }
  if (window === null || (view.part !== null && run.status !== "running")) return;
  const [start, end] = window;
  poll.request(runPath(view.name, "account", `start=${start}&end=${end}`), (part) => {
    if (part) view.part = part;
    view.error = poll.error;
    redraw();
  });
}
