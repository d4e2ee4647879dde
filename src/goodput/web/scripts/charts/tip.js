// The text beside the pointer: what is under it, on charts and bars. A press pins it until the next press or Escape.
//
// What it says is also in the chart's label, its table or the line below it, so it is hidden from screen readers.

import { $, make } from "../dom/nodes.js";

const GAP = 14;
let pinned = false;

// `linesAt(event, box)` are the lines of text at a position in `node`, null where there are none.
export function followPointer(node, linesAt) {
  const over = (event) => {
    event.stopPropagation(); // What is inside says more than what is around it.
    if (pinned) return;
    const lines = linesAt(event, node.getBoundingClientRect());
    if (lines === null) hideTip();
    else showTip(event, lines);
  };
  node.addEventListener("pointermove", over);
  node.addEventListener("pointerdown", (event) => {
    pinned = false;
    over(event);
    pinned = event.button === 0 && !$("tip").hidden;
  });
  node.addEventListener("pointerleave", () => { if (!pinned) hideTip(); });
}

function showTip({ clientX, clientY }, lines) {
  const tip = $("tip");
  tip.replaceChildren(...lines.map((line) => make("p", {}, line)));
  tip.hidden = false;
  const { width, height } = tip.getBoundingClientRect();
  const [wide, high] = [document.documentElement.clientWidth, window.innerHeight];
  const left = clientX + GAP + width > wide ? clientX - GAP - width : clientX + GAP;
  const top = clientY + GAP + height > high ? clientY - GAP - height : clientY + GAP;
  tip.style.setProperty("left", `${Math.max(Math.min(left, wide - width - 4), 4)}px`);
  tip.style.setProperty("top", `${Math.max(top, 4)}px`);
}

function hideTip() {
  $("tip").hidden = true;
}

// Unpins and hides the text; false if there was none.
export function closeTip() {
  const shown = !$("tip").hidden;
  pinned = false;
  hideTip();
  return shown;
}

// Bars have their text in data-tip. A press elsewhere, a scroll and a change of what is shown close it.
export function listenToTip() {
  followPointer(document.body, ({ target }) => target.closest("[data-tip]")?.dataset.tip.split("\n") ?? null);
  window.addEventListener("scroll", closeTip, { passive: true });
  window.addEventListener("hashchange", closeTip);
}
