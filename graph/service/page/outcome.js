// The outcome of a run: figures, cost, prompt and model, warnings, problems.

import { bars, LEAST_GAP } from "./bars.js";
import { el, fact, foreign } from "./dom.js";
import { figure, many, nats, rounded, seconds, STOPPED, whole, words } from "./format.js";
import { explained, headed } from "./glossary.js";
import { places } from "./ranking.js";

/** From this probability on, a document is likely to be relevant. */
const LIKELY = 0.5;

/** An exposure that is this much above its target, or less, is near it. */
const NEAR = 0.02;

/** From this share on, the distance from the best order is not shown: in a short list much of it is that ranks are whole. */
const NEAR_BEST = 0.01;

/** Who is seen: first, in large, the group that lacked most; then all groups, and why. */
export function figures(search, marks) {
  const { baseline, divergence } = search;
  const label = "What came of it";
  if (isEmpty(search)) return el("section", { class: "card", "aria-label": label }, inWords("No document matches the query."));
  return el("section", { class: "card figures", "aria-label": label },
    el("div", { class: "headline" },
      Object.keys(search.target).map((attribute) => lackedMost(search, attribute)),
      paid(search)),
    el("div", { class: "groups" },
      headed(el("h2", {}, "Who gets seen"), "Exposure", "Target"),
      Object.entries(search.target).map(([attribute, shares]) =>
        bars(marks, attribute, shares, [
          { name: "before", shares: baseline.exposure[attribute] },
          { name: "after", shares: search.exposure[attribute] },
        ], search.gaps?.unattainable[attribute], carriedBy([baseline.ranking, search.ranking], attribute))),
      el("p", { class: "hint" }, "Exposure is a group's share of the attention; the first ranks get most of it. ",
        "The upright line is the target. ",
        Object.keys(search.target).some((attribute) => isOfDocuments(search.ranking, attribute))
          ? "Below a bar stands how many documents have it. " : null,
        lacksAttainable(search) ? "A dashed box is the part of the target for which too few relevant documents were found." : null)),
    el("div", { class: "aside" },
      sentences("Why", "explanation", search.explanation ?? []),
      sentences("What is still lacking", "lacking", lacking(search), "Unattainable exposure", "Ranking gap"),
      brought(search),
      explained(el("p", { class: "hint" },
        ended(search),
        `KL from the target over the first ${search.ranking.length}, in nats: `,
        `${nats(baseline.divergence)} → ${nats(divergence)}.`), "Divergence")));
}

/** Whether a search is over and found nothing. */
export const isEmpty = (search) => search?.baseline.ranking.length === 0 && search.ranking.length === 0;

/** The exposure of the group that lacked most, before and after, and its target; in words if none lacked any. */
function lackedMost({ baseline, exposure, ranking, target }, attribute) {
  const [before, after, wanted] = [baseline.exposure, exposure, target].map((all) => all[attribute]);
  const group = furthestBelow(wanted, before);
  if (baseline.divergences[attribute] === null) {
    return inWords(foreign(attribute), ": no document of the baseline ranking has a label.");
  }
  if (wanted[group] - before[group] < LEAST_GAP) {
    return inWords(foreign(attribute), ": no group is a point or more below its target.");
  }
  return inLarge(group, wanted[group], el("span", { class: "was" }, ` ${rounded(before[group])} → `),
    el("b", { class: nearer(before[group], after[group], wanted[group]) }, rounded(after[group])),
    after[group] - wanted[group] > NEAR ? el("span", { class: "aim" }, ` ${points(after[group] - wanted[group])} too much`) : null,
    el("span", { class: "aim" }, countedIn(ranking, attribute, group)));
}

/** The class of an exposure that came nearer to its target; what goes beyond it is not better. */
const nearer = (before, after, wanted) => after > before && after - wanted <= NEAR ? "better" : null;

/** How many documents have a group's exposure, since one high up may have all of it. */
export const carriers = (documents, attribute, group) => documents.filter(({ groups }) => groups[attribute]?.[group] > 0).length;

/** Whether the groups of an attribute are those of documents, and not of a product of attributes. */
export const isOfDocuments = (documents, attribute) => documents.some(({ groups }) => attribute in groups);

function countedIn(ranking, attribute, group) {
  return isOfDocuments(ranking, attribute) ? ` in ${many(carriers(ranking, attribute, group), "document")}` : "";
}

