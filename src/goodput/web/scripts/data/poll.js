// Polling in the background, for answers that the aggregator computes from its ledger.

import { Busy } from "./api.js";
import { get, isLive } from "./source.js";

// Polls at most every `everyMs`; pauses four times as long as an answer took; backs off exponentially after failures.
export class Poll {
  constructor(everyMs, timeoutMs, retryMs = 30_000, retryMsMax = 240_000) {
    Object.assign(this, { everyMs, timeoutMs, retryMs, retryMsMax, nextMs: 0, waitMs: 0, pending: null, error: "" });
  }

  // Sends a request if one is due; `then` gets the answer, null after a failure (the reason is in `error`), and is not
  // called after `stop`.
  async request(path, then) {
    if (this.pending || performance.now() < this.nextMs) return;
    const controller = (this.pending = new AbortController());
    const timeout = setTimeout(() => controller.abort(new Error("No answer")), this.timeoutMs);
    const startMs = performance.now();
    try {
      const answer = await get(path, controller.signal);
      if (controller !== this.pending) return;
      Object.assign(this, { waitMs: 0, error: "" });
      const nowMs = performance.now();
      this.nextMs = isLive ? nowMs + Math.max(this.everyMs, 4 * (nowMs - startMs)) : Infinity;
      then(answer);
    } catch (error) {
      if (controller !== this.pending) return;
      this.waitMs = Math.min(Math.max(this.retryMs, 2 * this.waitMs), this.retryMsMax);
      this.nextMs = performance.now() + this.waitMs;
      this.error = error instanceof Busy ? error.message : "No answer";
      then(null);
    } finally {
      clearTimeout(timeout);
      if (controller === this.pending) this.pending = null;
    }
  }

  stop() {
    this.pending?.abort();
    this.pending = null;
  }
}
