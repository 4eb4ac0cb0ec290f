// The page of audits: a form to start one, and past audits.

import { json } from "./api.js";
import { el, fill, foreign, option } from "./dom.js";
import { many } from "./format.js";
import { headed } from "./glossary.js";
import { aboutSource, groupsOf, hasPopulation, offered } from "./options.js";
import { runList } from "./past.js";

const TARGETS = [
  ["", "The share of the relevant documents, if known"],
  ["population:1", "The share of the population"],
  ["uniform:1", "The same for every group"],
  ["corpus:1", "The share of all documents"],
];
const WEIGHTS = ["weight", "count", "n", "frequency"];

/** Show the form and the list on their page. `repeated` is an earlier request to start from. */
export function showAudits(page, { open, repeated }) {
  const ending = new AbortController();
  const { signal } = ending;
  fill(page,
    el("h1", {}, "Audits"),
    el("p", { class: "hint" }, "One search is an anecdote. An audit asks a source many queries, and says who gets seen in its results."),
    auditForm({ repeated, signal, begun: (run) => { location.hash = open(run.id); } }),
    el("h2", {}, "Past audits"),
    runList({ kind: "audit", open, none: "There are no audits yet.", signal }));
  return { close: () => { ending.abort(); page.replaceChildren(); } };
}

function auditForm({ repeated, signal, begun }) {
  const source = el("select", { id: "audit-source", "aria-describedby": "audit-source-about", on: { change: sourceChanged } });
  const about = el("p", { class: "hint", id: "audit-source-about" });
  const attributes = el("fieldset", { class: "field" });
  const queries = el("textarea", {
    id: "queries", rows: 8, required: true, spellcheck: false, "aria-describedby": "queries-about",
    placeholder: "physicist\ncomposer\nwriter", on: { input: counted },
  });
  const count = el("span", { role: "status" });
  const file = el("input", { type: "file", accept: ".txt,.csv,text/plain,text/csv", on: { change: read } });
  const k = el("input", { type: "number", min: 1, max: 10000, value: 10, required: true });
  const target = el("select", {}, TARGETS.map(([value, label]) => option(value, label)));
  const problem = el("p", { class: "problem", role: "alert", hidden: true });
  const go = el("button", { type: "submit", class: "primary" }, "Audit");
  let indexes = [];

  const index = () => indexes.find(({ name }) => name === source.value);

  function sourceChanged() {
    about.textContent = aboutSource(index());
    fill(attributes, el("legend", {}, "Attributes"), el("div", { class: "checks" },
      Object.keys(groupsOf(index())).map((name) => el("label", { class: "check" },
        el("input", { type: "checkbox", value: name, checked: true, on: { change: targetsChanged } }), foreign(name)))));
    targetsChanged();
  }

  const chosen = () => [...attributes.querySelectorAll("input:checked")].map(({ value }) => value);

  function targetsChanged() {
    const population = [...target.options].find(({ value }) => value === "population:1");
    const audited = chosen().length ? chosen() : Object.keys(groupsOf(index()));
    population.disabled = !hasPopulation(index(), audited);
    if (population.selected && population.disabled) target.value = "";
  }

  function counted() {
    count.textContent = many(parsedQueries(queries.value).length, "query", "queries");
  }

  async function read() {
    if (!file.files.length) return;
    queries.value = await file.files[0].text();
    counted();
  }

  function say(sentence) {
    problem.hidden = !sentence;
    problem.textContent = sentence;
  }

  async function submit(event) {
    event.preventDefault();
    say("");
    go.disabled = true;
    try {
      await filled; // or nothing would be chosen yet
      begun(await json("/v1/audits", { method: "POST", body: {
        corpus: source.value,
        queries: parsedQueries(queries.value),
        attributes: chosen(),
        k: Number(k.value),
        target: target.value || undefined,
      } }));
    } catch (error) {
      say(error.message);
    } finally {
      go.disabled = false;
    }
  }

  async function fillIn() {
    ({ indexes } = await offered());
    if (signal.aborted) return;
    fill(source, indexes.map(({ name }) => option(name)));
    if (repeated) {
      source.value = repeated.corpus;
      queries.value = written(repeated.queries);
      k.value = repeated.k;
      const part = Object.keys(repeated.target?.parts ?? {})[0];
      target.value = part ? `${part}:1` : "";
    }
    sourceChanged();
    if (repeated?.attributes.length) {
      for (const box of attributes.querySelectorAll("input")) box.checked = repeated.attributes.includes(box.value);
    }
    counted();
  }

  const filled = fillIn();
  filled.catch((error) => { if (!signal.aborted) say(error.message); });
  return el("form", { class: "card audit-form", "aria-label": "Start an audit", on: { submit } },
    el("div", { class: "fields" },
      el("label", { class: "field" }, "Source", source), about, attributes,
      el("label", { class: "field" }, "Results that count as shown (k)", k),
      headed(el("label", { class: "field" }, "Target: the exposure that each group should get", target),
        "Target", "Population", "Relevance")),
    el("div", { class: "fields" },
      el("label", { class: "field" }, "Queries", queries),
      el("p", { class: "hint", id: "queries-about" }, "One per line. Or CSV with the columns ",
        el("code", {}, "query"), " and ", el("code", {}, "weight"), " (how often it was asked). ", count),
      el("label", { class: "field" }, "Or take them from a file", file)),
    problem, el("p", {}, go));
}

/** The queries of a text: one a line, or the columns of a CSV that its first line names. */
export function parsedQueries(text) {
  const lines = text.split(/\r?\n/).map((line) => line.trim()).filter(Boolean);
  const names = cells(lines[0] ?? "").map((name) => name.toLowerCase());
  const at = names.indexOf("query");
  if (at < 0) return lines;
  const weight = names.findIndex((name) => WEIGHTS.includes(name));
  return lines.slice(1).map(cells).filter((row) => row[at]).map((row) =>
    (weight < 0 ? row[at] : { query: row[at], weight: Number(row[weight]) }));
}

/** The cells of a line of CSV; a cell in quotes may hold commas. */
function cells(line) {
  return [...line.matchAll(/(?:^|,)\s*(?:"((?:[^"]|"")*)"|([^,]*))/g)]
    .map(([, quoted, plain]) => (quoted === undefined ? plain : quoted.replaceAll('""', '"')).trim());
}

function written(queries) {
  if (queries.every(({ weight }) => weight === 1)) return queries.map(({ query }) => query).join("\n");
  return ["query,weight", ...queries.map(({ query, weight }) => `"${query.replaceAll('"', '""')}",${weight}`)].join("\n");
}
