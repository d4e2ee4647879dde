// Links to ranks and stages, in texts that name them: "rank 3 on n1 waits" has a link on "rank 3".

import { rankAddress, stageAddress } from "../text/addresses.js";
import { make } from "./nodes.js";

const NAMED = /\b(?:[rR]ank|[sS]tage) (\d{1,9})\b/g;

// As text(), with a link on each rank and stage that is named. Nothing is changed where the text is already there.
export function linkedText(node, value, run) {
  const key = `${run} ${value}`;
  if (node.dataset.linked === key && node.textContent === String(value)) return;
  node.dataset.linked = key;
  node.replaceChildren(...parts(String(value), run));
}

function parts(value, run) {
  const nodes = [];
  let at = 0;
  for (const match of value.matchAll(NAMED)) {
    if (match.index > at) nodes.push(value.slice(at, match.index));
    nodes.push((/^r/i.test(match[0]) ? rankLink : stageLink)(run, match[1], match[0]));
    at = match.index + match[0].length;
  }
  if (at < value.length || nodes.length === 0) nodes.push(value.slice(at));
  return nodes;
}

export const rankLink = (run, rank, label) => make("a", { class: "rank", href: rankAddress(run, rank) }, label);

export const stageLink = (run, stage, label) => make("a", { class: "rank", href: stageAddress(run, stage) }, label);

// As put() with linked texts.
export function putLinked(root, values, run) {
  for (const [name, value] of Object.entries(values)) linkedText(root.querySelector(`[data-f="${name}"]`), value, run);
}
