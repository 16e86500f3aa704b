// What a model that decodes has made: text as it comes, figures, hypotheses, segments.

import {byId, element, number, seconds, show} from "./dom.js";
import {showTokens, tokensOf} from "./tokens.js";

const PARTS = ["figures", "hypotheses-part", "segments-part", "tokens-part", "attention-part"];
const ENDS = {
  end: "by the model", length: "at the limit", empty: "nothing to read",
};

export function clear() {
  byId("text").replaceChildren();
  byId("attention").replaceChildren();
  byId("found").replaceChildren();
  show("text");
  for (const part of PARTS) show(part, false);
}

/** Adds a token of a stream to the text. */
export function append(token) {
  byId("text").append(element("span", {textContent: token.text ?? `${token.id} `}));
}

/** How long it took: the times are of `performance.now`. */
export function showFigures({begun, first, last, tokens, result}) {
  const figures = [];
  if (first !== null) figures.push(["First token", seconds((first - begun) / 1000)]);
  figures.push(["Total", seconds((last - begun) / 1000)]);
  if (tokens) figures.push(["Tokens", tokens]);
  // Of the whole time: what a stream brings may arrive together, however it was decoded.
  if (tokens) figures.push(["Tokens a second", number((tokens * 1000) / (last - begun), 1)]);
  if (result && !result.error) {
    figures.push(["Score", number(result.score)]);
    figures.push(["Log-probability", number(result.log_probability)]);
    figures.push(["Ended", ENDS[result.finish_reason] ?? result.finish_reason]);
    if (result.language) figures.push(["Language", result.language]);
  }
  byId("figures").replaceChildren(...figures.map(([name, value]) =>
    element("div", {}, element("dt", {textContent: name}), element("dd", {textContent: value}))));
  show("figures");
}

/** Shows a result; `chosen` is told which hypothesis is looked at.
 *
 * `streamed`: the tokens of a stream, or none. */
export function showResult(result, streamed, chosen) {
  const hypotheses = result.hypotheses ?? [];
  if (result.error) {
    show("text", false);
    return;
  }
  const look = hypothesis => {
    // A stream's text is there already: writing it again would have it read aloud twice.
    const text = hypothesis.text ?? hypothesis.tokens.join(" ");
    if (byId("text").textContent.trim() !== text.trim()) byId("text").textContent = text;
    showTokens(tokensOf(hypothesis));
    chosen(hypothesis);
  };
  if (hypotheses.length) {
    look(hypotheses[0]);
    showHypotheses(hypotheses, look);
    return;
  }
  const text = result.text ?? result.tokens.join(" ");
  if (byId("text").textContent.trim() !== text.trim()) byId("text").textContent = text;
  showTokens(streamed.map(token => ({...token, isEnd: false, alternatives: []})));
  showSegments(result.segments ?? []);
  chosen(result);
}

function showHypotheses(hypotheses, look) {
  show("hypotheses-part", hypotheses.length > 1);
  if (hypotheses.length < 2) return;
  const rows = hypotheses.map((hypothesis, n) => {
    const button = element("button", {
      type: "button", className: "pick", textContent: hypothesis.text ?? hypothesis.tokens.join(" "),
      "aria-pressed": String(n === 0),
    });
    button.addEventListener("click", () => {
      for (const other of byId("hypotheses").querySelectorAll("button")) {
        other.setAttribute("aria-pressed", other === button);
      }
      look(hypothesis);
    });
    return element("tr", {},
      element("td", {className: "n muted", textContent: n + 1}),
      element("th", {scope: "row"}, button),
      element("td", {className: "n", textContent: number(hypothesis.score)}),
      element("td", {className: "n extra", textContent: number(hypothesis.log_probability)}));
  });
  byId("hypotheses").replaceChildren(
    head(["", "n"], ["Text"], ["Score", "n"], ["Log-probability", "n extra"]), element("tbody", {}, ...rows));
}

function showSegments(segments) {
  show("segments-part", segments.length > 0);
  const player = byId("player");
  const rows = segments.map(segment => {
    const play = element("button", {
      type: "button", className: "quiet", textContent: `${time(segment.start)} \u2013 ${time(segment.end)}`,
      "aria-label": `Play from ${time(segment.start)} to ${time(segment.end)}`,
    });
    play.addEventListener("click", () => {
      player.currentTime = segment.start;
      player.play();
    });
    return element("tr", {},
      element("td", {className: "n"}, play),
      element("td", {textContent: segment.text ?? segment.tokens.join(" ")}));
  });
  byId("segments").replaceChildren(head(["Time", "n"], ["Text"]), element("tbody", {}, ...rows));
}

function time(value) {
  const minutes = Math.floor(value / 60);
  return `${minutes}:${(value - minutes * 60).toFixed(2).padStart(5, "0")}`;
}

function head(...columns) {
  const cells = columns.map(([name, className = ""]) =>
    element("th", {scope: "col", className, textContent: name}));
  return element("thead", {}, element("tr", {}, ...cells));
}
