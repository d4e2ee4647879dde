// Links to the boards of the Grafana that `goodput serve --grafana` names; none without it, and none in a file.

import { attribute, keyed, make, text } from "../dom/nodes.js";
import { get } from "./source.js";

let url = null; // Without a slash at its end.

export async function loadGrafana() {
  url = (await get("page").catch(() => null))?.grafana ?? null;
}

// The board with this uid over the time of a run; `variables` are its own besides the run.
function boardAddress(uid, run, variables = {}) {
  const query = new URLSearchParams({ "var-run": run.run });
  for (const [name, value] of Object.entries(variables)) query.set(`var-${name}`, value);
  query.set("from", String(Math.floor(1000 * run.start)));
  query.set("to", run.status === "running" ? "now" : String(Math.ceil(1000 * run.end)));
  return `${url}/d/${uid}?${query}`;
}

const link = () => make("a", { rel: "noreferrer" });

// Fills `node` with links to boards, [label, uid, variables] each.
export function drawBoards(node, run, boards) {
  node.hidden = url === null;
  if (url === null) return;
  keyed(node, link, boards, ([, uid]) => uid, (one, [label, uid, variables]) => {
    text(one, label);
    attribute(one, "href", boardAddress(uid, run, variables));
  });
}
