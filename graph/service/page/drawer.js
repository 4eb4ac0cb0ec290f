// A drawer with a document: its text, and its groups.

import { json } from "./api.js";
import { el, fact, fill, foreign } from "./dom.js";
import { percent } from "./format.js";

/** Open the drawer; Escape closes it, and the focus goes back to where it was. */
export async function openDocument(id, title, corpus) {
  const closing = new AbortController();
  const inside = el("div", { class: "stack" }, el("p", { class: "hint", role: "status" }, "Loading …"));
  const drawer = el("dialog", { class: "drawer", "aria-labelledby": "drawer-title" },
    el("div", { class: "row spread" }, el("h2", { id: "drawer-title" }, foreign(title || id)),
      el("button", { type: "button", class: "quiet small", on: { click: () => drawer.close() } }, "Close")),
    inside);
  drawer.addEventListener("close", () => { closing.abort(); drawer.remove(); });
  document.body.append(drawer);
  drawer.showModal();
  try {
    const asked = new URLSearchParams({ corpus });
    fill(inside, parts(await json(`/v1/documents/${encodeURIComponent(id)}?${asked}`, { signal: closing.signal })));
  } catch (error) {
    if (!closing.signal.aborted) fill(inside, el("p", { role: "alert" }, error.message));
  }
}

function parts({ id, text, groups, link }) {
  return [
    el("dl", { class: "facts" }, fact("Id", foreign(id)),
      Object.entries(groups).map(([attribute, shares]) => fact(foreign(attribute), said(shares)))),
    /^https?:/.test(link ?? "") ? el("a", { href: link, rel: "noreferrer noopener", target: "_blank" }, foreign(link)) : null,
    text.split(/\n+/).filter(Boolean).map((passage) => el("p", {}, foreign(passage, Infinity))),
  ];
}

function said(shares) {
  const found = Object.entries(shares).filter(([, share]) => share > 0);
  if (!found.length) return "unknown";
  return found.map(([group, share], at) => [at ? ", " : null, foreign(group), share < 0.995 ? ` ${percent(share)}` : null]);
}
