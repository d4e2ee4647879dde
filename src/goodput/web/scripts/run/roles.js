// The account of each role of a run that has several: trainers, generators.

import { $, attribute, bar } from "../dom/nodes.js";
import { Table, stateBar } from "../dom/table.js";
import { count, percent, unitOf } from "../text/numbers.js";

let run = null;
let unit = null;
let marked = null;

const COLUMNS = [
  { name: "role", head: "Role", value: (row) => row.role },
  { name: "states", head: "Time by state", class: "wide", build: stateBar,
    draw: (cell, row) => bar(cell.firstElementChild, row.states, `role ${row.role}`, run, marked) },
  { name: "ranks", head: "Ranks", class: "n", value: (row) => count(row.ranks) },
  { name: "time", head: "Time", class: "n", value: (row) => unit.text(row.gpu_seconds) },
  { name: "goodput", head: "Goodput", class: "n", title: "Productive time in all time of the role",
    value: (row) => (makesSteps(row) ? percent(row.goodput) : "makes no steps") },
  { name: "most", head: "Most of its time", value: largest },
];
const table = new Table($("by-role-table"), "role-rows", COLUMNS);

export function drawRoles(shownRun, sort) {
  [run, unit, marked] = [shownRun, unitOf(shownRun), sort];
  const roles = run.roles ?? []; // A document of an earlier version has none.
  $("by-role").hidden = roles.length === 0;
  $("run").classList.toggle("one-role", roles.length === 0);
  table.setHead("time", unit.head);
  table.draw(roles, (row) => row.role, (node, row) => attribute(node.firstElementChild, "title", row.role));
}

const makesSteps = ({ steps }) => steps.kept + steps.lost > 0;

function largest({ states, gpu_seconds: total }) {
  const [[state, seconds]] = Object.entries(states).sort(([, one], [, other]) => other - one);
  return total > 0 ? `${state}, ${percent(seconds / total)}` : "";
}
