// The page. The hash of its address says which part is shown, so that each part has a link.

import { json } from "./api.js";
import { showAudits } from "./audits.js";
import { showComparison } from "./compare.js";
import { linked } from "./copying.js";
import { byId } from "./dom.js";
import { showExample } from "./example.js";
import { setUpForm } from "./form.js";
import { explainTerms } from "./glossary.js";
import { offerKey, setUpKey } from "./key.js";
import { offered } from "./options.js";
import { showRuns } from "./past.js";
import { showRun } from "./run.js";

const ID = "[0-9A-Za-z_-]{1,64}";
const PAGES = ["search", "audits", "runs", "compare"];
const linkOf = (id) => `#/run/${id}`;
let shown = null;
let options = null; // what the server offers, once we know
let repeated = null; // the request of an audit to change and run again
let opened = null; // the run that is shown, by which the form is filled

const begin = (kind, request) => json("/v1/runs", { method: "POST", body: { kind, request } });
const form = setUpForm(async (kind, request) => { location.hash = linkOf((await begin(kind, request)).id); });

/** Fill the form with what a link holds. Nothing is asked before a click, since anybody may have made the link. */
function fill(link) {
  const { corpus } = link.request;
  if (corpus && ![...byId("corpus").options].some(({ value }) => value === corpus)) {
    say(`This service has no index '${corpus}'.`);
    return;
  }
  try {
    again(link);
    say("The form is filled by a link; nothing was asked yet.");
  } catch {
    say("The form does not know what this link asks for.");
  }
}

function say(problem) {
  byId("form-problem").textContent = problem;
  byId("form-problem").hidden = false;
}

function show(page) {
  for (const name of PAGES) byId(`${name}-page`).hidden = name !== page;
  mark(page);
  delete document.body.dataset.runKind;
}

/** An audit is shown alone, since the form beside a run is for searches. */
function known(run) {
  document.body.dataset.runKind = run.kind;
  if (run.kind === "audit") {
    mark("audits");
    return;
  }
  opened = run;
  if (options) form.set(run);
}

function mark(page) {
  for (const link of document.querySelectorAll("nav a")) {
    if (link.dataset.page === page) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
}

function route() {
  shown?.close();
  shown = null;
  opened = null;
  const run = new RegExp(`^#/run/(${ID})$`).exec(location.hash);
  const link = linked(location.hash);
  const two = new RegExp(`^#/compare/(${ID})/(${ID})$`).exec(location.hash);
  for (const id of ["welcome", "how"]) byId(id).hidden = Boolean(run);
  document.title = "fairqr";
  if (run) {
    show("search");
    shown = showRun(run[1], { again, known });
  } else if (two) {
    show("compare");
    shown = showComparison(byId("compare-page"), [two[1], two[2]], { open: linkOf });
    byId("compare-page").focus();
  } else if (location.hash === "#/audits") {
    show("audits");
    shown = showAudits(byId("audits-page"), { open: linkOf, repeated });
    repeated = null;
    byId("audits-page").focus();
  } else if (location.hash === "#/runs") {
    show("runs");
    shown = showRuns(byId("runs-page"), {
      open: linkOf,
      compare: (one, other) => { location.hash = `#/compare/${one}/${other}`; },
    });
    byId("runs-page").focus();
  } else {
    show("search");
    if (link && options) fill(link);
    else if (options) shown = showExample(byId("example"), options);
    // Not on a phone, where the keyboard would cover the page.
    if (window.matchMedia("(min-width: 56rem)").matches) byId("query").focus();
  }
}

function again(run) {
  if (run.kind === "audit") {
    repeated = run.request;
    location.hash = "#/audits";
    return;
  }
  form.set(run);
  byId("query").focus();
  window.scrollTo({ top: 0 });
}

async function offer() {
  try {
    const first = !options;
    options = await offered();
    form.offer(options);
    if (first && opened) form.set(opened);
    const { key } = await json("/v1/me");
    if (key) offerKey();
    const link = linked(location.hash);
    if (first && link) fill(link);
    else if (first && !shown) shown = showExample(byId("example"), options);
  } catch (error) {
    say(error.message);
  }
}

document.querySelector(".skip").addEventListener("click", (event) => {
  event.preventDefault(); // the hash says which page is shown
  [...document.querySelectorAll("main")].find((main) => main.checkVisibility()).focus();
});
explainTerms();
setUpKey(() => { offer(); route(); });
window.addEventListener("hashchange", route);
offer();
route();
