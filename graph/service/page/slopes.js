// A slopegraph: a line for each document that stands in both lists, from its row before to its row after.

import { fill, svg } from "./dom.js";

/**
 * Draw the lines over the gap between two lists, and again whenever their rows change in size.
 *
 * @param {HTMLElement} sides Holds the tables of the two lists, beside each other.
 */
export function drawSlopes(sides) {
  const tables = [...sides.querySelectorAll("table")];
  const [before, after] = tables.map(rowsOf);
  const both = [...after.keys()].filter((id) => before.has(id));
  const drawing = svg("svg", { class: "slopes", "aria-hidden": "true" });
  let strong = null; // the id of the document whose line stands out
  sides.append(drawing);

  function draw() {
    const { left, top } = sides.getBoundingClientRect();
    const [{ right }, { left: next }] = tables.map((table) => table.getBoundingClientRect());
    const [start, end] = [right - left, next - left];
    const middle = (start + end) / 2;
    fill(drawing, both.map((id) => {
      const rows = [before.get(id), after.get(id)];
      const [from, to] = rows.map((row) => heightOf(row) - top);
      return svg("path", {
        "data-document": id, class: directionOf(...rows),
        d: `M ${start} ${from} C ${middle} ${from} ${middle} ${to} ${end} ${to}`,
      });
    }));
    mark();
  }

  function mark() {
    for (const line of drawing.children) line.classList.toggle("strong", line.dataset.document === strong);
  }

  /** Let the line of a row stand out; without one, that of the row which still has the focus or the pointer. */
  function strengthen(row) {
    strong = idOf(row ?? sides.querySelector("tr:focus-within, tr:hover"));
    mark();
  }

  for (const event of ["pointerover", "focusin"]) {
    sides.addEventListener(event, ({ target }) => strengthen(target.closest("tr")));
  }
  for (const event of ["pointerleave", "focusout"]) sides.addEventListener(event, () => strengthen(null));
  // The tables also change in size when they leave the page: then the observer lets go of them.
  const observer = new ResizeObserver(() => (sides.isConnected ? draw() : observer.disconnect()));
  for (const table of tables) observer.observe(table);
}

const idOf = (row) => row?.querySelector("[data-line]")?.dataset.line;

const rowsOf = (table) => new Map([...table.tBodies[0].rows].map((row) => [idOf(row), row]));

/** Where the first line of a row stands, with the document's rank. */
function heightOf(row) {
  const text = document.createRange();
  text.selectNodeContents(row.cells[0]);
  const { top, bottom } = text.getBoundingClientRect();
  return (top + bottom) / 2;
}

function directionOf({ rowIndex: from }, { rowIndex: to }) {
  return from > to ? "up" : from < to ? "down" : "same";
}
