// The divergence from round to round, drawn by Chart.js, and the same as a table.

import { el, fill } from "./dom.js";
import { nats } from "./format.js";

const STYLES = ["--accent", "--second"];
const dark = window.matchMedia("(prefers-color-scheme: dark)");
const still = window.matchMedia("(prefers-reduced-motion: reduce)");

/**
 * A curve that grows with a run.
 *
 * @returns {{element: HTMLElement, show: Function, close: Function}} `show` takes series of points,
 *   each with a label and a value in nats; `close` lets go of the drawing.
 */
export function curve() {
  const canvas = el("canvas", { role: "img" });
  const table = el("div");
  const element = el("figure", { class: "curve" },
    el("figcaption", {}, "Divergence from the target, in nats: 0 is on target"),
    el("div", { class: "canvas" }, canvas),
    el("details", { class: "quiet-details" }, el("summary", {}, "As a table"), table));
  let chart = null;
  let shown = [];

  const draw = () => {
    if (!window.Chart) return;
    if (!chart) chart = new window.Chart(canvas, configuration());
    const longest = shown.reduce((all, { points }) => (points.length > all.length ? points : all), []);
    const labels = longest.map(({ label }) => label);
    chart.data.labels = labels;
    chart.data.datasets = shown.map((series, number) => dataset(series, number, labels));
    colour(chart, shown.length > 1);
    chart.update();
  };
  dark.addEventListener("change", draw);
  return {
    element,
    show(series) {
      shown = series;
      canvas.setAttribute("aria-label", `Divergence by round. ${series.map(said).join(" ")}`);
      fill(table, series.map((one) => tableOf(one, series.length > 1)));
      draw();
    },
    close() {
      dark.removeEventListener("change", draw);
      chart?.destroy();
    },
  };
}

/** The points of a search: each round that was measured, and then what was returned. */
export function pointsOf(rounds, search) {
  const points = rounds.filter((it) => it.measured).map((it) => ({
    label: it.index ? `round ${it.index}` : "as asked",
    value: it.divergence,
  }));
  if (search) points.push({ label: "returned", value: search.divergence });
  return points;
}

function configuration() {
  return {
    type: "line",
    data: { labels: [], datasets: [] },
    options: {
      animation: still.matches ? false : { duration: 250 },
      responsive: true,
      maintainAspectRatio: false,
      layout: { padding: { top: 8, right: 12 } },
      scales: {
        x: { grid: { display: false } },
        y: { beginAtZero: true, grace: "8%", ticks: { maxTicksLimit: 5 } },
      },
      plugins: {
        legend: { position: "bottom", labels: { usePointStyle: true, boxHeight: 7 } },
        tooltip: { callbacks: { label: ({ raw }) => `${nats(raw)} nats` } },
      },
    },
  };
}

/** Each value stands above its own label: a run of fewer rounds has gaps, not a nearer end. */
function dataset({ name, points }, number, labels) {
  const values = new Map(points.map(({ label, value }) => [label, value]));
  const last = labels.length - 1;
  return {
    label: name,
    data: labels.map((label) => values.get(label) ?? null),
    borderWidth: 2,
    borderDash: number ? [6, 4] : [],
    pointStyle: number ? "rectRot" : "circle",
    pointRadius: labels.map((label, at) => (at === last ? 5 : 4)),
    tension: 0,
    spanGaps: true,
  };
}

function colour(chart, legend) {
  const style = getComputedStyle(document.documentElement);
  const value = (name) => style.getPropertyValue(name).trim();
  chart.data.datasets.forEach((one, number) => {
    one.borderColor = value(STYLES[number % STYLES.length]);
    one.backgroundColor = one.borderColor;
  });
  for (const axis of Object.values(chart.options.scales)) {
    axis.ticks = { ...axis.ticks, color: value("--muted") };
    axis.border = { color: value("--line") };
    axis.grid = { ...axis.grid, color: value("--line") };
  }
  chart.options.plugins.legend.display = legend;
  chart.options.plugins.legend.labels.color = value("--ink");
}

function said({ name, points }) {
  return `${name}: ${points.map(({ label, value }) => `${label} ${nats(value)}`).join(", ")}.`;
}

function tableOf({ name, points }, named) {
  return el("table", { class: "plain" },
    el("caption", { class: named ? null : "hidden" }, name),
    el("thead", {}, el("tr", {}, el("th", { scope: "col" }, "Round"),
      el("th", { scope: "col", class: "number" }, "Divergence"))),
    el("tbody", {}, points.map(({ label, value }) => el("tr", {},
      el("th", { scope: "row" }, label), el("td", { class: "number" }, nats(value))))));
}
