// Answers, their sources, and the groups over all samples.

import { bars } from "./bars.js";
import { el, fact, foreign, hidden } from "./dom.js";
import { figure, many, percent, rounded, whole, words } from "./format.js";
import { headed } from "./glossary.js";
import { allMarks, documentMarks } from "./groups.js";
import { carriers, furthestBelow, inLarge, inWords, isOfDocuments } from "./outcome.js";

const FIRST = 3; // answers that are shown at once

/** The target of an answer, by attribute and group. */
export function targetOf(answer) {
  return Object.fromEntries(answer.groups.map(({ attribute, groups }) =>
    [attribute, Object.fromEntries(groups.map(({ group, target }) => [group, target]))]));
}

/** Whose documents were read and used, the answers with their sources, and the measures. */
export function answerView(answer) {
  const marks = allMarks(targetOf(answer));
  const listed = (texts) => el("ol", { class: "distribution" },
    texts.map((text) => given(text, answer, documents, marks)));
  const documents = new Map(answer.ranking.map((document) => [document.id, document]));
  return [
    whoWasRead(answer, marks),
    el("section", { class: "card answers", "aria-label": "Answers" },
      el("h2", {}, answer.distribution.length > 1 ? "Answers" : "Answer"),
      answer.distribution.length
        ? [listed(answer.distribution.slice(0, FIRST)), answer.distribution.length > FIRST
          ? el("details", { class: "quiet-details" },
            el("summary", {}, `${many(answer.distribution.length - FIRST, "further answer")}`),
            listed(answer.distribution.slice(FIRST))) : null]
        : el("p", {}, "No sample has an answer."),
      failures(answer.answers).map((it) =>
        el("p", { class: "hint" }, `${many(it.samples, "sample")} without an answer: ${words(it.status)}. `,
          foreign(it.message, 600)))),
    exposures(answer, marks),
    measures(answer),
  ];
}

/** The rankings without an answer, counted by reason. */
function failures(answers) {
  const found = new Map();
  for (const { status, message, samples } of answers.filter((it) => it.status !== "ok")) {
    const key = JSON.stringify([status, message]);
    found.set(key, { status, message, samples: samples + (found.get(key)?.samples ?? 0) });
  }
  return [...found.values()];
}

function given(text, answer, documents, marks) {
  const from = answer.answers.filter((it) => it.status === "ok" && it.text === text.text);
  return el("li", {},
    el("blockquote", { class: "answer" }, foreign(text.text, 20_000)),
    el("p", { class: "hint" },
      `in ${text.samples} of ${many(answer.counts.samples, "sample")}, from ${many(text.rankings, "ranking")}`),
    from.map((one, number) => el("details", { class: "sources", open: number === 0 },
      el("summary", {}, from.length > 1 ? `Sources of ranking ${number + 1}` : "Sources",
        one.used.length ? ` (${one.used.filter(Boolean).length} of ${one.ids.length} used)` : ""),
      el("ol", {}, one.ids.map((id, place) => source(documents.get(id), id, one, place, marks))))));
}

function source(document, id, { used, scores, verdicts }, place, marks) {
  const [kind, sign, said] = used[place] === true ? ["used", "✓", "used"]
    : used[place] === false ? ["unused", "✕", "not used"]
      : ["unjudged", "?", "not judged"];
  const why = verdicts[place] && verdicts[place] !== "ok" ? ` (${words(verdicts[place])})` : "";
  return el("li", {},
    documentMarks(marks, document?.groups), el("span", { class: "title" }, foreign(document?.title || id)),
    el("span", { class: `verdict ${kind}` }, el("span", { "aria-hidden": "true" }, `${sign} `), said, why,
      scores[place] === null || scores[place] === undefined ? null
        : el("span", { class: "score" }, ` (score ${figure(scores[place], 2)})`)));
}

