// Changing nodes only where something changed, so that focus, selection and scrolling survive a refresh.

import { count, localTime, tenths, tenthsText, utcTime } from "./numbers.js";
import { MEANINGS } from "./words.js";

export const ROWS = 64; // Rows drawn at first, and more at each press of "show more".

export const $ = (id) => document.getElementById(id);
export const field = (root, name) => root.querySelector(`[data-f="${name}"]`);

export function text(node, value) {
  if (node.textContent !== String(value)) node.textContent = value;
}
export function attribute(node, name, value) {
  if (node.getAttribute(name) !== value) node.setAttribute(name, value);
}
// A node of a picture; attributes are set by name, a text is a text.
export function svg(tag, attributes, content) {
  const node = document.createElementNS($("hatches").namespaceURI, tag);
  for (const [name, value] of Object.entries(attributes)) node.setAttribute(name, value);
  if (content !== undefined) node.textContent = content;
  return node;
}
export function put(root, values) {
  for (const [name, value] of Object.entries(values)) text(field(root, name), value);
}
export const width = (node, ratio) => node.style.setProperty("width", `${Math.min(Math.max(100 * ratio, 0), 100)}%`);
export const swatch = (node, state) => attribute(node, "class", `swatch s-${state in MEANINGS ? state : "other"}`);

// One child of `parent` per item, reused by key, in the items' order.
export function keyed(parent, template, items, keyOf, update) {
  const wanted = new Set(items.map((item) => String(keyOf(item))));
  const old = new Map();
  for (const child of [...parent.children]) {
    if (wanted.has(child.dataset.key)) old.set(child.dataset.key, child);
    else child.remove();
  }
  const focused = document.activeElement;
  let next = parent.firstElementChild;
  for (const item of items) {
    const key = String(keyOf(item));
    const node = old.get(key) ?? $(template).content.firstElementChild.cloneNode(true);
    node.dataset.key = key;
    if (node === next) next = next.nextElementSibling;
    else parent.insertBefore(node, next);
    update(node, item);
  }
  if (focused !== document.activeElement && focused?.isConnected) focused.focus({ preventScroll: true });
}

// A stacked bar of GPU time by state; where one is `marked` the others are dimmed.
export function bar(node, states, who, marked) {
  const names = Object.keys(states);
  const shares = tenths(Object.values(states));
  const parts = names.map((state, i) => ({ state, share: shares[i] })).filter((part) => part.share > 0);
  keyed(node, "t-segment", parts, (part) => part.state, (segment, { state, share }) => {
    const label = `${state} ${tenthsText(share)} %`;
    const dim = marked in MEANINGS && marked !== state ? " dim" : "";
    attribute(segment, "class", `s-${state in MEANINGS ? state : "other"}${dim}`);
    attribute(segment, "title", `${label}: ${MEANINGS[state] ?? ""}`);
    segment.style.setProperty("flex-grow", share);
    text(segment.firstElementChild, label);
  });
  const said = parts.map((part) => `${part.state} ${tenthsText(part.share)} %`).join(", ");
  attribute(node, "aria-label", `${who}: ${said || "no time yet"}`);
}

// The first `view.shown` of the rows, and a button for more of them.
export function paged(rows, view, button, what) {
  const left = rows.length - view.shown;
  button.hidden = left <= 0;
  text(button, `Show ${count(Math.min(left, ROWS))} more of ${count(left)} ${what}`);
  return rows.slice(0, view.shown);
}

export function showTime(node, seconds) {
  text(node, localTime(seconds));
  attribute(node, "datetime", utcTime(seconds));
  attribute(node, "title", utcTime(seconds));
}
