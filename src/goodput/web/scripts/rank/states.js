// The states of a rank beside the median of its group: the ranks of the same role.

import { $, swatch, text, make } from "../dom/nodes.js";
import { Table } from "../dom/table.js";
import { shareOf } from "../run/ranks.js";
import { duration, percent } from "../text/numbers.js";
import { MEANINGS } from "../text/states.js";

export const STANDS_OUT = 0.02; // As a share of the rank's time.

const table = new Table($("rank-states"), "rank-state-rows", [
  { name: "state", head: "State", build: () => [make("i", { class: "swatch" }), make("span")], draw: (cell, row) => {
    swatch(cell.firstElementChild, row.state);
    text(cell.lastElementChild, row.state);
  } },
  { name: "time", head: "Time", class: "n", value: (row) => duration(row.seconds) },
  { name: "share", head: "Share", class: "n", value: (row) => percent(row.share) },
  { name: "median", head: "Group's median", class: "n", value: (row) => percent(row.median) },
  { name: "difference", head: "Difference, points", class: "n", value: (row) => difference(row) },
  { name: "meaning", head: "What it is", class: "meaning", value: (row) => MEANINGS[row.state] ?? "" },
]);

export const difference = ({ share, median }) => `${share < median ? "−" : "+"}${(100 * Math.abs(share - median)).toFixed(1)}`;

export function drawRankStates(rank, group) {
  const own = shareOf(rank);
  const shares = group.map(shareOf);
  const states = [...new Set(group.flatMap((one) => Object.keys(one.states)))];
  const rows = Object.keys(MEANINGS).filter((state) => states.includes(state)).map((state) => ({ state,
    seconds: (rank.states[state] ?? 0) / (rank.devices || 1), share: own(state), median: median(shares.map((of) => of(state))) }));
  table.draw(rows.filter((row) => row.share > 0 || row.median > 0), (row) => row.state, (node, row) =>
    node.classList.toggle("level", Math.abs(row.share - row.median) >= STANDS_OUT));
}

function median(values) {
  const sorted = [...values].sort((a, b) => a - b);
  return (sorted[Math.floor((sorted.length - 1) / 2)] + sorted[Math.floor(sorted.length / 2)]) / 2;
}
