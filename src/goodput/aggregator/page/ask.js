// One way to the JSON API: in, a path under api/v1/ and a signal; out, what it says, null where it is not there.
//
// Whoever is not let in is told to sign in, wherever on the page the question came from. Errors say in words what a
// person can do; an abort stays what it was.

import { $ } from "./nodes.js";

export class Busy extends Error {}

export async function ask(path, signal) {
  const answer = await fetch(`api/v1/${path}`, { signal, cache: "no-store" }).catch((error) => {
    throw error instanceof TypeError ? new Error("The aggregator does not answer: no connection.") : error;
  });
  $("signin").hidden = answer.status !== 401;
  if (answer.status === 404) return null;
  if (answer.status === 401) throw new Error("The aggregator wants to know who asks: sign in.");
  if (answer.status === 403) throw new Error("You may not see this: sign in with a token that may read it.");
  if (answer.status === 503 || answer.status === 429) throw new Busy("The aggregator is busy");
  if (!answer.ok) throw new Error(`The aggregator answers with an error: HTTP ${answer.status}.`);
  return answer.json();
}

// A question in the background, now and then: at most each `everyMs`, less often the longer an answer takes, and twice
// as long after each time that there was none.
export class Poll {
  constructor(everyMs, answerMsMax, busyMs = 30_000, busyMsMax = 240_000) {
    Object.assign(this, { everyMs, answerMsMax, busyMs, busyMsMax, next: 0, wait: 0, asking: null, why: "" });
  }

  // Asks if it is time to; `then` gets the answer.
  async now(path, then) {
    if (this.asking || performance.now() < this.next) return;
    const mine = (this.asking = new AbortController());
    const late = setTimeout(() => mine.abort(new Error("No answer")), this.answerMsMax);
    const began = performance.now();
    try {
      const answer = await ask(path, mine.signal);
      if (mine !== this.asking) return;
      Object.assign(this, { wait: 0, why: "" });
      this.next = performance.now() + Math.max(this.everyMs, 4 * (performance.now() - began));
      then(answer);
    } catch (error) {
      if (mine !== this.asking) return;
      this.wait = Math.min(Math.max(this.busyMs, 2 * this.wait), this.busyMsMax);
      this.next = performance.now() + this.wait;
      this.why = error instanceof Busy ? error.message : "No answer";
      then(null);
    } finally {
      clearTimeout(late);
      if (mine === this.asking) this.asking = null;
    }
  }

  stop() {
    this.asking?.abort();
    this.asking = null;
  }
}
