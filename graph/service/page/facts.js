// The outcome of a run: figures, cost, prompt and model, warnings, problems.

import { bars, LEAST_GAP } from "./bars.js";
import { el, fact, foreign } from "./dom.js";
import { figure, many, nats, seconds, STOPPED, whole, words } from "./format.js";
import { whatIs } from "./glossary.js";

/** The figures of a search: the divergence before and after, and who is shown. */
export function figures(search, marks) {
  const { baseline, divergence } = search;
  const missing = search.gaps?.supply ?? {};
  const isMissing = Object.values(missing).flatMap(Object.values).some((share) => share >= LEAST_GAP);
  return el("section", { class: "card figures", "aria-label": "What came of it" },
    el("div", { class: "groups" },
      el("h2", {}, "Who gets seen"), whatIs("Exposure", "Target"),
      Object.entries(search.target).map(([attribute, shares]) =>
        bars(marks, attribute, shares, [
          { name: "before", shares: baseline.exposure[attribute] },
          { name: "after", shares: search.exposure[attribute] },
        ], missing[attribute])),
      el("p", { class: "hint" }, "Exposure is a group's share of the attention; the first ranks get most of it. ",
        "The upright line is the target.",
        isMissing ? " A dashed box is the part of the target for which too few relevant documents were found." : null),
      sentences("Why", "explanation", search.explanation ?? []),
      sentences("What is still lacking", "lacking", lacking(search), whatIs("Supply gap", "Ranking gap"))),
    el("div", { class: "headline" },
      el("p", { class: "label" }, "Divergence from the target"), whatIs("Divergence"),
      el("p", { class: "big" }, el("span", { class: "was" }, nats(baseline.divergence)),
        el("span", { class: "arrow" }, " → "),
        el("b", { class: baseline.divergence - divergence > 0.0005 ? "lower" : null }, nats(divergence))),
      el("p", { class: "hint" }, "How far the groups' shares are from the target: 0 is on target. ",
        `KL in nats, over the first ${search.ranking.length}. ${ended(search)}, since `,
        `${STOPPED[search.stop_reason] ?? words(search.stop_reason)}.`),
      brought(search)));
}

const sentences = (title, kind, all, explained = null) => all.length ? el("div", {}, el("h3", {}, title), explained,
  el("ul", { class: `sentences ${kind}` }, all.map((it) => el("li", {}, foreign(it, 600))))) : null;

/** What each group still lacks of its target, and why. */
function lacking({ gaps, target }) {
  const found = [];
  for (const [attribute, groups] of Object.entries(gaps ? target : {})) {
    for (const group of Object.keys(groups)) {
      const withheld = gaps.ranking[attribute][group];
      const missing = gaps.supply[attribute][group];
      const why = [
        withheld >= LEAST_GAP ? `${points(withheld)} that this ranking withholds` : null,
        missing >= LEAST_GAP ? `${points(missing)} for which too few documents were found that are likely to be relevant` : null,
      ].filter(Boolean);
      if (why.length) found.push(`${group}: ${why.join(", and ")}.`);
    }
  }
  return found;
}

const points = (share) => many(Math.round(share * 100), "point");

/** What only the model's queries found. */
function brought({ without_model: without, ranking }) {
  if (!without) return null;
  return el("section", { "aria-label": "What the model brought" },
    el("h3", {}, "What the model brought"), whatIs("Refinement"),
    el("dl", { class: "facts" },
      fact("Documents that only its queries found", `${whole(without.documents)} of ${whole(ranking.length)}`),
      fact("Divergence without them", nats(without.divergence)),
      typeof without.relevance === "number" ? fact("Estimated relevance without them", figure(without.relevance, 2)) : null));
}

function ended({ iterations }) {
  const rounds = iterations.length - 1;
  return rounds ? `Stopped after ${many(rounds, "round")}` : "The query was not refined";
}

/** The cost of a run. */
export function cost(usage) {
  return el("section", { class: "card", "aria-label": "Cost" },
    el("h2", {}, "Cost"),
    el("dl", { class: "facts" },
      fact("Model calls", whole(usage.model_calls)),
      fact("From the cache", whole(usage.cached_calls)),
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
