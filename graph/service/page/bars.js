// Exposure against the target: a table whose bars are pictures of its figures.

import { el, svg } from "./dom.js";
import { percent } from "./format.js";
import { named, styleOf } from "./groups.js";

/** Smaller gaps are not drawn: a percentage point. */
export const LEAST_GAP = 0.01;

const MOST_ROWS = 12;

/**
 * A table of the groups of an attribute; of many, the largest have rows, and the others share one.
 *
 * @param {Map} all The marks of all attributes.
 * @param {string} attribute
 * @param {Object<string, number>} target The share of each group.
 * @param {{name: string, shares: Object<string, ?number>}[]} series What is compared with it; the
 *   last is drawn strongest.
 * @param {?Object<string, number>} missing The part of the target that no ranking of the relevant
 *   documents found could give.
 * @param {?(group: string) => Array} carried Says how many documents have the exposure of a group.
 */
export function bars(all, attribute, target, series, missing, carried) {
  return el("table", { class: "bars" },
    el("caption", { class: "hidden" }, `Exposure by ${attribute} against the target`),
    el("thead", {}, el("tr", {},
      el("th", { scope: "col" }, attribute),
      el("td", { class: "picture" }),
      series.map(({ name }) => el("th", { scope: "col", class: "number" }, name)),
      el("th", { scope: "col", class: "number" }, "target"))),
    el("tbody", {}, rowsOf(target, series).map(({ name, groups }) => {
      const summed = (shares) => shares && sum(groups.map((group) => shares[group] ?? 0));
      const aim = groups.length === 1 ? target[name] : summed(target);
      return el("tr", {},
        el("th", { scope: "row" }, named(all, attribute, name)),
        el("td", { class: "picture" },
          picture(styleOf(all, attribute, name), aim, series.map(({ shares }) => summed(shares) ?? 0), summed(missing) ?? 0),
          carried && groups.length === 1 ? el("span", { class: "carried" }, carried(name)) : null),
        series.map(({ shares }) => el("td", { class: "number" },
          percent(groups.length === 1 ? shares?.[name] : summed(shares)))),
        el("td", { class: "number aim" }, percent(aim)));
    })));
}

const sum = (numbers) => numbers.reduce((total, number) => total + number, 0);

/** The rows of a table: each group alone, or the largest ones and all others together. */
function rowsOf(target, series) {
  const groups = Object.keys(target);
  if (groups.length <= MOST_ROWS) return groups.map((name) => ({ name, groups: [name] }));
  const size = (group) => Math.max(target[group] ?? 0, ...series.map(({ shares }) => shares?.[group] ?? 0));
  const ordered = [...groups].sort((one, other) => size(other) - size(one));
  const others = ordered.splice(MOST_ROWS - 1);
  return [
    ...ordered.map((name) => ({ name, groups: [name] })),
    { name: `${others.length} others`, groups: others },
  ];
}

function picture(style, aim, shares, missing) {
  const height = shares.length > 1 ? 18 : 12;
  const each = height / shares.length;
  const width = (share) => `${(Math.min(Math.max(share, 0), 1) * 100).toFixed(2)}%`;
  return svg("svg", { class: "bar", "aria-hidden": "true", width: "100%", height, focusable: "false" },
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
