// The own time of a rank per step over the run, against the median of all ranks: two lines from zero.

import { $, attribute, svg, text } from "../dom/nodes.js";
import { duration, plural, stepTime, times } from "../text/numbers.js";
import { localSpan, tickTime } from "../text/time.js";
import { followPointer } from "../charts/tip.js";

const [HEIGHT, LEFT, TOP, BELOW] = [180, 74, 8, 22];
let drawn = "";
let at = null; // What the pointer is over: (x) => lines of text.

// `heat` is undefined while it is loading, null where there is none.
export function drawOwnTime(heat, number, error) {
  const own = heat?.ranks.find((one) => one.rank === number)?.own_seconds;
  const picture = $("rank-own-picture");
  picture.hidden = own === undefined;
  text($("rank-own-words"), heat === undefined ? (error ? `${error}; retrying.` : "Loading …") : heat === null
    ? "Own time per step is not known here." : own === undefined ? among(heat) : "");
  $("rank-own-legend").hidden = own === undefined;
  if (own === undefined || picture.clientWidth === 0) return;
  const wide = Math.max(Math.floor(picture.clientWidth), 240);
  const key = JSON.stringify([number, wide, own, heat.median]);
  if (key === drawn && picture.firstElementChild) return;
  drawn = key;
  paint(picture, heat, own, number, wide);
}

const among = ({ others, ranks }) => (others
  ? `It is one of ${plural(others.ranks, "rank")} that do not stand out; the ${ranks.length} that deviate most have a line of their own.`
  : "It has completed no step.");

function paint(picture, heat, own, number, wide) {
  const top = 1.1 * Math.max(...own, ...heat.median) || 1;
  const cell = (wide - LEFT) / heat.columns;
  const y = (seconds) => TOP + HEIGHT * (1 - seconds / top);
  const root = svg("svg", { viewBox: `0 0 ${wide} ${TOP + HEIGHT + BELOW}`, width: wide, height: TOP + HEIGHT + BELOW, role: "img",
    "aria-label": `Own time per step of rank ${number} and the median of all ranks, over time` });
  for (const share of [0, 0.5, 1]) {
    root.append(svg("line", { x1: LEFT, x2: wide, y1: y(top * share), y2: y(top * share), class: "grid" }));
    root.append(svg("text", { x: LEFT - 8, y: y(top * share) + 4, class: "figure-end tick" }, duration(top * share)));
  }
  root.append(svg("path", { class: "line-median", d: steps(heat.median, y, cell) }), svg("path", { class: "line-own", d: steps(own, y, cell) }));
  const days = heat.end - heat.start > 2 * 86_400;
  for (const [share, anchor] of [[0, "start"], [0.5, "middle"], [1, "end"]]) {
    root.append(svg("text", { x: LEFT + (wide - LEFT) * share, y: TOP + HEIGHT + 16, class: "tick", "text-anchor": anchor },
      tickTime(heat.start + (heat.end - heat.start) * share, days)));
  }
  picture.replaceChildren(root);
  attribute(picture, "data-columns", String(heat.columns));
  at = (x) => {
    const i = Math.min(Math.max(Math.floor((x - LEFT) / cell), 0), heat.columns - 1);
    const length = (heat.end - heat.start) / heat.columns;
    const [mine, usual] = [own[i], heat.median[i]];
    return [localSpan(heat.start + length * i, heat.start + length * (i + 1)), mine === null ? "no step"
      : `${stepTime(mine, 4)} of its own per step${usual ? `, ${times(mine / usual)} the median of ${stepTime(usual, 4)}` : ""}`];
  };
}

// A line that breaks where nothing is known.
function steps(values, y, cell) {
  let [path, on] = ["", false];
  values.forEach((value, i) => {
    if (value === null) { on = false; return; }
    path += `${on ? "L" : "M"}${(LEFT + cell * i).toFixed(1)},${y(value).toFixed(1)} H${(LEFT + cell * (i + 1)).toFixed(1)} `;
    on = true;
  });
  return path;
}

followPointer($("rank-own-picture"), (event, box) => at?.(event.clientX - box.left) ?? null);
