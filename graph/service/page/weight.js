// A slider for the weight of fairness, which re-ranks what the words of the query find.

import { json } from "./api.js";
import { el } from "./dom.js";
import { headed } from "./glossary.js";

const PAUSE = 150; // ms without a move before we ask

/** Whether another weight can be asked for: only the fair step reads it. */
export const hasWeight = ({ kind, request }) =>
  kind === "search" && request?.method === "fairqr" && ["fair", null, undefined].includes(request.final_step);

/**
 * The slider. It asks no model.
 *
 * @param {Object} request Of the run.
 * @param {boolean} refined Whether a model's words led to the list.
 * @param {(result: ?Object) => void} changed Is given each new result; null is the run's own.
 * @param {AbortSignal} signal Ends it.
 */
export function weightSlider(request, refined, changed, signal) {
  const own = request.fairness_weight ?? 1;
  const said = el("p", { class: "hint", role: "status" });
  const shown = el("output", { class: "number" }, String(own));
  const slider = el("input", {
    type: "range", min: 0, max: Math.max(4, own), step: 0.1, value: own, "aria-label": "Weight of fairness",
    on: { input: moved },
  });
  const back = el("button", { type: "button", class: "quiet small", disabled: true, on: { click: restore } }, "Back to the run");
  let asking = new AbortController();
  let timer;

  function restart() {
    clearTimeout(timer);
    asking.abort();
    asking = new AbortController();
    shown.textContent = slider.value;
  }

  function moved() {
    restart();
    back.disabled = false;
    timer = setTimeout(ask, PAUSE);
  }

  function restore() {
    slider.value = own;
    restart();
    back.disabled = true;
    said.textContent = "";
    slider.focus();
    changed(null);
  }

  async function ask() {
    const now = asking.signal;
    try {
      changed(await json("/v1/search", {
        method: "POST",
        body: { ...request, keep: false, ask: "never", fairness_weight: Number(slider.value) },
        signal: AbortSignal.any([signal, now]),
      }));
      said.textContent = "Re-ranked without asking a model. The cost and the rounds below are the run's.";
    } catch (error) {
      if (!signal.aborted && !now.aborted) said.textContent = error.message;
    }
  }

  signal.addEventListener("abort", restart);
  return el("section", { class: "card weight", "aria-label": "Weight of fairness" },
    headed(el("h2", {}, "What if fairness counted more, or less?"), "Exposure"),
    el("div", { class: "row" }, el("span", { class: "label" }, "relevance only"), slider,
      el("span", { class: "label" }, "more fairness"), shown, back),
    refined ? el("p", { class: "hint" }, "Documents that only the model's queries found are not in the slider's lists.")
      : null, said);
}
