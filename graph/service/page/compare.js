// Two runs side by side: what differs in their settings, the divergence, the rankings, the cost.

import { json } from "./api.js";
import { targetOf } from "./answer.js";
import { curve, pointsOf } from "./curve.js";
import { el, fill, foreign } from "./dom.js";
import { problemCard } from "./outcome.js";
import { figure, nats, percent, seconds, STOPPED, whole, when } from "./format.js";
import { allMarks } from "./groups.js";
import { sideBySide } from "./ranking.js";

/** Show the comparison on its page. */
export function showComparison(page, ids, { open }) {
  const ending = new AbortController();
  const drawing = curve();
  fill(page, el("h1", { tabindex: "-1" }, "Two runs compared"), el("p", { class: "hint", role: "status" }, "Loading …"));
  Promise.all(ids.map((id) => json(`/v1/runs/${encodeURIComponent(id)}`, { signal: ending.signal })))
    .then((runs) => fill(page, compared(runs, drawing, open)))
    .catch((error) => {
      if (ending.signal.aborted) return;
      fill(page, el("h1", {}, "Two runs compared"), problemCard({ title: "It did not work", detail: error.message }));
    });
  return { close: () => { ending.abort(); drawing.close(); page.replaceChildren(); } };
}

function compared(runs, drawing, open) {
  const results = runs.map(({ result }) => result);
  const names = ["A", "B"];
  const searches = runs.every(({ kind, result }) => kind === "search" && result);
  if (searches) {
    drawing.show(results.map((result, at) => ({
      name: names[at],
      points: pointsOf(result.iterations.map((it) => ({ ...it, measured: true })), result),
    })));
  }
  return [
    el("h1", { tabindex: "-1" }, "Two runs compared"),
    table("Settings", runs, open, differences(runs)),
    table("What came of it", runs, null, outcome(runs)),
    searches ? el("section", { class: "card", "aria-label": "Divergence" }, el("h2", {}, "Divergence"), drawing.element) : null,
    results.every((result) => result?.ranking) ? el("section", { "aria-label": "Rankings" }, el("h2", {}, "Rankings"),
      el("p", { class: "hint" }, "Moves are from A to B."),
      sideBySide({ name: "A", ranking: results[0].ranking, marks: marksOf(results[0]) },
        { name: "B", ranking: results[1].ranking, marks: marksOf(results[1]) })) : null,
  ];
}

function table(title, runs, open, rows) {
  return el("section", { class: "card", "aria-label": title },
    el("h2", {}, title),
    el("table", { class: "plain two" },
      el("thead", {}, el("tr", {}, el("td", {}), runs.map((run, at) => el("th", { scope: "col" },
        `${"AB"[at]} `, open ? el("a", { href: open(run.id) }, foreign(run.query, 80)) : null)))),
      el("tbody", {}, rows.map(([name, ...values]) => el("tr", { class: values[0] === values[1] ? "same" : null },
        el("th", { scope: "row" }, name), values.map((value) => el("td", {}, foreign(value, 200))))))));
}

/** The settings that differ, and the times of the runs. */
export function differences(runs) {
  const requests = runs.map(({ request }) => request ?? {});
  const names = [...new Set(requests.flatMap((request) => Object.keys(request)))].sort();
  const rows = names.map((name) => [name, ...requests.map((request) => said(request[name], name))])
    .filter(([, one, other]) => one !== other);
  return [
    ["started", ...runs.map(({ created }) => when(created))],
    ["kind", ...runs.map(({ kind }) => kind)],
    ...(rows.length ? rows : [["all other settings", "the same", "the same"]]),
  ];
}

function said(value, name) {
  if (value === null || value === undefined) return "the default";
  if (Array.isArray(value)) {
    return value.length ? value.map((it) => said(it)).join(", ") : name === "attributes" ? "all" : "none";
  }
  return typeof value === "object" ? JSON.stringify(value).replaceAll('"', "").replaceAll(",", ", ") : String(value);
}

function outcome(runs) {
  const rows = [];
  const row = (name, value) => {
    const values = runs.map(({ result }) => (result ? value(result) : undefined));
    if (values.some((it) => it !== undefined)) rows.push([name, ...values.map((it) => it ?? "–")]);
  };
  const only = (has, value) => (result) => (has in result ? value(result) : undefined);
  row("divergence before", only("baseline", ({ baseline }) => nats(baseline.divergence)));
  row("divergence after", only("baseline", ({ divergence }) => nats(divergence)));
  row("divergence without the model", ({ without_model: without }) => without ? nats(without.divergence) : undefined);
  row("estimated relevance before", ({ baseline }) => relevance(baseline));
  row("estimated relevance after", relevance);
  for (const [attribute, group] of groupsIn(runs)) {
    row(`exposure of ${group}`, only("baseline", (result) =>
      `${percent(result.exposure[attribute]?.[group])}, target ${percent(result.target[attribute]?.[group])}`));
    row(`unattainable exposure of ${group}`, ({ gaps }) => gaps ? percent(gaps.unattainable[attribute]?.[group]) : undefined);
  }
  row("rounds", only("iterations", ({ iterations }) => String(iterations.length - 1)));
  row("stopped, since", only("stop_reason", (result) => STOPPED[result.stop_reason] ?? result.stop_reason));
  row("answered", only("counts", ({ counts }) => `${counts.answered} of ${counts.samples}`));
  row("disparity EE-D/k", only("disparity", ({ disparity }) => figure(disparity)));
  row("use of sources EAR", only("attribution_rate", (result) => percent(result.attribution_rate)));
  row("most frequent answer", only("distribution", ({ distribution }) => distribution[0]?.text ?? "–"));
  row("model", (result) => result.generator ?? result.model ?? "–");
  row("prompts", ({ prompts }) => prompts.map(({ id, version, sha256 }) =>
    `${id} ${version} ${sha256.slice(0, 12)}`).join(", ") || "–");
  row("model calls, tokens read", ({ usage }) => `${whole(usage.model_calls)}, ${whole(usage.prompt_tokens)}`);
  row("time", ({ usage }) => seconds(usage.milliseconds));
  return rows;
}

const relevance = (result) => typeof result?.relevance === "number" ? figure(result.relevance, 2) : undefined;
const targetIn = (result) => result.target ?? (Array.isArray(result.groups) ? targetOf(result) : {});
const marksOf = (result) => allMarks(targetIn(result));

function groupsIn(runs) {
  const found = new Map();
  for (const { result } of runs) {
    for (const [attribute, shares] of Object.entries(result ? targetIn(result) : {})) {
      for (const group of Object.keys(shares)) found.set(`${attribute}\n${group}`, [attribute, group]);
    }
  }
  return [...found.values()];
}
