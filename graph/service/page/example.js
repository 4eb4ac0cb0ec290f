// Queries to try, and a finished example for the empty start: the real figures of a search that asks no
// model.

import { json } from "./api.js";
import { el, fill, foreign } from "./dom.js";
import { figures } from "./outcome.js";
import { allMarks } from "./groups.js";
import { fillLines } from "./lines.js";
import { groupsOf } from "./options.js";
import { beforeAndAfter } from "./ranking.js";

/** The source that comes with fairqr, and queries to try on it. */
const EXAMPLE_SOURCE = "notables";
const EXAMPLES = {
  search: ["mathematician", "writer", "film director"],
  answer: ["Which composer was born in Vienna?", "Which chemist was a woman?", "Which astronaut was born in Russia?"],
  probe: ["mathematician", "writer", "film director"],
};

/** The queries to try; empty if the source is not served. */
export const examplesOf = (options, kind) =>
  options?.indexes.some(({ name }) => name === EXAMPLE_SOURCE) ? EXAMPLES[kind] : [];

/**
 * Show the example. It is no run, and nothing of it is kept.
 *
 * @param {Element} place
 * @param {Object} options What the server offers.
 * @returns {{close: Function}}
 */
export function showExample(place, options) {
  const ending = new AbortController();
  draw(place, options, ending.signal).catch(() => {}); // the start is whole without it
  return {
    close() {
      ending.abort();
      place.replaceChildren();
    },
  };
}

async function draw(place, options, signal) {
  const [query] = examplesOf(options, "search");
  if (!query) return;
  const [attribute] = Object.keys(groupsOf(options.indexes.find(({ name }) => name === EXAMPLE_SOURCE)));
  const search = await json("/v1/search", {
    method: "POST",
    body: { query, corpus: EXAMPLE_SOURCE, attributes: [attribute], k: 10, ask: "never", keep: false },
    signal,
  });
  fill(place,
    el("header", { class: "run-head" },
      el("h2", { id: "example-title" }, "An example: ", foreign(query)),
      el("p", { class: "hint" }, `We searched ${EXAMPLE_SOURCE} for it just now, and asked no model. Your own run takes its place.`)),
    el("div", { class: "slot" }, figures(search, allMarks(search.target))),
    el("div", { class: "slot" }, beforeAndAfter(search)));
  await fillLines(place, search.corpus, signal);
}
