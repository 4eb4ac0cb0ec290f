// Numbers, times and names, as people read them.

const percents = new Intl.NumberFormat("en", { style: "percent", maximumFractionDigits: 1 });
const counts = new Intl.NumberFormat("en");
const moments = new Intl.DateTimeFormat(undefined, { dateStyle: "medium", timeStyle: "short" });

/** A share in percent, or a dash. */
export const percent = (share) => (isNumber(share) ? percents.format(share) : "–");

/** A share in whole percents. */
export const rounded = (share) => `${Math.round(share * 100)}%`;

/** A divergence in nats, or a dash if it is undefined. */
export function nats(value) {
  if (!isNumber(value)) return "–";
  return value > 0 && value < 0.0005 ? "<0.001" : Math.max(value, 0).toFixed(3);
}

/** A figure with this many digits, or a dash. */
export const figure = (value, digits = 3) => (isNumber(value) ? value.toFixed(digits) : "–");

/** A whole number. */
export const whole = (value) => (isNumber(value) ? counts.format(value) : "–");

/** A number with its noun. */
export const many = (number, one, more = `${one}s`) =>
  `${whole(number)} ${number === 1 ? one : more}`;

/** Milliseconds as seconds. */
export const seconds = (milliseconds) =>
  isNumber(milliseconds) ? `${(milliseconds / 1000).toFixed(2)} s` : "–";

/** A moment in seconds since the epoch. */
export const when = (moment) => (isNumber(moment) ? moments.format(moment * 1000) : "–");

/** A status such as `parse_error` in words. */
export const words = (status) => String(status).replaceAll("_", " ");

/** How the loop ended, by its reason. */
export const STOPPED = {
  converged: "the exposure is close enough to the target",
  little_to_gain: "another round was expected to gain too little",
  no_hits: "no document matches the query",
  no_improvement: "nothing more was gained",
  no_new_words: "no new word came",
  max_iterations: "no further round was allowed",
  budget: "the budget was spent",
  model_failed: "the model failed",
  not_refining: "no model was to be asked for words",
};

/** Why a refiner has no words, without a failure. */
export const NO_WORDS = {
  empty: "no usable words",
  repeated: "no new words",
  unsupported: "nothing to learn words from",
};

/** What happens after each step. */
export const UNDER_WAY = {
  queued: "Waiting for its turn",
  prepare: "Searching the index",
  audit: "Writing the report",
  retrieve: "Measuring who is shown",
  measure: "Looking at the target",
  choose_group: "Asking for words",
  refine: "Searching with the words",
  rerank: "Putting the ranking together",
  sample: "Writing answers",
  generate: "Writing answers",
  attribute: "Looking at what was used",
  summarize: "Counting",
  draw: "Asking the model to rank",
  ask: "Asking the model to rank",
  compare: "Counting",
};

function isNumber(value) {
  return typeof value === "number" && Number.isFinite(value);
}
