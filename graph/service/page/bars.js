// Exposure against the target: a table whose bars are pictures of its figures.

import { el, svg } from "./dom.js";
import { percent } from "./format.js";
import { named, styleOf } from "./groups.js";

/** Smaller gaps are not drawn: a percentage point. */
export const LEAST_GAP = 0.01;

/**
 * A table of the groups of an attribute.
 *
 * @param {Map} all The marks of all attributes.
 * @param {string} attribute
 * @param {Object<string, number>} target The share of each group.
 * @param {{name: string, shares: Object<string, ?number>}[]} series What is compared with it; the
 *   last is drawn strongest.
 * @param {?Object<string, number>} missing The part of the target that no ranking of the relevant
 *   documents found could give.
 */
export function bars(all, attribute, target, series, missing) {
  return el("table", { class: "bars" },
    el("caption", { class: "hidden" }, `Exposure by ${attribute} against the target`),
    el("thead", {}, el("tr", {},
      el("th", { scope: "col" }, attribute),
      el("td", { class: "picture" }),
      series.map(({ name }) => el("th", { scope: "col", class: "number" }, name)),
      el("th", { scope: "col", class: "number" }, "target"))),
    el("tbody", {}, Object.entries(target).map(([group, aim]) => {
      return el("tr", {},
        el("th", { scope: "row" }, named(all, attribute, group)),
        el("td", { class: "picture", "aria-hidden": "true" },
          picture(styleOf(all, attribute, group), aim, series.map(({ shares }) => shares?.[group] ?? 0), missing?.[group] ?? 0)),
        series.map(({ shares }) => el("td", { class: "number" }, percent(shares?.[group]))),
        el("td", { class: "number aim" }, percent(aim)));
    })));
}

function picture(style, aim, shares, missing) {
  const height = shares.length > 1 ? 18 : 12;
  const each = height / shares.length;
  const width = (share) => `${(Math.min(Math.max(share, 0), 1) * 100).toFixed(2)}%`;
  return svg("svg", { class: "bar", width: "100%", height, focusable: "false" },
    svg("rect", { class: "track", width: "100%", height, rx: 3 }),
    shares.map((share, number) => svg("rect", {
      class: `fill ${style}${number < shares.length - 1 ? " weak" : ""}`,
      y: number * each, width: width(share), height: each, rx: 2,
    })),
    missing >= LEAST_GAP ? svg("rect", {
      class: "missing", x: width(aim - missing), y: 1, width: width(missing), height: height - 2,
    }) : null,
    typeof aim === "number" ? svg("line", {
      class: "goal", x1: width(Math.min(aim, 0.998)), x2: width(Math.min(aim, 0.998)), y1: 0, y2: height,
    }) : null);
}
