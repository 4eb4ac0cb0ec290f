// How exposure follows the target over all groups of an attribute that nobody lists.

import { el, fact, svg } from "./dom.js";
import { figure, many, percent, whole } from "./format.js";

const HALF = 0.5;

/** The Lorenz curve of an attribute, its Gini index, and the gaps of all its groups. */
export function allGroups({ attribute, groups, gini, ...found }) {
  const { gini_by_lot: byLot, unseen, unseen_with_target: due, gap_quantiles: gaps } = found;
  const interval = gini.interval ? ` (${gini.interval.map((end) => figure(end, 2)).join(" to ")})` : "";
  return el("section", { class: "all-groups", "aria-label": `All groups of ${attribute}` },
    el("h3", {}, `All ${many(groups, "group")}`),
    el("div", { class: "pair" },
      curve(found),
      el("div", {},
        el("dl", { class: "facts" },
          fact("Gini index", figure(gini.value, 2), interval),
          typeof byLot === "number" ? fact("Of lists drawn by lot", figure(byLot, 2)) : null,
          fact("Groups without exposure", unseen ? `${whole(unseen)}, of which ${whole(due)} should get some` : "none")),
        el("p", { class: "hint" }, "The Gini index is 0 if each group gets its target share, and near 1 if a few groups get ",
          "nearly all. Chance alone makes it more than 0. The file all_groups.csv has each group."),
        el("details", { class: "quiet-details" },
          el("summary", {}, "Gaps of all groups"), gapTable(gaps)))));
}

/** The curve, that of lists drawn by lot, and the diagonal, on which each group gets its target share. */
function curve({ lorenz, lorenz_by_lot: byLot }) {
  const half = lorenz.find(([due]) => due === HALF)[1];
  const said = `Half of the target, of the groups served worst, gets ${percent(half)} of the exposure.`;
  return el("figure", { class: "lorenz" },
    el("span", { class: "label" }, "share of the exposure ↑"),
    svg("svg", { role: "img", "aria-label": `Lorenz curve. ${said}`, viewBox: "0 0 100 100", preserveAspectRatio: "none" },
      svg("line", { class: "fair", x1: 0, y1: 100, x2: 100, y2: 0 }),
      byLot.length ? line(byLot, "by-lot") : null,
      line(lorenz, "engine")),
    el("span", { class: "label across" }, "share of the target, groups served worst first →"),
    el("figcaption", {}, said, byLot.length ? " Dashed: lists drawn by lot." : null, " Dotted: each group gets its target share."));
}

const line = (points, name) => svg("polyline", {
  class: name, points: points.map(([due, given]) => `${(100 * due).toFixed(2)},${(100 - 100 * given).toFixed(2)}`).join(" "),
});

/** What parts of the groups lack at most; below 0 they have more than their target. */
function gapTable(gaps) {
  const rows = Object.entries(gaps).sort(([one], [other]) => one - other);
  return el("table", { class: "plain" },
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Share of the groups"),
      el("th", { scope: "col", class: "number" }, "lack at most, points"))),
    el("tbody", {}, rows.map(([part, gap]) => el("tr", {},
      el("th", { scope: "row" }, percent(Number(part))), el("td", { class: "number" }, figure(100 * gap, 3))))));
}