/** What says how many documents of lists have a group's exposure; null where their groups do not say. */
function carriedBy(lists, attribute) {
  if (!isOfDocuments(lists.at(-1), attribute)) return null;
  return (group) => {
    const counts = [...new Set(lists.map((list) => carriers(list, attribute, group)))];
    const unit = counts.at(-1) === 1 ? " document" : " documents";
    return [counts.map(whole).join(" → "), el("span", { class: "unit" }, unit)];
  };
}

/** The group that is furthest below its target. */
export const furthestBelow = (target, got) => Object.keys(target).reduce((one, other) =>
  target[other] - got[other] > target[one] - got[one] ? other : one);

/** In large: a group, figures about it, and its target. */
export const inLarge = (group, target, ...figures) => el("p", { class: "big" },
  el("bdi", {}, group), figures, " ", el("span", { class: "aim" }, `target ${rounded(target)}`));

/** In the place of large figures: a sentence. */
export const inWords = (...sentence) => el("p", { class: "big sentence" }, sentence);

/** What the ranking cost in relevance, how many rose, and what models did for it. */
function paid(search) {
  const { baseline, objective, relevance, ranking } = search;
  if (!ranking.length) return null;
  const isEstimated = typeof relevance === "number";
  const fits = !isEstimated || ranking.some((document) => document.relevance >= LIKELY);
  const isKnown = [baseline, search].every((list) => typeof list.expected_relevance === "number");
  const was = places(baseline.ranking);
  const moved = ranking.filter(({ id, rank }) => !was.has(id) || rank < was.get(id)).length;
  const cost = `Cost: ${isEstimated ? "expected relevance" : "relevance by rank"} `;
  return el("p", { class: "paid" },
    fits ? null : "None of these is likely to fit. ",
    fits && isKnown ? `${cost}${figure(baseline.expected_relevance, 2)} → ${figure(search.expected_relevance, 2)}. ` : null,
    fits && isEstimated && objective ? nearBest(objective) : null,
    moved ? `${many(moved, "document")} moved up. ` : null,
    models(search));
}

/** How far the list can be from the best order, if that is little. */
function nearBest({ bounded, bound, leaves_out: leftOut = [], among = [] }) {
  const below = bound ? 1 - bounded / bound : 1;
  if (below >= NEAR_BEST) return null;
  const tenths = Math.max(1, Math.ceil(1000 * below)); // of a percent
  const apart = leftOut.length ? ` without ${leftOut.join(" and ")}` : "";
  const which = among.length ? ` that ${among.map((kind) => BOUNDED[kind]).join(" and ")}` : "";
  return `At most ${figure(tenths / 10, 1)} % from the best order${which}${apart}. `;
}

/** What the best order does, if not all orders are bounded. */
const BOUNDED = {
  engine_order: "keeps the engine's order within groups",
  labelled_exposure: "shows labelled documents as much",
};

/** Whether a model's words led to the ranking: every round but the first has some. */
export const isRefined = ({ best_iteration: kept }) => kept > 0;

function models(search) {
  const { model, ranker } = search;
  if (!model && !ranker) return `No model was ${lacksAttainable(search) ? "asked" : "needed"} for this ranking.`;
  const came = isUnanswered(search) ? " did not answer; a warning says why. " : " was asked in vain. ";
  return [
    model ? isRefined(search) ? ["Refined by ", foreign(model), ". "] : [foreign(model), came] : null,
    ranker ? ["Re-ranked by ", foreign(ranker), "."] : null];
}

const UNANSWERED = ["denied", "rate_limited", "timeout", "unavailable", "invalid_request", "unsupported"];

/** Whether a model was asked, and not one of its answers came. */
function isUnanswered({ iterations, unused_topic: topic, unused_refinements: others }) {
  const asked = [topic, ...others ?? [], ...iterations.flatMap((round) => [round.topic, ...round.refinements])].filter(Boolean);
  return asked.length > 0 && asked.every(({ status }) => UNANSWERED.includes(status));
}

/** Whether too few documents of a group were found for its target. */
const lacksAttainable = ({ gaps }) =>
  Object.values(gaps?.unattainable ?? {}).flatMap(Object.values).some((share) => share >= LEAST_GAP);

