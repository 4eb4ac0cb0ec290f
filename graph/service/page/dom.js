// Building elements. Text always becomes a text node, so that nothing from a document or a model
// can become markup.

/**
 * Make an element.
 *
 * @param {string} tag
 * @param {Object} properties Attributes by name; `on` holds listeners by event; false and null
 *   leave an attribute out.
 * @param {...(Node|string|number|null|Array)} children
 */
export function el(tag, properties = {}, ...children) {
  return filled(document.createElement(tag), properties, children);
}

/** Make an element of SVG. */
export function svg(tag, properties = {}, ...children) {
  return filled(document.createElementNS("http://www.w3.org/2000/svg", tag), properties, children);
}

function filled(element, { on = {}, ...attributes }, children) {
  for (const [name, value] of Object.entries(attributes)) {
    if (value !== false && value !== null && value !== undefined) {
      element.setAttribute(name, value === true ? "" : String(value));
    }
  }
  for (const [event, listener] of Object.entries(on)) element.addEventListener(event, listener);
  add(element, children);
  return element;
}

function add(element, children) {
  for (const child of children.flat(Infinity)) {
    if (child === null || child === undefined || child === false) continue;
    element.append(child instanceof Node ? child : document.createTextNode(String(child)));
  }
}

/** Replace the children of an element. */
export function fill(element, ...children) {
  element.replaceChildren();
  add(element, children);
  return element;
}

/** The element with this id. */
export const byId = (id) => document.getElementById(id);

/** Text of a document or a model, isolated from the direction of its surroundings, and cut if long. */
export function foreign(text, limit = 300) {
  const all = Array.from(String(text ?? ""));
  return el("bdi", {}, all.length > limit ? `${all.slice(0, limit).join("")}…` : all.join(""));
}

/** Text only for screen readers. */
export const hidden = (...children) => el("span", { class: "hidden" }, ...children);

/** A term and its value, for a list of facts. */
export const fact = (name, ...value) => el("div", {}, el("dt", {}, name), el("dd", {}, ...value));

/** An option of a select. */
export const option = (value, label = value, selected = false) =>
  el("option", { value, selected }, label);
