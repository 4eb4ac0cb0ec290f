// Groups are told apart by their names; a colour and a shape help to find them again.

import { el } from "./dom.js";
import { percent } from "./format.js";

const STYLES = 8;

/**
 * The marks of the groups of an attribute: for each the number of its style.
 *
 * @param {string[]} groups In the order of the schema.
 * @returns {Map<string, number>}
 */
export const marks = (groups) => new Map(groups.map((group, number) => [group, number % STYLES]));

/** The marks of all attributes of a target, by attribute. */
export function allMarks(target) {
  return new Map(
    Object.entries(target).map(([attribute, shares]) => [attribute, marks(Object.keys(shares))]),
  );
}

/** The style of a group. */
export const styleOf = (all, attribute, group) => `g${all.get(attribute)?.get(group) ?? "none"}`;

/** A group's name beside its colour. */
export const named = (all, attribute, group) => el("span", { class: "group" },
  el("span", { class: `swatch ${styleOf(all, attribute, group)}`, "aria-hidden": "true" }), el("bdi", { title: group }, group));

/** The groups of a document: of each attribute their names on their colours, the largest first. */
export function documentMarks(all, groups) {
  return el("span", { class: "marks" }, [...all.keys()].map((attribute) => {
    const shares = Object.entries(groups?.[attribute] ?? {})
      .filter(([, share]) => share > 0)
      .sort(([, one], [, other]) => other - one);
    if (!shares.length) return el("span", { class: "mark gnone", title: attribute }, "unknown");
    return shares.slice(0, 2).map(([group, share]) =>
      el("span", { class: `mark ${styleOf(all, attribute, group)}`, title: `${attribute}: ${group}` },
        el("bdi", {}, group), share < 0.995 ? ` ${percent(share)}` : null));
  }));
}