const sentences = (title, kind, all, ...terms) => all.length ? el("div", {}, headed(el("h3", {}, title), ...terms),
  el("ul", { class: `sentences ${kind}` }, all.map((it) => el("li", {}, foreign(it, 600))))) : null;

const MOST_LACKING = 8;

/** What each group still lacks of its target, and why; of many, those that lack most. */
function lacking({ gaps, target }) {
  const found = [];
  for (const [attribute, groups] of Object.entries(gaps ? target : {})) {
    for (const group of Object.keys(groups)) {
      const withheld = gaps.ranking[attribute][group];
      const missing = gaps.unattainable[attribute][group];
      const why = [
        withheld >= LEAST_GAP ? `${points(withheld)} that this ranking withholds` : null,
        missing >= LEAST_GAP ? `${points(missing)} for which too few documents were found that are likely to be relevant` : null,
      ].filter(Boolean);
      if (why.length) found.push({ lacks: withheld + missing, sentence: `${group}: ${why.join(", and ")}.` });
    }
  }
  const most = [...found].sort((one, other) => other.lacks - one.lacks).slice(0, MOST_LACKING);
  return found.filter((it) => most.includes(it)).map(({ sentence }) => sentence);
}

const points = (share) => many(Math.round(share * 100), "point");

/** What only the model's queries found. */
function brought(search) {
  const { without_model: without, ranking } = search;
  if (!without || isUnanswered(search)) return null;
  return el("section", { "aria-label": "What the model brought" },
    headed(el("h3", {}, "What the model brought"), "Refinement"),
    el("dl", { class: "facts" },
      fact("Documents that only its queries found", `${whole(without.documents)} of ${whole(ranking.length)}`),
      fact("Divergence without them", nats(without.divergence)),
      typeof without.relevance === "number" ? fact("Estimated relevance without them", figure(without.relevance, 2)) : null));
}

function ended(search) {
  const { iterations, method, stop_reason: reason } = search;
  const rounds = iterations.length - 1;
  const what = rounds ? `Stopped after ${many(rounds, "round")}` : "The query was not refined";
  const then = isRefined(search) && method === "fair-qr" ? "; the list is then re-ranked by the original query" : "";
  return `${what}, since ${STOPPED[reason] ?? words(reason)}${then}. `;
}

/** The cost of a run. */
export function cost(usage) {
  return el("section", { class: "card", "aria-label": "Cost" },
    el("h2", {}, "Cost"),
    el("dl", { class: "facts" },
      fact("Model calls", whole(usage.model_calls)),
      fact("Tokens read", whole(usage.prompt_tokens)),
      fact("Tokens written", whole(usage.completion_tokens)),
      fact("Time", seconds(usage.milliseconds))));
}

/** The source, model, prompts and method of a run. */
export function provenance(result) {
  const prompts = result.prompts ?? (result.prompt ? [result.prompt] : []);
  return el("section", { class: "card", "aria-label": "Made with" },
    el("h2", {}, "Made with"),
    el("dl", { class: "facts" },
      fact("Model", foreign(result.generator ?? result.model ?? "none")),
      fact("Prompt", prompts.length ? prompts.map(({ id, version, sha256 }) => el("span", { class: "line" },
        foreign(`${id} ${version}`), el("code", { title: sha256 }, sha256.slice(0, 12)))) : "none"),
      result.ranker ? fact("Ranker", foreign(result.ranker)) : null,
      result.attributor ? fact("Judged by", foreign(result.attributor)) : null,
      result.method ? fact("Method", result.method) : null,
      fact("Source", foreign(result.corpus), result.retriever ? ` (${result.retriever})` : "")));
}

/** Warnings. */
export function warnings(sentences) {
  if (!sentences.length) return null;
  return el("section", { class: "card warning", "aria-label": "Warnings" },
    el("h2", {}, "Please note"),
    el("ul", {}, sentences.map((sentence) => el("li", {}, foreign(sentence, 1000)))));
}

/** A problem of the service: its sentence and its type. */
export function problemCard(problem) {
  const type = String(problem.type ?? "").replace("urn:fairqr:error:", "");
  return el("section", { class: "card problem", role: "alert" },
    el("h2", {}, foreign(problem.title || "It did not work")),
    el("p", {}, foreign(problem.detail || "The server gave no reason.", 1000)),
    type && type !== "about:blank" ? el("p", { class: "hint" }, "Type: ", el("code", {}, foreign(type, 80))) : null);
}
