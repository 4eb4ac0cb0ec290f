// A run, shown in the same way while it runs and afterwards.

import { json, Problem } from "./api.js";
import { answerView, targetOf } from "./answer.js";
import { auditView } from "./audit.js";
import { copying } from "./copying.js";
import { curve, pointsOf } from "./curve.js";
import { byId, el, fill, foreign } from "./dom.js";
import { follow } from "./events.js";
import { many, UNDER_WAY, when, words } from "./format.js";
import { allMarks } from "./groups.js";
import { fillLines } from "./lines.js";
import { cost, figures, isEmpty, isRefined, problemCard, provenance, warnings } from "./outcome.js";
import { probeView } from "./probe.js";
import { beforeAndAfter } from "./ranking.js";
import { card } from "./rounds.js";
import { apply, begun, rounds } from "./state.js";
import { stepGraph } from "./steps.js";
import { hasWeight, weightSlider } from "./weight.js";

/** Show a run. The returned `close` stops following it, and does not stop the run. */
export function showRun(id, { again, known }) {
  const ending = new AbortController();
  const view = parts(id, again, ending.signal);
  fill(byId("run"), view.element);
  follows(id, view, known, ending.signal).catch((error) => {
    if (!ending.signal.aborted) view.refused(error);
  });
  return {
    close() {
      ending.abort();
      view.close();
      byId("run").replaceChildren();
    },
  };
}

async function follows(id, view, known, signal) {
  const run = await json(`/v1/runs/${encodeURIComponent(id)}`, { signal });
  known(run);
  const state = begun(run);
  view.show(state);
  view.heading.focus();
  await follow(id, {
    signal,
    tell(event) {
      apply(state, event);
      view.show(state);
    },
    connection(connected) {
      if (!connected) state.draft = ""; // pieces of text come only once
      view.connection(connected);
    },
  });
  view.show(state);
}

