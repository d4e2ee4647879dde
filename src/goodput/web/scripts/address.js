// What is shown is in the address, so that a link to it can be sent:
//
//   #run=NAME                      a run
//   #run=NAME&from=SECONDS&to=SECONDS   a part of its time
//   #run=NAME&rank=N              one of its ranks
//   #run=NAME&stage=N             a run with the ranks of a stage of its pipeline
//   #runs&q=WORDS&sort=ORDER       the list, filtered and ordered
//   #installation                  the aggregator and the agents themselves
//   (nothing)                      the only run, or the list

import { $ } from "./dom/nodes.js";
import { DEFAULT_ORDER, isOrder, list } from "./runs/list.js";
import { runAddress } from "./text/addresses.js";

const isList = () => /^#runs(&|$)/.test(location.hash);

// {run, rank and stage: number or null, window: [from, to] or null} of a run, else {list, installation}: whether these were requested.
export function parseAddress() {
  const match = /^#run=(.*?)(?:&rank=(\d{1,9})|&stage=(\d{1,9})|&from=([\d.]{1,20})&to=([\d.]{1,20}))?$/s.exec(location.hash);
  if (!match) return { list: isList(), installation: location.hash === "#installation" };
  const [from, to] = [Number(match[4]), Number(match[5])];
  const window = from < to ? [from, to] : null;
  const [rank, stage] = [match[2], match[3]].map((digits) => (digits === undefined ? null : Number(digits)));
  try {
    return { run: decodeURIComponent(match[1]), rank, stage, window };
  } catch {
    return { run: match[1], rank, stage, window };
  }
}

// Takes filter and order of the list from the address.
export function readListAddress() {
  if (!isList()) return;
  const given = new URLSearchParams(location.hash.replace(/^#runs&?/, ""));
  list.filter = (given.get("q") ?? "").slice(0, 200);
  list.sort = isOrder(given.get("sort") ?? "") ? given.get("sort") : DEFAULT_ORDER;
  if ($("runs-filter").value !== list.filter) $("runs-filter").value = list.filter;
}

export function writeListAddress() {
  const query = new URLSearchParams();
  if (list.filter) query.set("q", list.filter);
  if (list.sort !== DEFAULT_ORDER) query.set("sort", list.sort);
  history.replaceState(null, "", `#runs${query.size ? `&${query}` : ""}`);
  $("all").href = location.hash;
}

// Shows a part [from, to] of a run's time, or with null the whole run.
export function goToRun(name, window) {
  const part = window === null ? "" : `&from=${window[0].toFixed(3)}&to=${window[1].toFixed(3)}`;
  const hash = `${runAddress(name)}${part}`;
  if (location.hash !== hash) location.hash = hash;
}
