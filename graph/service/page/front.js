// The front of relevance against fairness: what each position of the slider would give.

import { el, fill, svg } from "./dom.js";
import { figure } from "./format.js";

const TOP = 8; // pixels above the best relevance
const HEIGHT = 96; // from the best to the least relevance
const [START, WIDTH] = [3, 94]; // of the whole width, in percent

/**
 * The drawing, empty until its points are known.
 *
 * @returns {{element: HTMLElement, show: Function, at: Function, mark: Function}} `show` takes the
 *   points, which have a weight, a relevance and a fairness; `at` returns that of a weight, or null;
 *   `mark` shows where a relevance and a fairness stand.
 */
export function front() {
  const drawing = svg("svg", { role: "img", width: "100%", height: TOP + HEIGHT + 8 });
  const caption = el("figcaption", {});
  const element = el("figure", { class: "front", hidden: true },
    el("span", { class: "label" }, "relevance ↑"), drawing,
    el("span", { class: "label across" }, "fairness →"), caption);
  let points = [];
  let marked = null;

  function draw() {
    const place = placedAmong(points);
    const places = points.map(place);
    const now = marked && points.length ? place(marked) : null;
    fill(drawing,
      places.slice(1).map((to, number) => svg("line", {
        x1: places[number].x, y1: places[number].y, x2: to.x, y2: to.y,
      })),
      places.map(({ x, y }) => svg("circle", { cx: x, cy: y, r: 2.5 })),
      now ? svg("circle", { class: "now", cx: now.x, cy: now.y, r: 6 }) : null);
  }

  return {
    element,
    show(found) {
      points = found;
      const [from, to] = [points[0], points.at(-1)];
      caption.textContent = `Each dot is a position of the slider: relevance ${figure(from.relevance, 2)} `
        + `and fairness ${figure(from.fairness, 2)} at the left, ${figure(to.relevance, 2)} and `
        + `${figure(to.fairness, 2)} at the right.`;
      drawing.setAttribute("aria-label", `Relevance against fairness. ${caption.textContent}`);
      element.hidden = false;
      draw();
    },
    at: (weight) => points.find((point) => Math.abs(point.weight - weight) < 1e-6) ?? null,
    mark(point) {
      marked = point;
      draw();
    },
  };
}

/** Where a point stands: percents of the width, and pixels from above. */
function placedAmong(points) {
  const across = scale(points.map(({ fairness }) => fairness));
  const down = scale(points.map(({ relevance }) => -relevance));
  return ({ relevance, fairness }) => ({
    x: `${(START + WIDTH * across(fairness)).toFixed(2)}%`,
    y: (TOP + HEIGHT * down(-relevance)).toFixed(1),
  });
}

/** The place of a value between the least and the greatest, from 0 to 1; the middle if all are the same. */
function scale(values) {
  const [least, greatest] = [Math.min(...values), Math.max(...values)];
  return (value) => greatest > least ? (value - least) / (greatest - least) : 0.5;
}
