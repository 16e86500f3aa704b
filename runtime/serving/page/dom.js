// Small helpers for the document. Texts only ever become text nodes, never markup.

export const byId = id => document.getElementById(id);

/** An element with properties (or attributes, by names with a hyphen) and children. */
export function element(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (name === "role" || name === "scope" || name.includes("-")) made.setAttribute(name, value);
    else made[name] = value;
  }
  made.append(...children);
  return made;
}

export function show(id, visible = true) {
  byId(id).hidden = !visible;
}

/** A bar as long as a share, from 0 to 1. */
export function bar(share) {
  const inner = element("span");
  inner.style.width = `${Math.max(0, Math.min(1, share)) * 100}%`;
  return element("span", {className: "bar", "aria-hidden": "true"}, inner);
}

export const percent = share => `${(share * 100).toFixed(share < 0.0995 ? 2 : 1)} %`;

export const number = (value, digits = 3) => value.toFixed(digits).replace("-", "\u2212");

/** A span of time. */
export function seconds(value) {
  return value < 1 ? `${Math.round(value * 1000)} ms` : `${value.toFixed(2)} s`;
}

/** Characters as the server counts them: code points. */
export const slice = (text, start, end) => Array.from(text).slice(start, end).join("");

/** A piece of text with its spaces visible at both ends. */
export function visible(text) {
  const shown = text.replace(/\n/g, "\u21b5");
  return shown.trim() === "" && shown !== "" ? "\u2423".repeat(shown.length) : shown.trim();
}
