// Results of encoder-only models.

import {bar, byId, element, number, percent, show, slice, visible} from "./dom.js";

const MOST_COMPARED = 20;
const SHOWN_NUMBERS = 8;

/** Shows the results of a method for the texts of a request. */
export function showEncoderResults(work, texts, results) {
  show("text", false);
  const made = WRITERS[work](results.filter(result => !result.error), texts);
  const cut = results.some(result => result.truncated);
  if (cut) made.push(element("p", {className: "hint", textContent: "A text was truncated to the longest that the model reads."}));
  byId("found").replaceChildren(...made);
}

const WRITERS = {
  encode(results, texts) {
    const names = texts.map(text => (typeof text === "string" ? text : text.join(" ")));
    const vectors = results.map(({vector}, n) => {
      const length = Math.hypot(...vector), some = vector.slice(0, SHOWN_NUMBERS).map(x => number(x, 4));
      const rest = vector.length > SHOWN_NUMBERS ? "\u2026" : "";
      return element("article", {className: "vector"},
        element("h3", {textContent: `${n + 1}. ${names[n] ?? ""}`}),
        element("p", {className: "muted", textContent: `${vector.length} numbers, norm ${number(length)}`}),
        element("p", {className: "numbers", textContent: `${some.join(" ")} ${rest}`}),
        element("details", {}, element("summary", {textContent: "All as JSON"}),
          element("pre", {textContent: JSON.stringify(vector)})));
    });
    return results.length > 1 ? [...similarities(results), ...vectors] : vectors;
  },
  classify: results => results.map(({labels}) => shares("Labels", labels.map(l => [l.label, l.score]))),
  tag: (results, texts) => results.flatMap(({words, entities}, n) => {
    const tags = entities.length ? entities : words;
    const list = shares("Tags", tags.map(tag => [`${tag.text ?? ""} ${tag.label}`, tag.probability]));
    return typeof texts[n] === "string" ? [marked(texts[n], tags), list] : [list];
  }),
  fill: results => results.flatMap(({text, masks}) => [
    element("p", {className: "text", textContent: text ?? ""}),
    ...masks.map((mask, n) => shares(`Mask ${n + 1}`,
      mask.map(c => [c.text ? visible(c.text) : `#${c.token}`, c.probability]))),
  ]),
  answer: (results, texts) => results.flatMap((answer, n) => [
    element("p", {className: "text", textContent: answer.text}),
    element("p", {className: "muted", textContent: `Probability ${percent(answer.probability)}`}),
    marked(texts[n][1], [{...answer, label: ""}]),
  ]),
};

/** A table of pairwise cosine similarities of embeddings. */
function similarities(results) {
  const vectors = results.slice(0, MOST_COMPARED).map(result => result.vector);
  const dot = (a, b) => a.reduce((sum, x, n) => sum + x * b[n], 0);
  const cosine = (a, b) => dot(a, b) / (Math.hypot(...a) * Math.hypot(...b) || 1);
  const numbers = vectors.map((_, n) => element("th", {className: "n", scope: "col", textContent: n + 1}));
  const rows = vectors.map((a, n) => element("tr", {},
    element("th", {className: "n", scope: "row", textContent: n + 1}),
    ...vectors.map(b => {
      const value = cosine(a, b), cell = element("td", {className: "n heat", textContent: number(value, 2)});
      cell.style.setProperty("--heat", `${Math.round(Math.max(0, value) * 40)}%`);
      return cell;
    })));
  const table = element("table", {className: "cosines", "aria-label": "Cosine similarity of each two texts"},
    element("thead", {}, element("tr", {}, element("td"), ...numbers)), element("tbody", {}, ...rows));
  return [element("h3", {textContent: "Cosine similarity"}),
    element("div", {className: "scroll", role: "region", "aria-label": "Cosine similarity", tabIndex: 0}, table)];
}

/** A table of names and probabilities. Other numbers, such as those of a regression, have no bars. */
function shares(title, entries) {
  const areShares = entries.every(([, value]) => value >= 0 && value <= 1);
  const rows = entries.map(([name, value]) => element("tr", {},
    element("th", {scope: "row", textContent: name}),
    element("td", {className: "n", textContent: areShares ? percent(value) : number(value)}),
    element("td", {className: "wide"}, ...(areShares ? [bar(value)] : []))));
  return element("section", {}, element("h3", {textContent: title}),
    element("table", {className: "shares"}, element("tbody", {}, ...rows)));
}

/** A text with labelled spans. */
function marked(text, tags) {
  const whole = element("p", {className: "marked"});
  let end = 0;
  for (const tag of tags.filter(t => t.start >= 0)) {
    whole.append(slice(text, end, tag.start));
    const mark = element("mark", {textContent: slice(text, tag.start, tag.end)});
    if (tag.label) mark.append(element("small", {textContent: tag.label}));
    whole.append(mark);
    end = tag.end;
  }
  whole.append(slice(text, end));
  return whole;
}
