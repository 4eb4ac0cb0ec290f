// What the terms on the page mean, in the words of the documentation's glossary.

import { address } from "./api.js";
import { el, hidden } from "./dom.js";

const glossary = fetch(address("/page/glossary.md"))
  .then((answer) => (answer.ok ? answer.text() : ""))
  .then((text) => new Map(text.split(/^## /m).slice(1).map((entry) => {
    const [term, ...lines] = entry.split("\n");
    return [term.trim(), lines.join(" ").replaceAll(/[*`]/g, "").trim()];
  })))
  .catch(() => new Map()); // the page says less without it, and nothing wrong

/** A small i in a circle that opens the explanations of these terms. */
function whatIs(...terms) {
  const list = el("dl", {});
  const found = el("details", { class: "what", hidden: true },
    el("summary", {}, el("span", { "aria-hidden": "true" }, "i"), hidden(`What is this? ${terms.join(", ")}`)), list);
  found.addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || !found.open) return;
    found.open = false;
    found.firstElementChild.focus();
  });
  glossary.then((all) => {
    const known = terms.filter((term) => all.has(term));
    list.append(...known.flatMap((term) => [el("dt", {}, term), el("dd", {}, all.get(term))]));
    found.hidden = !known.length;
  });
  return found;
}

/** A heading, and beside it what explains these terms. */
export const headed = (heading, ...terms) => el("div", { class: "headed" }, heading, whatIs(...terms));

/** A text, and at its end what explains these terms. */
export const explained = (text, ...terms) => el("div", { class: "explained" }, text, " ", whatIs(...terms));

/** Explain what the document itself marks with `data-terms`. */
export function explainTerms() {
  for (const place of document.querySelectorAll("[data-terms]")) {
    place.replaceWith(whatIs(...place.dataset.terms.split(", ")));
  }
}