function parts(id, again, signal) {
  const heading = el("h1", { tabindex: "-1", class: "query" });
  const status = el("span", { class: "status" });
  const about = el("p", { class: "hint about" });
  const progress = el("p", { class: "progress", role: "status", "aria-live": "polite" });
  const connection = el("p", { class: "card warning", role: "status", hidden: true });
  const cancel = el("button", { type: "button", class: "danger", hidden: true, on: { click: stop } }, "Cancel");
  const repeat = el("button", { type: "button", class: "quiet", hidden: true }, "Change and run again");
  const slots = Object.fromEntries(
    ["steps", "problem", "warnings", "answer", "figures", "curve", "weight", "ranking", "facts", "share"].map((name) =>
      [name, el("div", { class: `slot at-${name}` })]));
  const cards = el("ol", { class: "rounds", "aria-label": "Rounds" });
  const process = el("section", { "aria-label": "Round by round", hidden: true },
    el("h2", {}, "Round by round"), el("div", { class: "round-grid" }, cards, slots.curve));
  const element = el("article", { class: "run", "data-run": id },
    el("header", { class: "run-head" },
      el("div", { class: "row" }, heading, status, el("span", { class: "row actions" }, cancel, repeat)),
      about),
    progress, slots.steps, connection, slots.problem, slots.answer, slots.figures, slots.warnings, slots.weight, slots.ranking, process, slots.facts, slots.share);
  const drawing = curve();
  const made = new Map(); // what each part shows now, so that we draw nothing twice
  let back = null;
  let current = null;
  let reranked = null; // the search with another weight of fairness

  function once(slot, key, content) {
    const now = JSON.stringify(key);
    if (made.get(slot) === now) return;
    made.set(slot, now);
    fill(slots[slot], key === null ? null : content());
  }

  async function stop() {
    cancel.disabled = true;
    try {
      await json(`/v1/runs/${encodeURIComponent(id)}`, { method: "DELETE", signal });
    } catch (error) {
      if (!signal.aborted) progress.textContent = error.message;
      cancel.disabled = false;
    }
  }

  repeat.addEventListener("click", () => again(current.run));

  function show(state) {
    current = state;
    const { run, search, answer, probe, audit } = state;
    fill(heading, foreign(run.query, 500));
    document.title = `${Array.from(run.query).slice(0, 60).join("")} – fairqr`;
    status.textContent = run.status;
    status.className = `status ${run.status}`;
    about.textContent = aboutOf(run);
    cancel.hidden = state.over;
    repeat.hidden = !run.request;
    const now = state.over ? done(state) : underWay(state);
    if (progress.textContent !== now) progress.textContent = now;
    progress.classList.toggle("live", !state.over);
    once("steps", state.over ? null : [state.part, [...state.worked], state.rounds.size], () => stepGraph(state));
    element.setAttribute("aria-busy", String(!state.over));
    showRounds(state);
    once("problem", state.problem, () => problemCard(state.problem));
    const empty = isEmpty(search);
    const told = empty && state.warnings.length === 1 ? [] : state.warnings; // that one says the same
    once("warnings", told, () => warnings(told));
    once("answer", answer ?? probe ?? audit ?? (state.draft || null), () =>
      (answer ? answerView(answer) : probe ? probeView(probe) : audit ? auditView(audit, run)
        : draft(state.draft)));
    once("weight", state.over && search && !empty && hasWeight(run) ? run.request : null, () =>
      weightSlider(run.request, isRefined(search), (result) => { reranked = result; show(current); }, signal));
    const shown = reranked ?? search;
    once("figures", shown, () => figures(shown, allMarks(shown.target)));
    once("ranking", empty ? null : shown, () => beforeAndAfter(shown));
    if (shown && made.get("lines") !== shown) {
      made.set("lines", shown);
      // If this fails, the ranking just has no lines.
      fillLines(slots.ranking, shown.corpus, signal).catch(() => {});
    }
    const result = answer ?? probe ?? search;
    once("facts", result, () => el("div", { class: "pair" }, cost(result.usage), provenance(result)));
    once("share", state.over && run.kind !== "audit" && run.request ? run.request : null, () => copying(run));
  }

  function showRounds(state) {
    const all = rounds(state);
    if (!all.length) return;
    process.hidden = isEmpty(state.search);
    const target = Object.keys(state.target).length || !state.answer ? state.target : targetOf(state.answer);
    const marks = allMarks(target);
    const kept = state.search?.iterations.length > 1 ? state.search.best_iteration : null;
    all.forEach((round, place) => {
      const before = all[place - 1]?.divergence;
      const key = JSON.stringify([round, before, kept, target]);
      if (made.get(`round ${round.index}`) === key) return;
      made.set(`round ${round.index}`, key);
      const fresh = card(round, { target, marks, before, kept: kept === round.index });
      const old = cards.querySelector(`[data-round="${Number(round.index)}"]`);
      if (old) old.replaceWith(fresh);
      else cards.append(fresh);
    });
    for (const old of cards.querySelectorAll("[data-round]")) {
      if (!state.rounds.has(Number(old.dataset.round))) old.remove();
    }
    const points = pointsOf(all, state.search);
    if (all.length < 3 || made.get("points") === JSON.stringify(points)) return;
    made.set("points", JSON.stringify(points));
    if (!drawing.element.isConnected) fill(slots.curve, drawing.element);
    drawing.show([{ name: "divergence", points }]);
  }

  return {
    element,
    heading,
    show,
    connection(connected) {
      clearTimeout(back);
      connection.hidden = false;
      connection.textContent = connected
        ? "Connected again."
        : "The connection was lost. The run continues; trying to reconnect …";
      if (connected) back = setTimeout(() => { connection.hidden = true; }, 4000);
    },
    refused(error) {
      progress.textContent = "";
      progress.classList.remove("live");
      fill(slots.problem, problemCard(error instanceof Problem
        ? { ...error.problem, detail: error.message }
        : { title: "It did not work", detail: error.message }));
    },
    close() {
      clearTimeout(back);
      drawing.close();
    },
  };
}

function underWay({ step, progress }) {
  if (step !== "progress" || !progress) return `${UNDER_WAY[step] ?? words(step)} …`;
  return `${words(progress.stage)}: ${progress.done} of ${progress.of} …`;
}

function aboutOf(run) {
  const request = run.request ?? {};
  const attributes = [request.attributes ?? []].flat();
  const again = run.attempts > 1 ? ", resumed after an interruption" : "";
  return [run.kind, request.corpus, attributes.join(", "), request.method, when(run.created) + again]
    .filter(Boolean).join(" · ");
}

function done(state) {
  if (state.run.status === "cancelled") return "The run was cancelled.";
  if (state.problem) return "The run ended with a problem.";
  if (state.audit) return "Done.";
  const count = rounds(state).filter((round) => round.index && round.measured).length;
  return count ? `Done after ${many(count, "round")} of refinement.` : "Done.";
}

function draft(text) {
  return el("section", { class: "card answers", "aria-label": "The answer as it is written" },
    el("h2", {}, "Answer"), el("blockquote", { class: "answer writing" }, foreign(text, 20_000)));
}
