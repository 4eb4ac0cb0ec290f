// A finished request to take along: as a command, as a program, or as a link that fills the form.

import { address, json } from "./api.js";
import { el } from "./dom.js";
import { authorization } from "./key.js";

const SCHEMAS = { search: "SearchRequest", answer: "AnswerRequest", probe: "ProbeRequest" };
const OF_THE_PAGE = ["keep", "stream"]; // how this page asked, and not what for
const ASKED = /^#\/ask\/(search|answer|probe)\/(.+)$/;

/** A request without what it leaves at its default. */
async function shortened(kind, request) {
  const { components } = await json("/openapi.json");
  const { properties } = components.schemas[SCHEMAS[kind]];
  return Object.fromEntries(Object.entries(request).filter(([name, value]) =>
    value !== null && !OF_THE_PAGE.includes(name) && written(value) !== written(properties[name]?.default)));
}

/** As JSON, in which null is the same as nothing. */
const written = (value) => JSON.stringify(value, (_, it) => it ?? undefined);

function curlOf(kind, request) {
  const key = authorization().Authorization ? ` -H "Authorization: Bearer $FAIRQR_KEY"` : "";
  const body = JSON.stringify(request).replaceAll("'", String.raw`'\''`);
  return `curl -s ${address(`/v1/${kind}`)}${key} -H 'Content-Type: application/json' -d '${body}'`;
}

function pythonOf(kind, request) {
  const keyed = Boolean(authorization().Authorization);
  return [
    "import json",
    keyed ? "import os" : null,
    "from urllib.request import Request, urlopen",
    "",
    `request = ${literal(request)}`,
    'headers = {"Content-Type": "application/json"}',
    keyed ? 'headers["Authorization"] = f"Bearer {os.environ[\'FAIRQR_KEY\']}"' : null,
    `asked = Request("${address(`/v1/${kind}`)}", json.dumps(request).encode(), headers)`,
    "with urlopen(asked) as response:",
    "    result = json.load(response)",
    "print(json.dumps(result, indent=2))",
  ].filter((line) => line !== null).join("\n");
}

/** A value of JSON as Python writes it; its texts are the same. */
function literal(value) {
  if (Array.isArray(value)) return `[${value.map(literal).join(", ")}]`;
  if (value === null) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (typeof value !== "object") return JSON.stringify(value);
  return `{${Object.entries(value).map(([name, it]) => `${JSON.stringify(name)}: ${literal(it)}`).join(", ")}}`;
}

const linkOf = (kind, request) =>
  `${address("/")}#/ask/${kind}/${encodeURIComponent(JSON.stringify(request))}`;

/** The request in the hash of an address, or null. */
export function linked(hash) {
  const [, kind, text] = ASKED.exec(hash) ?? [];
  if (!kind) return null;
  try {
    const request = JSON.parse(decodeURIComponent(text));
    return typeof request === "object" && request ? { kind, request } : null;
  } catch {
    return null;
  }
}

const WAYS = [["curl", curlOf], ["Python", pythonOf], ["a link", linkOf]];

/** The buttons that copy a request; what they copied is shown. */
export function copying({ kind, request }) {
  const said = el("p", { class: "hint", role: "status" });
  const text = el("pre", { class: "copied", tabindex: "0", "aria-label": "What was copied", hidden: true });
  async function copy(name, write) {
    try {
      text.textContent = write(kind, await shortened(kind, request));
      text.hidden = false;
      await navigator.clipboard.writeText(text.textContent);
      said.textContent = `Copied as ${name}.`;
    } catch (error) {
      said.textContent = text.hidden ? error.message : "Your browser did not copy it; copy it from here.";
    }
  }
  return el("section", { class: "card", "aria-label": "Take it along" },
    el("h2", {}, "Take it along"),
    el("p", { class: "row" }, WAYS.map(([name, write]) => el("button", {
      type: "button", class: "quiet small", on: { click: () => copy(name, write) },
    }, `Copy as ${name}`))),
    el("p", { class: "hint" }, "The link holds the request, and no key. Whoever opens it runs it on this server."),
    said, text);
}
