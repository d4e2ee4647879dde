// Tables described by their columns: head, cells, sort orders and the labels on a phone are all in one list.
//
// To add a column to a table, add an entry to its list:
//
//   { name: "mfu", head: "MFU", class: "n", value: (run) => percent(run.mfu) }
//
// name    class of the cells (c-NAME) and key for setHead
// head    text of the column's head
// class   further classes: n (number, right-aligned), costs (hidden for runs without a price), wide, meaning
// title   explanation on the head
// label   what a phone shows above the value; default: the head
// value   text of a cell, from a row
// build   instead of value: the nodes of a new cell
// draw    with build: update(cell, row)
// sort    key of a row; the head becomes a button
// live    only where the page is served by an aggregator
//
// The first column is the head of its row.

import { isLive } from "../data/source.js";
import { attribute, keyed, make, swatch, text } from "./nodes.js";

export class Table {
  // `table` is empty but for a tfoot; `rows` becomes the id of its tbody.
  constructor(table, rows, columns) {
    this.columns = columns.filter((column) => isLive || !column.live);
    this.head = make("tr", { role: "row" }, ...this.columns.map(headOf));
    this.body = make("tbody", { role: "rowgroup", id: rows });
    attribute(table, "role", "table");
    table.prepend(make("thead", { role: "rowgroup" }, this.head), this.body);
  }

  setHead(name, value) {
    text(this.head.children[this.columns.findIndex((column) => column.name === name)], value);
  }

  // One row per item; rows are reused by key.
  draw(items, keyOf, update = () => {}) {
    keyed(this.body, () => this.row(), items, keyOf, (row, item) => {
      this.columns.forEach((column, i) => {
        if (column.draw) column.draw(row.children[i], item);
        else text(row.children[i], column.value(item));
      });
      update(row, item);
    });
  }

  row() {
    return make("tr", { role: "row" }, ...this.columns.map((column, i) => {
      const cell = i === 0 ? make("th", { role: "rowheader", scope: "row" }) : make("td", { role: "cell" });
      attribute(cell, "class", classes(column));
      const label = column.label ?? (i === 0 || column.class === "wide" ? "" : column.head);
      if (label) attribute(cell, "data-label", label);
      if (column.build) cell.append(...column.build());
      return cell;
    }));
  }
}

const classes = (column) => `c-${column.name}${column.class ? ` ${column.class}` : ""}`;

function headOf(column) {
  const cell = make("th", { role: "columnheader", scope: "col", class: classes(column) });
  if (column.title) attribute(cell, "title", column.title);
  if (column.sort) {
    attribute(cell, "aria-sort", "none");
    const button = make("button", { type: "button", "data-sort": column.name }, `${column.head} `);
    button.append(make("i", { "aria-hidden": "true" }));
    cell.append(button);
  } else text(cell, column.head);
  return cell;
}

// Parts of columns that several tables have.

export const stateBar = () => [make("div", { class: "bar", role: "img" })];
export const timeCell = () => [make("time")];
export const stateName = () => [make("i", { class: "swatch" }), make("span")];

// Fills a cell of stateName.
export function drawStateName(cell, state, name = state ?? "none") {
  const [square, label] = cell.children;
  square.hidden = state === null;
  swatch(square, state ?? "other");
  text(label, name);
}
