// The result of a probe: whether the model that ranks prefers a side.

import { el, fact, foreign } from "./dom.js";
import { figure, percent, words } from "./format.js";
import { headed } from "./glossary.js";

/** A probe's result. */
export function probeView(probe) {
  return [
    el("section", { class: "card", "aria-label": "Probe" },
      headed(el("h2", {}, "Does the model prefer a side?"), "Probe", "Preference", "Position bias"),
      probe.message ? el("p", {}, foreign(probe.message, 1000)) : null,
      probe.pairwise ? pairwise(probe.pairwise) : null,
      probe.listwise ? listwise(probe.listwise) : null,
      el("p", { class: "hint" }, foreign(probe.note, 1000))),
    el("section", { class: "card", "aria-label": "Documents" },
      el("h2", {}, "Documents in the probe"),
      el("table", { class: "plain" },
        el("thead", {}, el("tr", {}, ["#", "Document", "Side"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, probe.documents.map((document) => el("tr", {},
          el("td", { class: "rank" }, document.rank),
          el("th", { scope: "row", class: "title" }, foreign(document.title || document.id)),
          el("td", {}, document.side)))))),
  ];
}

function pairwise(found) {
  const share = ({ count, of, share: part }) => `${count} of ${of} (${percent(part)})`;
  return [
    el("p", {}, foreign(found.sentence, 1000)),
    el("dl", { class: "facts" },
      fact("Protected wins", share(found.protected)),
      fact("Unprotected wins", share(found.unprotected)),
      fact("Changed with the order", share(found.flips)),
      fact("Failed", Object.entries(found.failures).map(([status, n]) => `${words(status)} ${n}`).join(", ") || "none")),
  ];
}

function listwise(found) {
  return el("dl", { class: "facts" },
    fact("Exposure ratio as given", figure(found.initial_ratio)),
    found.personas.map((it) => fact(`asked for ${words(it.persona)}`, figure(it.exposure_ratio))));
}
