// What was wrong with the run log that the page was written from, by line number. Only in a file.

import { file } from "../data/file.js";
import { $, keyed, paged, put, text } from "../dom/nodes.js";
import { Table } from "../dom/table.js";
import { count } from "../text/numbers.js";

const view = { shown: 20 };
const problems = new Table($("log-problems"), "log-problem-rows", [
  { name: "line", head: "Line", class: "n", value: (row) => count(row.line) },
  { name: "problem", head: "Problem", value: (row) => row.problem },
]);
const ignored = new Table($("log-ignored"), "log-ignored-rows", [
  { name: "what", head: "Ignored, as not known here", value: ([what]) => what },
  { name: "times", head: "Times", class: "n", value: ([, times]) => count(times) },
]);

export function drawLog() {
  const log = file?.log;
  if (!log) return;
  $("log").hidden = false;
  $("log-broken").hidden = !log.broken;
  text($("log-broken"), log.broken);
  const facts = [
    ["Lines", log.lines], ["Problems", log.problem_count],
    ["Step lines", log.step_lines], ["Step lines that cannot be used", log.unusable_step_lines], ["Lines not used because of their times", log.dropped],
    ["Duplicate steps, counted once", log.repeated], ["Steps cut because they overlap", log.overlapping],
  ];
  keyed($("log-facts"), "t-fact", facts, ([name]) => name, (node, [name, value]) => put(node, { name, value: count(value) }));
  const names = Object.entries(log.ignored);
  const clean = !(log.problem_count || log.dropped || log.repeated || names.length || log.broken);
  text($("log-note"), clean ? "Nothing is wrong with it." : log.problems.length < log.problem_count
    ? `The first ${count(log.problems.length)} of ${count(log.problem_count)} problems are listed.` : "");
  $("log-problems").hidden = log.problems.length === 0;
  $("log-ignored").hidden = names.length === 0;
  problems.draw(paged(log.problems, view, $("log-more"), "problems").map((row, i) => ({ ...row, i })), (row) => row.i);
  ignored.draw(names, ([what]) => what);
}

export function showMoreProblems(rows) {
  view.shown += rows;
  drawLog();
}
