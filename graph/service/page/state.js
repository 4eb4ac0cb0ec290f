// What is known of a run so far, put together from its events. Plain data, nothing of the page.

/** The state of a run of which nothing is known but its record. */
export function begun(run) {
  return {
    run,
    step: run.status === "queued" ? "queued" : "begin",
    target: {},
    rounds: new Map(),
    search: null,
    answer: null,
    probe: null,
    draft: "",
    sampled: [],
    generations: [],
    warnings: [],
    stopReason: null,
    problem: null,
    over: false,
  };
}

/** Change the state by an event; one that comes again changes nothing. */
export function apply(state, { name, data }) {
  if (name === "run") state.run = { ...state.run, ...data };
  else if (name === "token") state.draft += data.text;
  else if (name === "step") stepped(state, data.step, data.update ?? {});
  else if (name === "end") ended(state, data.result);
  else if (name === "error") failed(state, data);
}

/** Take what a run that is over left, where its events are gone. */
export function conclude(state, run) {
  state.run = { ...state.run, ...run };
  if (run.result) ended(state, run.result);
  else if (run.problem) failed(state, run.problem);
}

/** The rounds in their order. */
export const rounds = (state) =>
  [...state.rounds.values()].sort((one, other) => one.index - other.index);

const STEPS = {
  retrieve(state, update) {
    if (update.target) state.target = update.target;
  },
  measure(state, update) {
    for (const iteration of update.iterations ?? []) measured(state, iteration);
  },
  choose_group(state, update) {
    Object.assign(round(state, lastMeasured(state) + 1), { lacking: update.lacking ?? [] });
  },
  refine(state, update) {
    const index = update.iteration ?? lastMeasured(state) + 1;
    Object.assign(round(state, index), { refinements: update.refinements ?? [] });
  },
  rerank(state, update) {
    if (update.result) searched(state, update.result);
  },
  sample(state, update) {
    state.sampled = update.sampled ?? [];
  },
  generate(state, update) {
    for (const generation of update.generations ?? []) {
      if (!state.generations.some((other) => other.number === generation.number)) {
        state.generations.push(generation);
      }
    }
  },
  summarise(state, update) {
    if (update.answer) state.answer = update.answer;
  },
  conclude(state, update) {
    if (update.probe) state.probe = update.probe;
  },
};

function stepped(state, step, update) {
  state.step = step;
  if (state.run.status === "queued") state.run = { ...state.run, status: "running" };
  STEPS[step]?.(state, update);
  if (update.stop_reason) state.stopReason = update.stop_reason;
  const warnings = Array.isArray(update.warnings) ? update.warnings : [];
  for (const warning of warnings) if (!state.warnings.includes(warning)) state.warnings.push(warning);
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
  else state.probe = result;
  state.warnings = result.warnings ?? state.warnings;
}

function failed(state, problem) {
  state.over = true;
  state.problem = problem;
  const cancelled = String(problem.type ?? "").endsWith(":cancelled");
  state.run = { ...state.run, status: cancelled ? "cancelled" : "failed" };
}
