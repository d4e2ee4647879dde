// DOM helpers that change a node only where its value changed, so that focus, selection and scrolling survive a refresh.
// Names come from outside: they are only ever set as text or attributes, never parsed as HTML.

import { count, tenths, tenthsText, workerOf, workTime } from "../text/numbers.js";
import { MEANINGS } from "../text/states.js";
import { localTime, utcTime } from "../text/time.js";

export const ROWS = 64; // Rows drawn at first, and added by each press of "Show more".

export const $ = (id) => document.getElementById(id);
export const field = (root, name) => root.querySelector(`[data-f="${name}"]`);

export function text(node, value) {
  if (node.textContent !== String(value)) node.textContent = value;
}
export function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}

// make("td", { class: "n" }, "text", child)
export function make(tag, attributes = {}, ...children) {
  const node = document.createElement(tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  node.append(...children);
  return node;
}

export function svg(tag, attributes, content) {
  const node = document.createElementNS($("hatches").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (content !== undefined) node.textContent = content;
  return node;
}

// Sets the text of the nodes marked data-f="NAME" below `root`.
export function put(root, values) {
  for (const [name, value] of Object.entries(values)) text(field(root, name), value);
}
export const width = (node, ratio) => node.style.setProperty("width", `${Math.min(Math.max(100 * ratio, 0), 100)}%`);
export const swatch = (node, state) => attribute(node, "class", `swatch s-${state in MEANINGS ? state : "other"}`);

// One child of `parent` per item, in the items' order, reused by key. `create` is the id of a template or a function.
export function keyed(parent, create, items, keyOf, update) {
  const keys = new Set(items.map((item) => String(keyOf(item))));
  const reusable = new Map();
  for (const child of [...parent.children]) {
    if (keys.has(child.dataset.key)) reusable.set(child.dataset.key, child);
    else child.remove();
  }
  const focused = document.activeElement;
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    const node = reusable.get(key) ?? (typeof create === "function" ? create() : cloned(create));
    node.dataset.key = key;
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
    update(node, item);
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

const cloned = (template) => $(template).content.firstElementChild.cloneNode(true);

// A stacked bar of the time of a run's GPUs or processes by state; with a `marked` state the others are dimmed. Only a tall
// bar has room for names.
export function bar(node, states, label, run, marked) {
  const names = Object.keys(states);
  const shares = tenths(Object.values(states));
  const parts = names.map((state, i) => ({ state, share: shares[i] })).filter((part) => part.share > 0);
  const create = node.classList.contains("tall") ? "t-segment" : () => document.createElement("i");
  keyed(node, create, parts, (part) => part.state, (segment, { state, share }) => {
    const name = `${state} ${tenthsText(share)} %`;
    const dim = marked in MEANINGS && marked !== state ? " dim" : "";
    attribute(segment, "class", `s-${state in MEANINGS ? state : "other"}${dim}`);
    attribute(segment, "data-tip", `${label}\n${name}, ${workTime(states[state], workerOf(run))}\n${MEANINGS[state] ?? ""}`);
    segment.style.setProperty("flex-grow", share);
    if (segment.firstElementChild) text(segment.firstElementChild, name);
  });
  const shown = parts.map((part) => `${part.state} ${tenthsText(part.share)} %`).join(", ");
  attribute(node, "aria-label", `${label}: ${shown || "no time yet"}`);
}

// The first `view.shown` rows; the button offers more of them.
export function paged(rows, view, button, noun) {
  const left = rows.length - view.shown;
  button.hidden = left <= 0;
  text(button, `Show ${count(Math.min(left, ROWS))} more of ${count(left)} ${noun}`);
  return rows.slice(0, view.shown);
}

// With `short` without its seconds, where it has a date.
export function showTime(node, seconds, short = false) {
  text(node, short ? localTime(seconds).slice(0, 16) : localTime(seconds));
  attribute(node, "datetime", utcTime(seconds));
  attribute(node, "title", utcTime(seconds));
}
