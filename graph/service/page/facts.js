// What a run came to: figures, cost, prompt and model, warnings, problems.

import { bars, LEAST_GAP } from "./bars.js";
import { el, fact, foreign } from "./dom.js";
import { many, nats, seconds, STOPPED, whole, words } from "./format.js";

/** The figures of a search: the divergence before and after, and who is shown. */
export function figures(search, marks) {
  const { baseline, divergence } = search;
  const missing = search.gaps?.supply ?? {};
  const isMissing = Object.values(missing).flatMap(Object.values).some((share) => share >= LEAST_GAP);
  return el("section", { class: "card figures", "aria-label": "What came of it" },
    el("div", { class: "headline" },
      el("p", { class: "label" }, "Divergence from the target"),
      el("p", { class: "big" }, el("span", { class: "was" }, nats(baseline.divergence)),
        el("span", { class: "arrow" }, " → "),
        el("b", { class: baseline.divergence - divergence > 0.0005 ? "lower" : null }, nats(divergence))),
      el("p", { class: "hint" }, "How far the shares of the groups are from the target: 0 is on target. ",
        `KL in nats, over the first ${search.ranking.length}. ${ended(search)}, since `,
        `${STOPPED[search.stop_reason] ?? words(search.stop_reason)}.`)),
    el("div", { class: "groups" }, Object.entries(search.target).map(([attribute, shares]) =>
      bars(marks, attribute, shares, [
        { name: "before", shares: baseline.exposure[attribute] },
        { name: "after", shares: search.exposure[attribute] },
      ], missing[attribute])),
      search.explanation?.length
        ? el("ul", { class: "explanation" }, search.explanation.map((it) => el("li", {}, foreign(it, 600)))) : null,
      el("p", { class: "hint" }, "Exposure: the share of the attention that a group gets, of which the first ",
        "ranks have most. The upright line is its target.",
        isMissing ? " A dashed box is the part of the target for which too few likely relevant documents were found." : null)));
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

/** What a run was done with. */
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
      fact("Index", foreign(result.corpus), result.retriever ? ` (${result.retriever})` : "")));
}

/** Sentences of warning. */
export function warnings(sentences) {
  if (!sentences.length) return null;
  return el("section", { class: "card warning", "aria-label": "Warnings" },
    el("h2", {}, "Please note"),
    el("ul", {}, sentences.map((sentence) => el("li", {}, foreign(sentence, 1000)))));
}

/** A problem of the service: its sentence, which says what to do, and its type. */
export function problemCard(problem) {
  const type = String(problem.type ?? "").replace("urn:fairqr:error:", "");
  return el("section", { class: "card problem", role: "alert" },
    el("h2", {}, foreign(problem.title || "It did not work")),
    el("p", {}, foreign(problem.detail || "The server gave no reason.", 1000)),
    type && type !== "about:blank" ? el("p", { class: "hint" }, "Type: ", el("code", {}, foreign(type, 80))) : null);
}
