// One card per round: its groups, the words with their reason, and the exposure.

import { bars } from "./bars.js";
import { el, foreign } from "./dom.js";
import { figure, nats, NO_WORDS, words } from "./format.js";
import { named } from "./groups.js";

/** The card of a round. */
export function card(round, { target, marks, before, kept }) {
  return el("li", { class: `card round${kept ? " kept" : ""}`, "data-round": round.index },
    el("header", {},
      el("h3", {}, titleOf(round), kept ? el("span", { class: "badge" }, "kept") : null),
      round.measured ? divergence(round, before) : null),
    kept ? el("p", { class: "hint" }, "The ranking comes from this round.") : null,
    round.objective
      ? el("p", { class: "hint reached" }, "Re-ranking the documents found so far gives relevance ",
        `${figure(round.objective.relevance, 2)} and fairness ${figure(round.objective.fairness, 2)}.`) : null,
    toward(round, marks),
    topic(round),
    round.refinements.map((refinement) => words_(refinement, marks)),
    round.measured
      ? Object.entries(target).filter(([attribute]) => round.exposure[attribute])
        .map(([attribute, shares]) =>
          bars(marks, attribute, shares, [{ name: "exposure", shares: round.exposure[attribute] }]))
      : el("p", { class: "hint" }, waiting(round)),
    round.queries.length && round.index ? queries(round) : null);
}

function titleOf(round) {
  return round.index ? `Round ${round.index}` : "Baseline ranking";
}

function divergence(round, before) {
  const change = before === null || before === undefined || round.divergence === null
    ? null : round.divergence - before;
  const direction = change === null || Math.abs(change) < 0.0005 ? "" : change < 0 ? "better" : "worse";
  return el("p", { class: `divergence ${direction}` },
    el("span", { class: "label" }, "divergence "), el("b", {}, nats(round.divergence)),
    direction ? el("span", { class: "change" }, ` ${change < 0 ? "▼" : "▲"} ${nats(Math.abs(change))}`) : null);
}

function toward(round, marks) {
  const lacking = round.lacking ?? [];
  if (!round.index || !lacking.length) return null;
  return el("p", { class: "toward" }, "shown too little: ", lacking.map(([attribute, group]) => [named(marks, attribute, group), " "]));
}

/** How many words of a model are shown; a large model gives dozens. */
const SHOWN = 12;

function topic(round) {
  if (!round.topic) return null;
  const { words: ofTopic, queries: others, status } = round.topic;
  return el("p", { class: "words" }, el("span", { class: "label" }, "topic"),
    chips([...ofTopic, ...others]), withoutWords(status, [...ofTopic, ...others]));
}

function chips(texts) {
  const more = texts.length - SHOWN;
  return [
    texts.slice(0, SHOWN).map((text) => el("span", { class: "chip" },
      el("span", { "aria-hidden": "true" }, "+"), foreign(text, 60))),
    more > 0 ? el("span", { class: "hint" }, `and ${more} more`) : null,
  ];
}

function words_(refinement, marks) {
  const { attribute, group, dropped, reason, status } = refinement;
  const keywords = [refinement.keywords, refinement.phrases, refinement.names].flatMap((texts) => texts ?? []);
  return el("div", { class: "refinement" },
    el("p", { class: "words" },
      named(marks, attribute, group),
      chips(keywords),
      (dropped ?? []).map((keyword) => el("del", { class: "chip dropped" }, foreign(keyword, 60))),
      withoutWords(status, keywords)),
    reason ? el("blockquote", {}, foreign(reason, 600)) : null);
}

function withoutWords(status, keywords) {
  if (status === "ok" && keywords.length) return null;
  const why = NO_WORDS[status === "ok" ? "repeated" : status];
  return why ? el("span", { class: "hint" }, why)
    : el("span", { class: "chip failed" }, `no words: ${words(status)}`);
}

function waiting(round) {
  if (round.unused) return "This round led to no query.";
  return round.refinements.length ? "Searching with these words …" : "Asking for words …";
}

function queries(round) {
  return el("details", { class: "quiet-details" }, el("summary", {}, "Queries of this round"),
    el("ul", {}, round.queries.map((query) => el("li", {}, foreign(query, 2000)))));
}
