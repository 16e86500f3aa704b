// The tokens of an output, each with its alternatives.

import {bar, byId, element, number, percent, show, visible} from "./dom.js";

/** The displayed tokens of a hypothesis, including the end token. */
export function tokensOf(hypothesis) {
  return hypothesis.token_log_probabilities.map((logProbability, n) => ({
    id: hypothesis.tokens[n] ?? hypothesis.end_token,
    text: n < hypothesis.tokens.length ? hypothesis.pieces?.[n] ?? null : null,
    isEnd: n >= hypothesis.tokens.length,
    log_probability: logProbability,
    alternatives: hypothesis.alternatives[n] ?? [],
  }));
}

/** Shows tokens; the arrow keys go from one to the next. */
export function showTokens(tokens) {
  show("tokens-part", tokens.length > 0);
  const ends = new Set(tokens.filter(token => token.isEnd).map(token => token.id));
  const buttons = tokens.map((token, n) => button(token, n, ends));
  buttons.forEach((one, n) => {
    one.tabIndex = n ? -1 : 0;
    const choose = () => {
      buttons.forEach(other => other.setAttribute("aria-pressed", other === one));
      buttons.forEach(other => { other.tabIndex = other === one ? 0 : -1; });
      byId("token").replaceChildren(...details(tokens[n], ends));
    };
    one.addEventListener("focus", choose);
    one.addEventListener("pointerenter", choose);
    one.addEventListener("click", choose);
    one.addEventListener("keydown", event => {
      const places = {ArrowLeft: n - 1, ArrowRight: n + 1, Home: 0, End: buttons.length - 1};
      if (!(event.key in places)) return;
      event.preventDefault();
      buttons[places[event.key]]?.focus();
    });
  });
  byId("tokens").replaceChildren(...buttons);
  byId("token").replaceChildren();
}

function nameOf(token, ends) {
  if (token.isEnd || ends.has(token.id ?? token.token)) return "end";
  return token.text ? visible(token.text) : `#${token.id ?? token.token}`;
}

function button(token, n, ends) {
  const probability = Math.exp(token.log_probability), name = nameOf(token, ends);
  const made = element("button", {
    type: "button", className: token.isEnd ? "end" : "", textContent: name,
    "aria-pressed": "false", "aria-controls": "token",
    "aria-label": `${name}, token ${n + 1}, ${percent(probability)}`,
  });
  made.style.setProperty("--doubt", `${Math.round((1 - probability) * 100)}%`);
  return made;
}

function details(token, ends) {
  const title = element("p", {className: "chosen"},
    element("strong", {textContent: nameOf(token, ends)}),
    ` ${percent(Math.exp(token.log_probability))} `,
    element("span", {
      className: "muted", textContent: `log ${number(token.log_probability)}, id ${token.id}`,
    }));
  if (!token.alternatives.length) return [title];
  const rows = token.alternatives.map(other => element("tr", {className: other.token === token.id ? "same" : ""},
    element("th", {scope: "row", textContent: nameOf(other, ends)}),
    element("td", {className: "n", textContent: percent(Math.exp(other.log_probability))}),
    element("td", {className: "wide"}, bar(Math.exp(other.log_probability)))));
  const head = element("caption", {className: "hint", textContent: "Most probable tokens at this step"});
  return [title, element("table", {className: "alternatives"}, head, element("tbody", {}, ...rows))];
}
