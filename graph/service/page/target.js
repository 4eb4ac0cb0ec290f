// The target: a preset, or the shares of the groups, which sum to 100 %.

import { el, fill } from "./dom.js";
import { explained } from "./glossary.js";
import { marks, named } from "./groups.js";

const PRESETS = [
  ["default", "Default", "halfway between the groups' shares in the results and in the population, if it is known"],
  ["uniform", "Equal", "the same for every group"],
  ["population", "Population", "the groups' shares in the population, as the source gives it"],
  ["own", "Own", "your own shares; they sum to 100 %"],
];

/**
 * The choice of a target in a fieldset.
 *
 * @returns {{offer: Function, value: Function, set: Function, line: Function}} `offer` takes the
 *   groups of each measured attribute, and whether their population is known; `value` is for the request.
 */
export function targetChoice(fieldset, changed) {
  const about = el("p", { class: "hint", id: "target-about" });
  const sliders = el("div", { class: "sliders" });
  const shares = new Map(); // attribute → Map(group → whole percent)
  let offered = {};
  let preset = "default";

  const radios = PRESETS.map(([value, label]) => el("input", {
    type: "radio", name: "target", value, form: "ask", checked: value === preset, "aria-describedby": "target-about",
    on: { change: () => choose(value) },
  }));
  fieldset.append(el("div", { class: "segments" }, radios.map((radio, at) =>
    el("label", {}, radio, el("span", {}, PRESETS[at][1])))),
    explained(about, "Target", "Population"), sliders);

  function choose(value) {
    preset = value;
    for (const radio of radios) radio.checked = radio.value === value;
    about.textContent = PRESETS.find(([name]) => name === value)[2];
    draw();
    changed();
  }

  function draw() {
    fill(sliders, preset !== "own" ? null : Object.entries(offered).map(([attribute, groups]) => {
      if (!shares.has(attribute)) shares.set(attribute, even(groups));
      return group(attribute, groups, shares.get(attribute));
    }));
  }

  function group(attribute, groups, values) {
    const all = new Map([[attribute, marks(groups)]]);
    const inputs = new Map();
    const outputs = new Map();
    const show = () => {
      for (const [name, value] of values) {
        inputs.get(name).value = value;
        inputs.get(name).setAttribute("aria-valuetext", `${value} percent`);
        outputs.get(name).textContent = `${value} %`;
      }
      changed();
    };
    const rows = groups.map((name) => {
      outputs.set(name, el("output", { class: "number" }));
      inputs.set(name, el("input", {
        type: "range", min: 0, max: 100, step: 1, form: "ask", "aria-label": `Share of ${name}, ${attribute}`,
        on: { input: (event) => { rebalance(values, name, Number(event.target.value)); show(); } },
      }));
      return el("div", { class: "slider" },
        named(all, attribute, name), inputs.get(name), outputs.get(name));
    });
    show();
    return el("fieldset", { class: "shares" }, el("legend", {}, `Shares of ${attribute}`), rows);
  }

  about.textContent = PRESETS[0][2];
  return {
    offer(attributes, population) {
      offered = attributes;
      for (const radio of radios) {
        radio.disabled = !population && radio.value === "population";
        if (radio.disabled && radio.checked) choose("uniform");
      }
      for (const [attribute, values] of shares) {
        const same = (names) => [...(names ?? [])].sort().join("\n");
        if (same(values.keys()) !== same(attributes[attribute])) shares.delete(attribute);
      }
      draw();
    },
    value() {
      if (preset === "default") return undefined;
      if (preset !== "own") return `${preset}:1`;
      return { shares: Object.fromEntries(Object.keys(offered).map((attribute) =>
        [attribute, Object.fromEntries([...shares.get(attribute)].map(([name, it]) => [name, it / 100]))])) };
    },
    set(target) {
      const given = Object.entries(target?.shares ?? {});
      for (const [attribute, of] of given) shares.set(attribute, wholePercents(of));
      const named = Object.keys(target?.parts ?? {});
      choose(given.length ? "own" : named.length === 1 && ["uniform", "population"].includes(named[0])
        ? named[0] : "default");
    },
    line: () => `target ${PRESETS.find(([name]) => name === preset)[1].toLowerCase()}`,
  };
}

const even = (groups) => wholePercents(Object.fromEntries(groups.map((name) => [name, 1 / groups.length])));

/** Shares as whole percents that sum to 100: the largest rests are rounded up. */
export function wholePercents(shares) {
  const exact = Object.entries(shares).map(([name, share]) => [name, share * 100]);
  const found = new Map(exact.map(([name, it]) => [name, Math.floor(it + 1e-9)]));
  let left = 100 - [...found.values()].reduce((sum, it) => sum + it, 0);
  exact.sort(([, one], [, other]) => (other % 1) - (one % 1));
  for (const [name] of exact) if (left-- > 0) found.set(name, found.get(name) + 1);
  return found;
}

/** Set one share, and let the others keep their proportions; they sum to 100 as before. */
export function rebalance(values, name, value) {
  const others = [...values.keys()].filter((other) => other !== name);
  const given = others.length ? Math.min(Math.max(Math.round(value), 0), 100) : 100;
  const sum = others.reduce((all, other) => all + values.get(other), 0);
  const parts = Object.fromEntries(others.map((other) =>
    [other, ((sum ? values.get(other) / sum : 1 / others.length) * (100 - given)) / 100]));
  const whole = wholePercents({ ...parts, [name]: given / 100 });
  for (const [group, it] of whole) values.set(group, it);
}
