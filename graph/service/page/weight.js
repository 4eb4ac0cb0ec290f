// A slider for the weight of fairness, which re-ranks what the words of the query find.

import { json } from "./api.js";
import { el, foreign } from "./dom.js";
import { figure } from "./format.js";
import { front } from "./front.js";
import { headed } from "./glossary.js";

const PAUSE = 150; // ms without a move before we ask
const SPREAD = [5, 10]; // the first results that count beside the whole list
const LEAST_PRICE = 0.0005; // a lower price of a point would read 0.000

const POSITIONS = 40; // of the slider, after the first
const LONG = 20; // ranks; the front of a longer list takes longer,
const FEW = 8; // so only so many positions are drawn

/** Whether another weight can be asked for: only the fair step reads it. */
export const hasWeight = ({ kind, request }) =>
  kind === "search" && request?.method === "fairqr" && ["fair", null, undefined].includes(request.final_step);

/** What a weight gives. */
const given = ({ relevance, fairness }) => `Relevance ${figure(relevance, 2)}, fairness ${figure(fairness, 2)}. `;

/** What this weight gives, and what one more point costs for the group for which it costs most. */
function traded({ objective }) {
  const prices = Object.values(objective?.price ?? {}).flatMap(Object.entries);
  if (!prices.length) return [];
  const [group, cost] = prices.reduce((one, other) => other[1] > one[1] ? other : one);
  return [
    given(objective),
    ...cost >= LEAST_PRICE ? ["One more point for ", foreign(group), ` would cost ${figure(cost, 3)} of relevance. `] : [],
  ];
}

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
  const most = Math.max(4, own);
  const step = most / POSITIONS;
  const drawing = front();
  const ownSpread = request.spread ?? [];
  const cutoffs = ownSpread.length ? ownSpread : SPREAD;
  const said = el("p", { class: "hint", role: "status" });
  const shown = el("output", { class: "number" }, String(own));
  const slider = el("input", {
    type: "range", min: 0, max: most, step, value: own, "aria-label": "Weight of fairness",
    on: { input: moved },
  });
  const spread = el("input", { type: "checkbox", checked: ownSpread.length > 0, on: { change: respread } });
  const back = el("button", { type: "button", class: "quiet small", disabled: true, on: { click: restore } }, "Back to the run");
  let asking = new AbortController();
  let timer;

  function restart() {
    clearTimeout(timer);
    asking.abort();
    asking = new AbortController();
    shown.textContent = slider.value;
    const point = drawing.at(Number(slider.value));
    drawing.mark(point);
    return point;
  }

  function moved() {
    const point = restart();
    if (point) said.textContent = given(point);
    back.disabled = false;
    timer = setTimeout(ask, PAUSE);
  }

  function respread() {
    moved();
    redraw();
  }

  function restore() {
    slider.value = own;
    spread.checked = ownSpread.length > 0;
    restart();
    back.disabled = true;
    said.textContent = "";
    redraw();
    slider.focus();
    changed(null);
  }

  const search = (options, until) => json("/v1/search", {
    method: "POST", body: { ...request, keep: false, ask: "never", ...options }, signal: until,
  });

  const chosenSpread = () => (spread.checked ? cutoffs : []);

  async function ask() {
    const now = asking.signal;
    try {
      const asked = { fairness_weight: Number(slider.value), spread: chosenSpread() };
      const result = await search(asked, AbortSignal.any([signal, now]));
      changed(result);
      drawing.mark(result.objective);
      said.replaceChildren("Re-ranked without asking a model. ", ...traded(result),
        "The cost and the rounds below are the run's.");
    } catch (error) {
      if (!signal.aborted && !now.aborted) said.textContent = error.message;
    }
  }

  let draws = 0;

  /** Draw what each position gives, all from one search. */
  async function drawFront() {
    draws += 1;
    const draw = draws;
    const count = request.k > LONG ? FEW : POSITIONS;
    const positions = Array.from({ length: count + 1 }, (_, number) => Number((most * number / count).toFixed(6)));
    const { front: points } = await search({ front: positions, spread: chosenSpread() }, signal);
    if (!points.length || draw !== draws) return; // a later one is under way
    drawing.show(points);
    drawing.mark(drawing.at(Number(slider.value)));
  }

  const redraw = () => drawFront().catch(() => {}); // then the slider works without the drawing
  redraw();
  signal.addEventListener("abort", restart);
  return el("section", { class: "card weight", "aria-label": "Weight of fairness" },
    headed(el("h2", {}, "What if fairness counted more, or less?"), "Exposure"),
    el("div", { class: "row" }, el("span", { class: "label" }, "relevance only"), slider,
      el("span", { class: "label" }, "more fairness"), shown, back),
    drawing.element,
    el("label", { class: "check" }, spread, `Fair in the first ${cutoffs.join(" and ")}, too`),
    refined ? el("p", { class: "hint" }, "Documents that only the model's queries found are not in the slider's lists.")
      : null, said);
}
