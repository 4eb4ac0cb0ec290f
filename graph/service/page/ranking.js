// The ranking before and after, side by side: groups marked, moves shown and drawn.

import { el, foreign, hidden } from "./dom.js";
import { openDocument } from "./drawer.js";
import { headed } from "./glossary.js";
import { allMarks, documentMarks } from "./groups.js";
import { drawSlopes } from "./slopes.js";

/** The rankings of a search before and after. */
export function beforeAndAfter({ target, baseline, ranking, method, corpus }) {
  const marks = allMarks(target);
  return el("section", { "aria-label": "Rankings" },
    headed(el("h2", {}, "Before and after"), "Baseline", "Relevance"),
    sideBySide({ name: "Before: baseline ranking", ranking: baseline.ranking, marks },
      { name: `After: ${method}`, ranking, marks },
      ({ id, title }) => openDocument(id, title, corpus)));
}

/**
 * Two rankings side by side.
 *
 * @param {{name: string, ranking: Object[], marks: Map}} before `marks` are those of the groups.
 * @param {{name: string, ranking: Object[], marks: Map}} after
 * @param {?(document: Object) => void} open Opens a document; without it, titles are plain text.
 */
export function sideBySide(before, after, open = null) {
  const was = places(before.ranking);
  const is = places(after.ranking);
  const estimated = [...before.ranking, ...after.ranking].some(({ relevance }) => typeof relevance === "number");
  const sides = el("div", { class: "sides" },
    side(before, estimated, open, (document) => (is.has(document.id) ? null : move("out", "out", "out"))),
    side(after, estimated, open, (document) => moved(was.get(document.id), document.rank)));
  drawSlopes(sides);
  return [
    estimated ? el("p", { class: "hint" },
      "The percentage is the estimated probability that a document is relevant to the query.") : null,
    sides,
  ];
}

/** The rank of each document, by id. */
export function places(ranking) {
  return new Map(ranking.map(({ id, rank }) => [id, rank]));
}

function side({ name, ranking, marks }, estimated, open, moveOf) {
  const heads = ["Rank", "Groups", "Document", ...(estimated ? ["Estimated relevance"] : []), "Move"];
  return el("div", { class: "side" },
    el("h3", {}, name),
    el("table", { class: "ranking" },
      el("caption", { class: "hidden" }, name),
      el("thead", { class: "hidden" }, el("tr", {}, heads.map((title) => el("th", { scope: "col" }, title)))),
      el("tbody", {}, ranking.map((document) => el("tr", {},
        el("td", { class: "rank" }, document.rank),
        el("td", { class: "who" }, documentMarks(marks, document.groups)),
        el("th", { scope: "row", class: "title" }, titleOf(document, open),
          el("span", { class: "line", "data-line": document.id })),
        estimated ? el("td", { class: "probability" }, probability(document.relevance)) : null,
        el("td", { class: "move" }, moveOf(document)))))),
    ranking.length ? null : el("p", { class: "hint" }, "Nothing was found."));
}

function titleOf(document, open) {
  const title = foreign(document.title || document.id);
  return open ? el("button", { type: "button", class: "opens", on: { click: () => open(document) } }, title) : title;
}

/** The estimate in whole percents, and never 0 or 100, since it is not that exact. */
function probability(relevance) {
  if (typeof relevance !== "number") return [el("span", { "aria-hidden": "true" }, "–"), hidden("not estimated")];
  const percents = Math.round(relevance * 100);
  return percents > 99 ? ">99%" : percents < 1 ? "<1%" : `${percents}%`;
}

function moved(from, to) {
  if (from === undefined) return move("new", "new", "new");
  if (from === to) return move("same", "=", "same place");
  const places = Math.abs(from - to);
  return from > to
    ? move("up", `▲${places}`, `up ${places}`)
    : move("down", `▼${places}`, `down ${places}`);
}

function move(kind, text, said) {
  return el("span", { class: `moved ${kind}` }, el("span", { "aria-hidden": "true" }, text), hidden(said));
}
