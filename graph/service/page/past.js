// Runs of the past: a list to open one, or to choose two to compare.

import { json } from "./api.js";
import { el, fill, foreign } from "./dom.js";
import { many, when } from "./format.js";

const PAGE = 20;

/** Show the list of all runs on its page. */
export function showRuns(page, { open, compare }) {
  const ending = new AbortController();
  const chosen = new Set();
  const both = el("button", { type: "button", class: "primary", disabled: true, on: {
    click: () => compare(...chosen),
  } }, "Compare two");
  const choose = (run) => {
    const box = el("input", { type: "checkbox", on: { change: () => {
      if (box.checked) chosen.add(run.id);
      else chosen.delete(run.id);
      both.disabled = chosen.size !== 2;
      both.textContent = chosen.size > 2 ? `Compare two (${chosen.size} chosen)` : "Compare two";
    } } });
    box.setAttribute("aria-label", `Choose ${run.query} to compare`);
    box.disabled = run.status !== "done" || !["search", "answer"].includes(run.kind);
    return box;
  };
  const none = "There are no runs yet. Start one under Search.";
  fill(page,
    el("div", { class: "row spread" }, el("h1", {}, "Past runs"), both),
    el("p", { class: "hint" }, "Open a run, or choose two to see them side by side."),
    runList({ open, choose, none, signal: ending.signal }));
  return { close: () => { ending.abort(); page.replaceChildren(); } };
}

/**
 * A list of runs, the newest first.
 *
 * @param {{kind: ?string, open: Function, choose: ?Function, none: string, signal: AbortSignal}} how
 *   `kind` is the kind of all runs; `choose` makes the box that chooses a run; `none` is said where
 *   there are no runs.
 */
export function runList({ kind, open, choose, none, signal }) {
  const list = el("ul", { class: "runs" });
  const note = el("p", { class: "hint", role: "status" }, "Loading …");
  const more = el("button", { type: "button", class: "quiet", hidden: true }, "Show older ones");
  let before;

  async function load() {
    more.disabled = true;
    try {
      const only = { ...(kind && { kind }), ...(before && { before: String(before) }) };
      const { runs } = await json(`/v1/runs?${new URLSearchParams({ limit: String(PAGE), ...only })}`, { signal });
      for (const run of runs) list.append(item(run));
      before = runs.at(-1)?.created;
      more.hidden = runs.length < PAGE;
      note.textContent = list.children.length ? "" : none;
    } catch (error) {
      if (!signal.aborted) note.textContent = error.message;
    } finally {
      more.disabled = false;
    }
  }

  function item(run) {
    const box = choose?.(run);
    const moment = new Date(run.created * 1000).toISOString();
    const remove = el("button", {
      type: "button", class: "quiet small", "aria-label": `Remove ${run.query}`,
      on: { click: () => removed(run, remove, line, box), blur: () => asked(remove, run, false) },
    }, "Remove");
    remove.hidden = ["queued", "running"].includes(run.status);
    const line = el("li", { class: "card" },
      box ?? el("span"),
      el("a", { href: open(run.id) }, foreign(run.query, 160)),
      el("span", { class: `status ${run.status}` }, run.status),
      el("span", { class: "hint" }, run.kind, " · ", el("time", { datetime: moment }, when(run.created)),
        run.attempts > 1 ? ` · ${many(run.attempts, "attempt")}` : ""),
      remove);
    return line;
  }

  async function removed(run, button, line, box) {
    if (button.textContent === "Remove") return asked(button, run, true);
    button.disabled = true;
    try {
      await json(`/v1/runs/${encodeURIComponent(run.id)}`, { method: "DELETE" });
      if (box?.checked) box.click();
      line.remove();
      note.textContent = "The run was removed.";
    } catch (error) {
      note.textContent = error.message;
      button.disabled = false;
    }
    return undefined;
  }

  more.addEventListener("click", load);
  load();
  return el("div", { class: "stack" }, list, note, more);
}

/** Ask before removing a run, since this cannot be undone. */
function asked(button, run, really) {
  button.textContent = really ? "Really?" : "Remove";
  button.setAttribute("aria-label", `${really ? "Really remove" : "Remove"} ${run.query}`);
}
