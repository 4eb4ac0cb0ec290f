// One line of each document's text, to judge whether it is relevant.

import { json } from "./api.js";
import { fill, foreign } from "./dom.js";

const AT_ONCE = 40;
const LONGEST = 160;
const known = new Map(); // by corpus and id

/** Fill in the lines of all documents in an element. */
export async function fillLines(element, corpus, signal) {
  const places = [...element.querySelectorAll("[data-line]")];
  const keyOf = (id) => JSON.stringify([corpus, id]);
  const ids = [...new Set(places.map(({ dataset }) => dataset.line))].filter((id) => !known.has(keyOf(id)));
  for (let at = 0; at < ids.length; at += AT_ONCE) {
    const asked = new URLSearchParams({ corpus });
    for (const id of ids.slice(at, at + AT_ONCE)) asked.append("id", id);
    const { documents } = await json(`/v1/documents?${asked}`, { signal });
    for (const { id, line } of documents) known.set(keyOf(id), line);
  }
  for (const place of places) {
    const line = known.get(keyOf(place.dataset.line));
    if (line) fill(place, foreign(line, LONGEST));
  }
}
