// What happened to the open run, from api/v1/runs/NAME/story: the costliest events in the order of time, each with what is
// known of it and how. A file without a story has no such section.

import { runPath } from "../data/api.js";
import { Poll } from "../data/poll.js";
import { isLive } from "../data/source.js";
import { $, attribute, field, keyed, put, showTime, text } from "../dom/nodes.js";
import { putLinked } from "../dom/rank_links.js";
import { count, dollars, duration, percent, plural, workerOf, workTime } from "../text/numbers.js";

const EVERY_MS = 30_000;
const TIMEOUT_MS = 130_000; // The story is built from the ledger; the aggregator gives up a little earlier.
const COSTLIEST = 5;
const BASES = ["measured", "estimated", "coincident"];
const HAVE_LENGTH_IN_TITLE = ["stall", "checkpoint", "no checkpoint"];

const fresh = (name) => ({ name, run: null, story: null, poll: new Poll(EVERY_MS, TIMEOUT_MS) });
let state = fresh(null);

// Call at each refresh of a run; with `view.all` all events are drawn.
export function followStory(run, view) {
  if (state.name !== run.run) {
    closeStory();
    state = fresh(run.run);
  }
  state.run = run;
  draw(view);
  if (state.story?.end === run.end) return;
  state.poll.request(runPath(run.run, "story"), (answer) => {
    state.story = answer ?? state.story;
    draw(view);
  });
}

export function closeStory() {
  state.poll.stop();
  state = fresh(null);
  draw({}); // Nothing of it stays where the next run is shown.
}

function draw(view) {
  const { story, poll } = state;
  $("story").hidden = story === null && !isLive;
  const loading = poll.error ? `${poll.error}; retrying.` : "Loading …";
  text($("story-sum"), story === null ? loading : summary(story, view.all));
  const events = story?.events ?? [];
  const shown = view.all ? events : costliest(events);
  keyed($("story-events"), "t-event", shown, (event) => events.indexOf(event), drawEvent);
  const more = $("story-more");
  more.hidden = events.length <= COSTLIEST;
  text(more, view.all ? `Show the ${COSTLIEST} costliest` : `Show all ${count(events.length)} events`);
}

// Those with the highest cost, of equal ones the newest, as they happened.
function costliest(events) {
  const order = events.map((event, at) => [event.gpu_seconds ?? 0, at]).sort((a, b) => b[0] - a[0] || b[1] - a[1]);
  return order.slice(0, COSTLIEST).map(([, at]) => at).sort((a, b) => a - b).map((at) => events[at]);
}

function summary({ events, left_out: left, gpu_seconds: whole, told_gpu_seconds: listed, pace }, all) {
  const unknown = pace.startsWith("unknown") ? ` Changes of pace are ${pace}.` : "";
  if (events.length === 0) return `Nothing: no restart, stall, slow rank, change of pace or hardware event.${unknown}`;
  const share = whole > 0 && listed > 0 ? ` that cost ${percent(listed / whole)} of the ${workerOf(state.run)} time` : "";
  const shown = all ? events.length : Math.min(events.length, COSTLIEST);
  const which = shown < events.length + left ? ` The ${count(shown)} costliest are shown.` : "";
  return `${plural(events.length + left, "event")}${share}.${which}${unknown}`;
}

function drawEvent(node, event) {
  const { story } = state;
  showTime(node.querySelector("time"), event.time);
  const hasLength = event.end !== null && !HAVE_LENGTH_IN_TITLE.includes(event.kind);
  const money = event.cost === null ? "" : `, ${dollars(event.cost, story.cost)}`;
  putLinked(node, {
    title: `${event.title}${hasLength ? `, for ${duration(event.end - event.time)}` : ""}`,
    cost: event.gpu_seconds === null ? "" : `${workTime(event.gpu_seconds, workerOf(state.run))}${money} (${event.cost_basis})`,
  }, state.name);
  const numbered = event.claims.map((claim, at) => ({ ...claim, at }));
  keyed(node.querySelector("ul"), "t-claim", numbered, ({ at }) => at, (item, { basis, text: what }) => {
    put(item, { basis });
    putLinked(item, { text: what }, state.name);
    attribute(field(item, "basis"), "class", `tag ${BASES.includes(basis) ? basis : ""}`);
  });
}
