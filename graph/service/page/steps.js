// The steps of a run as a small graph that lights up while it runs.

import { el } from "./dom.js";

/** Which part of the graph works after each step that has ended. */
const WORKS = {
  prepare: "search",
  retrieve: "measure",
  measure: "ask for words",
  choose_group: "ask for words",
  refine: "search",
  rerank: "re-rank",
  sample: "answer",
  generate: "answer",
  attribute: "attribute",
  summarize: "count",
  draw: "ask the model",
  ask: "ask the model",
  compare: "count",
};

/** These follow each other in rounds. */
const LOOP = ["search", "measure", "ask for words"];

const AFTER = {
  search: ["re-rank"],
  answer: ["re-rank", "answer", "attribute", "count"],
  probe: ["re-rank", "ask the model", "count"],
};

/** The part that works once a step has ended; null if the graph has none for it. */
export const partAfter = (step) => WORKS[step] ?? null;

/** The graph of a run with the part that works now, and those that have worked; null for an audit. */
export function stepGraph({ run, part, worked, rounds }) {
  if (!AFTER[run.kind]) return null;
  const again = Math.max(0, ...rounds.keys());
  const box = (name) => el("span", {
    class: `step${worked.has(name) ? " worked" : ""}${name === part ? " now" : ""}`, "data-step": name,
  }, name);
  return el("div", { class: "steps", role: "img", "aria-label": part ? `Now: ${part}` : "Not begun" },
    el("span", { class: "step-loop" }, LOOP.map(box),
      el("span", { class: "step-round" }, again ? `round ${again}` : "")),
    AFTER[run.kind].map(box));
}
