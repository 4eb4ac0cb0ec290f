// Groups are told apart by colour, by shape and by letters, so that no one of these is needed.

import { el, hidden } from "./dom.js";
import { percent } from "./format.js";

const STYLES = 8;

/**
 * The marks of the groups of an attribute: for each its letters and the number of its style.
 *
 * @param {string[]} groups In the order of the schema.
 * @returns {Map<string, {letters: string, style: number}>}
 */
export function marks(groups) {
  const letters = new Map();
  for (let length = 1; length <= 3; length += 1) {
    for (const group of groups) {
      const own = letters.get(group);
      const shared = groups.some((other) => other !== group && letters.get(other) === own);
      if (!own || shared) letters.set(group, short(group, length));
    }
  }
  const found = new Map();
  groups.forEach((group, number) => {
    found.set(group, { letters: letters.get(group), style: number % STYLES });
  });
  return found;
}

function short(group, length) {
  const parts = group.split(/[\s_-]+/).filter(Boolean);
  const text = parts.length > 1
    ? parts.slice(0, 3).map((part) => Array.from(part)[0].toUpperCase()).join("")
    : Array.from(group).slice(0, length).join("");
  return text.slice(0, 1).toUpperCase() + text.slice(1);
}

/** The marks of all attributes of a target, by attribute. */
export function allMarks(target) {
  return new Map(
    Object.entries(target).map(([attribute, shares]) => [attribute, marks(Object.keys(shares))]),
  );
}

/** The mark of a group; its name is for screen readers where it does not stand beside it. */
export function mark(all, attribute, group, { named = false, share = 1 } = {}) {
  const { letters, style } = all.get(attribute)?.get(group) ?? { letters: "?", style: "none" };
  const text = share < 0.995 ? `${group} ${percent(share)}` : group;
  return el("span", { class: `mark g${style}`, title: `${attribute}: ${text}` },
    el("span", { "aria-hidden": "true" }, letters), named ? null : hidden(text));
}

/** The marks of a document: of each attribute its groups, the largest first. */
export function documentMarks(all, groups) {
  return el("span", { class: "marks" }, [...all.keys()].map((attribute) => {
    const shares = Object.entries(groups?.[attribute] ?? {})
      .filter(([, share]) => share > 0)
      .sort(([, one], [, other]) => other - one);
    if (!shares.length) {
      return el("span", { class: "mark gnone", title: `${attribute}: unknown` },
        el("span", { "aria-hidden": "true" }, "?"), hidden("unknown"));
    }
    return shares.slice(0, 2).map(([group, share]) => mark(all, attribute, group, { share }));
  }));
}
