// Attention weights as a picture, explored with the pointer and the arrow keys, and in words.

import {element, number, percent, visible} from "./dom.js";

const CELL = 20;
const WIDEST = 1200;
const LABEL = 14;
const NAMED = 3;
const STEPS = {ArrowUp: [-1, 0], ArrowDown: [1, 0], ArrowLeft: [0, -1], ArrowRight: [0, 1]};

/** An element that shows weights [rows, columns]. */
export function heatMap(rows, columns, weights) {
  const width = columns.length * CELL <= WIDEST ? CELL : Math.max(2, Math.floor(WIDEST / columns.length));
  const canvas = element("canvas", {
    width: columns.length, height: rows.length, tabIndex: 0, role: "application",
    "aria-roledescription": "heat map",
    "aria-label": `Attention of ${rows.length} tokens to ${columns.length}; use the arrow keys`,
  });
  canvas.style.width = `${columns.length * width}px`;
  canvas.style.height = `${rows.length * CELL}px`;
  const cursor = element("div", {className: "cursor", hidden: true});
  cursor.style.width = `${width}px`;
  cursor.style.height = `${CELL}px`;
  const readout = element("p", {className: "readout", "aria-live": "polite"});
  const plot = element("div", {className: "plot"},
    labels("top", columns, width), labels("side", rows, CELL),
    element("div", {className: "cells"}, canvas, cursor));
  const strongest = Math.max(...weights.map(row => Math.max(...row)));
  paint(canvas, weights, strongest);
  let at = [0, 0];

  function point(row, column, follow) {
    at = [Math.max(0, Math.min(rows.length - 1, row)), Math.max(0, Math.min(columns.length - 1, column))];
    cursor.hidden = false;
    cursor.style.left = `${at[1] * width}px`;
    cursor.style.top = `${at[0] * CELL}px`;
    if (follow) cursor.scrollIntoView({block: "nearest", inline: "nearest"});
    const share = weights[at[0]][at[1]];
    readout.textContent = `${named(rows[at[0]])} attends to ${named(columns[at[1]])}: ${percent(share)}`;
  }

  canvas.addEventListener("pointermove", event => {
    point(Math.floor(event.offsetY / CELL), Math.floor(event.offsetX / width), false);
  });
  canvas.addEventListener("focus", () => point(...at, false));
  canvas.addEventListener("blur", () => { cursor.hidden = true; });
  canvas.addEventListener("keydown", event => {
    const step = STEPS[event.key];
    if (!step) return;
    event.preventDefault();
    point(at[0] + step[0], at[1] + step[1], true);
  });
  const dark = matchMedia("(prefers-color-scheme: dark)");
  dark.addEventListener("change", function again() {
    if (canvas.isConnected) paint(canvas, weights, strongest);
    else dark.removeEventListener("change", again);
  });
  const legend = element("p", {className: "legend"},
    "0", element("span", {className: "ramp", "aria-hidden": "true"}), number(strongest, 2));
  return element("div", {className: "heat-map"},
    element("div", {className: "scroll tall"}, plot), legend, readout,
    element("details", {}, element("summary", {textContent: "In words"}), words(rows, columns, weights)));
}

const named = token => `\u201c${visible(token)}\u201d`;

/** Names along a side; if cells are narrow, only some of them. */
function labels(side, names, size) {
  const every = Math.ceil(LABEL / size);
  const made = names.map((name, n) => {
    const label = element("span", {}, element("span", {textContent: n % every ? "" : visible(name)}));
    label.style[side === "top" ? "width" : "height"] = `${size}px`;
    return label;
  });
  return element("div", {className: side, "aria-hidden": "true"}, ...made);
}

/** A pixel for each weight, enlarged by the style sheet. */
function paint(canvas, weights, strongest) {
  const style = getComputedStyle(document.documentElement);
  const [low, high] = ["--heat-low", "--heat-high"].map(name => {
    const hex = style.getPropertyValue(name).trim();
    return [1, 3, 5].map(place => parseInt(hex.slice(place, place + 2), 16));
  });
  const image = new ImageData(canvas.width, canvas.height);
  weights.flat().forEach((weight, n) => {
    const share = strongest ? Math.max(0, weight) / strongest : 0;
    const colour = low.map((from, i) => Math.round(from + (high[i] - from) * share));
    image.data.set([...colour, 255], n * 4);
  });
  canvas.getContext("2d").putImageData(image, 0, 0);
}

function words(rows, columns, weights) {
  const lines = rows.map((row, n) => {
    const best = weights[n].map((share, column) => [share, column])
      .sort((a, b) => b[0] - a[0]).slice(0, NAMED);
    const told = best.map(([share, column]) => `${named(columns[column])} ${percent(share)}`).join(", ");
    return element("li", {textContent: `${named(row)}: ${told}`});
  });
  return element("ol", {className: "words"}, ...lines);
}
