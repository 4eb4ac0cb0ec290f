// What the server offers: indexes, models, methods, prompts.

import { json } from "./api.js";
import { many } from "./format.js";

/**
 * Ask for all that the form offers.
 *
 * @returns {Promise<{indexes: Object[], models: Object[], methods: Object[], retrievers: Object[],
 *   attributors: string[], prompts: Object[]}>}
 */
export async function offered() {
  const [indexes, models, prompts] = await Promise.all(
    ["/v1/indexes", "/v1/models", "/v1/prompts"].map((path) => json(path)));
  return {
    indexes: indexes.indexes,
    models: models.models,
    methods: models.methods,
    retrievers: models.retrievers,
    attributors: models.attributors ?? [],
    prompts: prompts.prompts,
  };
}

/** A source in one line: its engine, its size and its attributes. */
export const aboutSource = (index) => index ? [
  index.engine,
  index.documents === null ? null : many(index.documents, "document"),
  Object.entries(groupsOf(index)).map(([name, groups]) => `${name} (${groups.length ? `${groups.length} groups` : "each value a group"})`).join(", "),
].filter(Boolean).join(" · ") : "";

/** Whether a name stands for many, such as `openai:*`. */
export const isPattern = (name) => /[*?[]/.test(name);

/** The groups of each attribute of an index. */
export const groupsOf = (index) => Object.fromEntries(
  Object.entries(index?.attributes ?? {}).map(([name, { groups }]) => [name, groups]));

/** Whether the schema of an index gives the population of all these groups. */
export const hasPopulation = (index, attributes) =>
  attributes.every((name) => index?.attributes[name]?.population);

/** The versions of a prompt that are offered. */
export const versionsOf = (prompts, id) => prompts.filter((prompt) => prompt.id === id);
