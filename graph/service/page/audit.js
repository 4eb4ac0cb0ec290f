// An audit: who gets seen over many queries, how sure that is, and the files that prove it.

import { address, call } from "./api.js";
import { bars } from "./bars.js";
import { el, fact, foreign } from "./dom.js";
import { percent, whole, words } from "./format.js";
import { explained, headed } from "./glossary.js";
import { allMarks } from "./groups.js";
import { authorization } from "./key.js";
import { allGroups } from "./lorenz.js";
import { inWords } from "./outcome.js";

const VERDICTS = {
  less: "gets less",
  more: "gets more",
  within_relevance_error: "within the error of the estimate",
  too_few: "too few queries to tell",
  undecided: "cannot tell: the test finds a difference, but its interval holds 0",
  cannot_tell: "cannot tell",
  saturated: "cannot tell: more relevant documents than were looked at",
  unlabelled: "cannot tell: too many labels are missing",
  unknown: "cannot tell: its target share is not known",
};

/** The findings of an audit. */
export function auditView({ findings, figures, digest }, { id }) {
  const attributes = Object.groupBy(figures.groups, ({ attribute }) => attribute);
  const combined = Object.keys(attributes).filter((name) => name.includes("×"));
  const alone = Object.keys(attributes).filter((name) => !combined.includes(name));
  const { queries, engine, relevance, spec } = figures;
  return [
    el("section", { class: "card", "aria-label": "Findings" },
      headed(el("h2", {}, "Who gets seen"), "Exposure", "Target", "Unattainable exposure", "Ranking gap"),
      inWords(foreign(findings[0], 2000)),
      el("ul", { class: "sentences" }, findings.slice(1).map((it) => el("li", {}, foreign(it, 2000))))),
    alone.map((attribute) => el("section", { class: "card", "aria-label": `Exposure by ${attribute}` },
      el("h2", {}, foreign(attribute)), exposure(attribute, attributes[attribute]),
      (figures.concentration ?? []).filter((it) => it.attribute === attribute).map(allGroups))),
    combined.length ? el("section", { class: "card", "aria-label": "Combinations" },
      el("details", { class: "combinations" }, el("summary", {}, "Combinations of attributes"),
        combined.map((attribute) => exposure(attribute, attributes[attribute])))) : null,
    el("section", { class: "card", "aria-label": "Made with" },
      el("h2", {}, "Made with"),
      el("dl", { class: "facts" },
        fact("Source", foreign(engine.name), ` (${engine.retriever})`),
        fact("Queries", `${whole(queries.answered)} of ${whole(queries.asked)} answered`),
        fact("Results that count as shown", whole(spec.k)),
        fact("Target", foreign(String(spec.target))),
        fact("Relevance", words(relevance)),
        fact("Digest", el("code", { title: digest }, digest.slice(0, 12))))),
    report(`/v1/audits/${encodeURIComponent(id)}`, id),
  ];
}

function exposure(attribute, groups) {
  const of = (name) => Object.fromEntries(groups.map((it) => [it.group, it[name]?.value]));
  const target = of("target");
  const isSure = groups.some(({ verdict }) => ["less", "more"].includes(verdict));
  return [
    bars(allMarks({ [attribute]: target }), attribute, target, [{ name: "exposure", shares: of("exposure") }],
      of("unattainable")),
    el("details", { class: "quiet-details", open: isSure },
      el("summary", {}, "How sure that is"),
      explained(el("p", {}, "Each exposure has a 95% interval."), "Interval"),
      el("table", { class: "plain" },
        el("thead", {}, el("tr", {},
          ["Group", "Exposure", "Verdict"].map((name) => el("th", { scope: "col" }, name)))),
        el("tbody", {}, groups.map(({ group, exposure: share, verdict }) => el("tr", {},
          el("th", { scope: "row" }, foreign(group)),
          el("td", {}, percent(share.value),
            share.interval ? ` (${percent(share.interval[0])} to ${percent(share.interval[1])})` : null),
          el("td", {}, VERDICTS[verdict] ?? words(verdict))))))),
  ];
}

/** The report and all files. With a key we use buttons, since links and frames cannot send it. */
function report(path, id) {
  const bundle = [`${path}/bundle.zip`, `audit-${id}.zip`, "Download all files"];
  const page = [`${path}/report.html`, `audit-${id}.html`];
  const note = el("p", { class: "hint", role: "status" });
  const isFree = !authorization().Authorization;
  return el("section", { class: "card", "aria-label": "Report" },
    el("h2", {}, "Report"),
    isFree ? el("p", { class: "row" },
      el("a", { href: address(page[0]), target: "_blank", rel: "noopener" }, "Open the report in a new tab"),
      el("a", { href: address(bundle[0]), download: bundle[1] }, bundle[2]))
      : el("p", { class: "row" },
        download([...page, "Download the report"], note), download(bundle, note)),
    el("p", { class: "hint" }, "The files are evidence: ", el("code", {}, "fairqr audit verify"),
      " checks them without the search engine."),
    note,
    isFree ? el("iframe", { class: "report", src: address(page[0]), sandbox: "", title: "The report of the audit" })
      : null);
}

function download([path, name, label], note) {
  const button = el("button", { type: "button", class: "quiet", on: { click: async () => {
    button.disabled = true;
    try {
      const url = URL.createObjectURL(await (await call(path)).blob());
      el("a", { href: url, download: name }).click();
      setTimeout(() => URL.revokeObjectURL(url), 60_000);
      note.textContent = "";
    } catch (error) {
      note.textContent = error.message;
    } finally {
      button.disabled = false;
    }
  } } }, label);
  return button;
}
