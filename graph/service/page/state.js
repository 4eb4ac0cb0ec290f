// What is known of a run so far, put together from its events. Plain data, nothing of the page.

import { partAfter } from "./steps.js";

/** The state of a run when only its record is known. */
export function begun(run) {
  return {
    run,
    step: run.status === "queued" ? "queued" : "prepare",
    part: run.status === "queued" ? null : partAfter("prepare"),
    worked: new Set(), // the parts of the graph
    target: {},
    rounds: new Map(),
    search: null,
    answer: null,
    probe: null,
    audit: null,
    draft: "",
    progress: null,
    warnings: [],
    stopReason: null,
    problem: null,
    over: false,
  };
}

/** Change the state by an event; a repeated event changes nothing. */
export function apply(state, { name, data }) {
  if (name === "run") state.run = { ...state.run, ...data };
  else if (name === "token") state.draft += data.text;
  else if (name === "step") stepped(state, data);
  else if (name === "end") ended(state, data.result);
  else if (name === "error") failed(state, data);
}

/** Take the end of a run whose events are gone. */
export function conclude(state, run) {
  state.run = { ...state.run, ...run };
  if (run.result) ended(state, run.result);
  else if (run.problem) failed(state, run.problem);
}

/** The rounds in their order. */
export const rounds = (state) =>
  [...state.rounds.values()].sort((one, other) => one.index - other.index);

const STEPS = {
  measure(state, { target, round: record }) {
    if (target) state.target = target;
    if (record) measured(state, record);
  },
  choose_group(state, { lacking }) {
    Object.assign(round(state, lastMeasured(state) + 1), { lacking: lacking ?? [] });
  },
  refine(state, { refinements }) {
    Object.assign(round(state, lastMeasured(state) + 1), { refinements: refinements ?? [] });
  },
  rerank(state, { search }) {
    if (search) searched(state, search);
  },
  progress(state, { progress }) {
    state.progress = progress;
  },
};

function stepped(state, told) {
  state.step = told.step;
  const part = partAfter(told.step) ?? state.part;
  if (part !== state.part) state.worked.add(state.part);
  state.part = part;
  if (state.run.status === "queued") state.run = { ...state.run, status: "running" };
  STEPS[told.step]?.(state, told);
  if (told.stop_reason) state.stopReason = told.stop_reason;
  for (const warning of told.warnings ?? []) {
    if (!state.warnings.includes(warning)) state.warnings.push(warning);
  }
}

function round(state, index) {
  if (!state.rounds.has(index)) {
    state.rounds.set(index, { index, lacking: [], refinements: [], queries: [], measured: false });
  }
  return state.rounds.get(index);
}

function measured(state, iteration) {
  Object.assign(round(state, iteration.index), iteration, { measured: true });
}

function lastMeasured(state) {
  return Math.max(-1, ...rounds(state).filter((it) => it.measured).map((it) => it.index));
}

function searched(state, result) {
  state.search = result;
  state.target = result.target;
  state.stopReason = result.stop_reason;
  for (const iteration of result.iterations) measured(state, iteration);
  const unused = result.unused_refinements ?? [];
  for (const it of rounds(state).filter((each) => !each.measured)) state.rounds.delete(it.index);
  if (unused.length) {
    Object.assign(round(state, lastMeasured(state) + 1), { refinements: unused, unused: true });
  }
}

function ended(state, result) {
  state.over = true;
  state.run = { ...state.run, status: "done" };
  if (state.run.kind === "search") searched(state, result);
  else if (state.run.kind === "answer") state.answer = result;
  else if (state.run.kind === "audit") state.audit = result;
  else state.probe = result;
  state.warnings = result.warnings ?? state.warnings;
}

function failed(state, problem) {
  state.over = true;
  state.problem = problem;
  const cancelled = String(problem.type ?? "").endsWith(":cancelled");
  state.run = { ...state.run, status: cancelled ? "cancelled" : "failed" };
}
