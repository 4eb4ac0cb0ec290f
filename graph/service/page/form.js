// The form.

import { byId, el, fill, foreign, option } from "./dom.js";
import { examplesOf } from "./example.js";
import { aboutSource, groupsOf, hasPopulation, isPattern, versionsOf } from "./options.js";
import { targetChoice } from "./target.js";

const OTHER = "…";
/** The names of models that send nothing to a server. */
const IN_PROCESS = /^feedback$|^(local|recorded|causal|seq2seq):/;
/** The names of models that only refine queries: they write no answers, and compare nothing. */
const ONLY_REFINES = /^feedback$|^recorded:/;
const LABELS = {
  search: { query: "Query", k: "Results (k)", hint: "What are you looking for?" },
  probe: { query: "Query", k: "Results (k)", hint: "Which query should the model rank?" },
  answer: { query: "Question", k: "Documents to sample from (k)", hint: "What do you want to know?" },
};
const WIDE = window.matchMedia("(min-width: 56rem)");

/**
 * Wire the form.
 *
 * @param {(kind: string, request: Object) => Promise} run Starts a run.
 * @returns {{offer: Function, set: Function}}
 */
export function setUpForm(run) {
  const form = byId("ask");
  const target = targetChoice(byId("target"), line);
  let options = null;
  let methodChosen = false;

  byId("settings").open = WIDE.matches;
  WIDE.addEventListener("change", () => { byId("settings").open = WIDE.matches; });
  for (const radio of form.elements.kind) radio.addEventListener("change", kindChanged);
  byId("corpus").addEventListener("change", () => { indexChanged(); line(); });
  byId("method").addEventListener("change", () => { methodChosen = true; methodChanged(); line(); });
  byId("retriever").addEventListener("change", retrieverChanged);
  byId("model").addEventListener("change", modelChanged);
  byId("probe-attribute").addEventListener("change", probedChanged);
  byId("protected").addEventListener("change", line);
  form.addEventListener("submit", async (event) => {
    event.preventDefault();
    problem("");
    byId("go").disabled = true;
    try {
      await run(kind(), request());
    } catch (error) {
      problem(error.message);
    } finally {
      byId("go").disabled = false;
    }
  });

  const kind = () => form.elements.kind.value;
  const chosen = () => [...byId("attributes").querySelectorAll("input:checked")].map((it) => it.value);
  const index = () => options?.indexes.find(({ name }) => name === byId("corpus").value);

  function problem(sentence) {
    byId("form-problem").hidden = !sentence;
    byId("form-problem").textContent = sentence;
  }

  function kindChanged() {
    const labels = LABELS[kind()];
    problem("");
    byId("query-label").textContent = labels.query;
    byId("query").placeholder = labels.hint;
    byId("k-label").textContent = labels.k;
    byId("answer-fields").hidden = kind() !== "answer";
    byId("probe-fields").hidden = kind() !== "probe";
    for (const id of ["attributes", "target"]) byId(id).hidden = kind() === "probe";
    if (options && !methodChosen) {
      byId("method").value = usualMethod(kind());
      methodChanged();
    }
    modelsChanged();
    promptsChanged();
    examples();
    line();
  }

  /** Offer the models that can do what is asked. */
  function modelsChanged() {
    const models = [...byId("model").options];
    for (const model of models) model.disabled = kind() !== "search" && ONLY_REFINES.test(model.value);
    const usable = models.find((model) => !model.disabled);
    if (usable && byId("model").selectedOptions[0]?.disabled) {
      byId("model").value = usable.value;
      modelChanged();
    }
  }

  /** Offer answers and probes where some model can do them. */
  function offerKinds(models) {
    const isOffered = models.some((name) => !ONLY_REFINES.test(name));
    for (const radio of form.elements.kind) {
      radio.closest("label").hidden = radio.value !== "search" && !isOffered;
    }
  }

  function examples() {
    const queries = examplesOf(options, kind());
    fill(byId("examples"), queries.length
      ? ["Try ", queries.map((text) => el("button", {
        type: "button", class: "chip link",
        on: { click: () => { byId("query").value = text; form.requestSubmit(); } },
      }, text))] : null);
  }

  function indexChanged() {
    const groups = groupsOf(index());
    byId("corpus-about").textContent = aboutSource(index());
    const listed = Object.keys(groups).filter((name) => groups[name].length);
    fill(byId("probe-attribute"), listed.map((name) => option(name)));
    probedChanged();
    fill(byId("choices"), Object.keys(groups).map((name, at) => el("label", { class: "check" },
      el("input", {
        type: "checkbox", name: "attribute", value: name, form: "ask", checked: at === 0,
        on: { change: attributesChanged },
      }), foreign(name))));
    attributesChanged();
  }

  function probedChanged() {
    const groups = groupsOf(index())[byId("probe-attribute").value] ?? [];
    fill(byId("protected"), groups.map((name) => option(name)));
    line();
  }

  function attributesChanged() {
    const groups = groupsOf(index());
    const measured = chosen().length ? chosen() : Object.keys(groups);
    const listed = measured.filter((name) => groups[name].length);
    target.offer(Object.fromEntries(listed.map((name) => [name, groups[name]])),
      hasPopulation(index(), measured));
    line();
  }

  const usualMethod = (of) => options.methods.find((it) => it.default_for.includes(of))?.name;
  const method = () => options?.methods.find(({ name }) => name === byId("method").value);

  function methodChanged() {
    byId("method-about").textContent = method()?.about ?? "";
    promptsChanged();
  }

  function retrieverChanged() {
    byId("retriever-about").textContent =
      options?.retrievers.find(({ name }) => name === byId("retriever").value)?.about ?? "";
  }

  function modelChanged() {
    byId("other-model-field").hidden = byId("model").value !== OTHER;
    byId("other-model").required = byId("model").value === OTHER;
    byId("model-about").hidden = IN_PROCESS.test(byId("model").value);
    line();
  }

  function promptId() {
    if (kind() !== "search") return kind() === "answer" ? "answer" : null;
    if (["listwise", "pairwise"].includes(byId("method").value)) return byId("method").value;
    return method()?.refines ? "refine" : null;
  }

  function promptsChanged() {
    const id = promptId();
    byId("prompt-field").hidden = !id;
    const versions = versionsOf(options?.prompts ?? [], id);
    const preset = versions.find((prompt) => prompt.default);
    fill(byId("prompt"), option("", preset ? `${id} ${preset.version}, the default` : "the default"),
      versions.filter((prompt) => prompt !== preset)
        .map(({ version }) => option(version, `${id} ${version}`)));
  }

  function line() {
    const whom = kind() === "probe" ? [byId("probe-attribute").value, byId("protected").value]
      : [chosen().join(", ") || "all attributes", target.line()];
    byId("settings-line").textContent =
      [byId("corpus").value, ...whom, byId("method").value].filter(Boolean).join(" · ");
  }

  function request() {
    const model = byId("model").value === OTHER ? byId("other-model").value.trim() : byId("model").value;
    const asked = {
      [kind() === "answer" ? "question" : "query"]: byId("query").value.trim(),
      corpus: byId("corpus").value,
      method: byId("method").value,
      retriever: byId("retriever").value,
      model: model || undefined,
      prompts: byId("prompt").value ? { [promptId()]: byId("prompt").value } : undefined,
      k: Number(byId("k").value),
    };
    if (kind() === "probe") {
      return {
        ...asked,
        attribute: byId("probe-attribute").value,
        protected: byId("protected").value,
        kinds: byId("kinds").value.split(","),
        pairs: Number(byId("pairs").value),
      };
    }
    const fair = { ...asked, attributes: chosen(), target: target.value() };
    if (kind() === "search") return fair;
    return {
      ...fair,
      documents: Number(byId("documents").value),
      samples: Number(byId("samples").value),
      alpha: Number(byId("alpha").value),
      attributor: byId("attributor").value || undefined,
      stream: true,
    };
  }

  return {
    offer(found) {
      const first = !options;
      options = found;
      if (!first) return;
      fill(byId("corpus"), found.indexes.map(({ name }) => option(name)));
      fill(byId("method"), found.methods.map(({ name }) => option(name)));
      fill(byId("retriever"), found.retrievers.map((it) => option(it.name, it.name, it.default)));
      const names = found.models.map(({ name }) => name);
      fill(byId("model"), names.filter((name) => !isPattern(name)).map((name) => option(name)),
        names.some(isPattern) ? option(OTHER, "another one …") : null);
      offerKinds(names);
      const preset = found.models.find((model) => model.default);
      if (preset) byId("model").value = preset.name;
      byId("other-model").placeholder = names.filter(isPattern).join(", ");
      fill(byId("attributor"), found.attributors.map((name) => option(name)), option("none", "nobody"));
      indexChanged();
      kindChanged();
      retrieverChanged();
      modelChanged();
    },
    /** Fill in the request of a run. */
    set({ kind: what, request: asked }) {
      for (const radio of form.elements.kind) radio.checked = radio.value === what;
      methodChosen = Boolean(asked.method) && asked.method !== usualMethod(what);
      byId("query").value = asked.query ?? asked.question ?? "";
      if (asked.corpus) byId("corpus").value = asked.corpus;
      indexChanged();
      const attributes = [asked.attributes ?? []].flat();
      for (const box of byId("attributes").querySelectorAll("input")) {
        box.checked = attributes.length === 0 || attributes.includes(box.value);
      }
      attributesChanged();
      target.set(parsed(asked.target));
      for (const name of ["method", "retriever", "k", "documents", "samples", "alpha", "pairs"]) {
        if (asked[name] !== undefined && asked[name] !== null) byId(name).value = asked[name];
      }
      if (what === "probe") {
        byId("probe-attribute").value = asked.attribute;
        probedChanged();
        byId("protected").value = asked.protected;
        byId("kinds").value = asked.kinds.join(",");
      }
      if (asked.model) byId("model").value = asked.model;
      if (asked.model && byId("model").value !== asked.model) {
        byId("model").value = OTHER;
        byId("other-model").value = asked.model;
      }
      methodChanged();
      retrieverChanged();
      kindChanged();
      byId("prompt").value = asked.prompts?.[promptId()] ?? "";
      modelChanged();
    },
  };
}

/** A target as its parts and shares, however a request wrote it. */
export function parsed(target) {
  if (target === null || target === undefined) return {};
  if (typeof target === "object" && !Array.isArray(target)) return target;
  const found = { shares: {}, parts: {} };
  for (const text of [target].flat()) {
    const at = text.lastIndexOf("=");
    const weights = Object.fromEntries(text.slice(at + 1).split(",").map((item) => {
      const colon = item.lastIndexOf(":");
      return [item.slice(0, colon).trim(), Number(item.slice(colon + 1))];
    }));
    if (at < 0) found.parts = weights;
    else found.shares[text.slice(0, at).trim()] = weights;
  }
  return found;
}