function exposures(answer, marks) {
  return el("section", { class: "card", "aria-label": "Exposure of the documents" },
    headed(el("h2", {}, "Who could be read"), "Stochastic ranking", "Expected exposure"),
    el("p", { class: "hint" }, "The share of the samples in which each document was read, and in which it was used."),
    el("table", { class: "plain exposures" },
      el("caption", { class: "hidden" }, "Documents, with the shares of the samples in which they were read and used"),
      el("thead", {}, el("tr", {},
        el("th", { scope: "col" }, "#"), el("td", {}), el("th", { scope: "col" }, "Document"),
        el("th", { scope: "col", class: "number" }, "read"),
        el("th", { scope: "col", class: "number" }, "used"))),
      el("tbody", {}, answer.ranking.map((document) => el("tr", { class: document.exposure ? null : "never" },
        el("td", { class: "rank" }, document.rank),
        el("td", { class: "who" }, documentMarks(marks, document.groups)),
        el("th", { scope: "row", class: "title" }, foreign(document.title || document.id)),
        el("td", { class: "number" }, percent(document.exposure)),
        el("td", { class: "number" }, document.attributed === null
          ? [el("span", { "aria-hidden": "true" }, "–"), hidden("not judged")]
          : percent(document.attributed)))))));
}

/** Who is read: first, in large, the group that lacks most; then all groups. */
function whoWasRead(answer, marks) {
  const targets = targetOf(answer);
  const known = (groups) => [["read", "exposure"], ["used", "attributed"]]
    .map(([name, of]) => ({
      name,
      shares: Object.fromEntries(groups.map((it) => [it.group, it[of]])),
      documents: answer.ranking.filter((document) => document[of] > 0),
    }))
    .filter(({ shares }) => !Object.values(shares).includes(null));
  return el("section", { class: "card figures", "aria-label": "Who was read and used" },
    el("div", { class: "headline" },
      answer.groups.map(({ attribute, groups }) => lacksMost(attribute, targets[attribute], known(groups))),
      judged(answer)),
    el("div", { class: "groups" },
      headed(el("h2", {}, "Whose text it was"), "Attribution"),
      answer.groups.map(({ attribute, groups, unknown }) => [
        bars(marks, attribute, targets[attribute], known(groups), null, carriedBy(answer.ranking, known(groups), attribute)),
        unknown >= 0.0005 ? el("p", { class: "hint" }, `${percent(unknown)} of what was read has no label for `, foreign(attribute), ".")
          : null])));
}

/** What says how many documents of a group were read and used; null where their groups do not say. */
function carriedBy(ranking, series, attribute) {
  if (!isOfDocuments(ranking, attribute)) return null;
  return (group) => series.map(({ name, documents }, number) => {
    const count = carriers(documents, attribute, group);
    const unit = el("span", { class: "unit" }, count === 1 ? " document" : " documents");
    return number ? `, ${whole(count)} ${name}` : [whole(count), unit, ` ${name}`];
  });
}

/** In brackets, how many documents of a group there are. */
function countedIn(documents, attribute, group) {
  return isOfDocuments(documents, attribute) ? ` (${many(carriers(documents, attribute, group), "document")})` : "";
}

/** How much of what was read, and used if that is known, is of the group that is read too little. */
function lacksMost(attribute, target, [read, ...more]) {
  if (read?.name !== "read") return inWords(foreign(attribute), ": nothing that was read has a label.");
  const group = furthestBelow(target, read.shares);
  return inLarge(group, target[group], [read, ...more].map(({ name, shares, documents }) =>
    [" ", el("b", {}, rounded(shares[group])), " ", el("span", { class: "aim" },
      `of what was ${name}${countedIn(documents, attribute, group)},`)]));
}

/** How many samples the figures are of, and who judged them. */
function judged({ counts, attributor, attribution_rate: rate }) {
  return el("p", { class: "paid" }, many(counts.samples, "sample"),
    attributor ? [`, ${whole(counts.judged)} judged by `, foreign(attributor), rate === 0 ? ", which found no document used." : "."]
      : ". Nobody judged which documents were used.");
}

function measures(answer) {
  const { counts } = answer;
  return el("section", { class: "card", "aria-label": "Over all samples" },
    el("h2", {}, "Over all samples"),
    el("dl", { class: "facts" },
      fact("Samples", whole(counts.samples)),
      fact("Distinct rankings", whole(counts.rankings)),
      fact("Answered", `${whole(counts.answered)} of ${whole(counts.samples)}`),
      fact("Judged", `${whole(counts.judged)} of ${whole(counts.answered)}`),
      fact("Disparity of reading, EE-D/k", figure(answer.disparity)),
      fact("Disparity of use, EAE-D/k", figure(answer.attributed_disparity)),
      fact("Use of sources, EAR", percent(answer.attribution_rate))),
    el("p", { class: "hint" }, "EE-D/k says how unequal the chances of being read are: it is 1 if all samples ",
      "read the same documents. EAE-D/k is the same for being used. EAR is the share of the documents read ",
      "that the answers used."));
}
