// Results of models that decode: text, figures, hypotheses, segments.

import {byId, element, number, seconds, show} from "./dom.js";
import {showTokens, tokensOf} from "./tokens.js";

const PARTS = ["figures", "hypotheses-part", "segments-part", "tokens-part", "attention-part"];
const ENDS = {
  end: "end token", length: "length limit", empty: "empty source",
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
  if (token.is_end) return;
  byId("text").append(element("span", {textContent: token.text ?? `${token.id} `}));
}

/** Shows scores, and times of `performance.now`. */
export function showFigures({start, first, last, tokens, result}) {
  const figures = [];
  if (first !== null) figures.push(["First token", seconds((first - start) / 1000)]);
  figures.push(["Total", seconds((last - start) / 1000)]);
  if (tokens) figures.push(["Tokens", tokens]);
  // Over the whole time, since tokens of a stream may arrive together.
  if (tokens) figures.push(["Tokens per second", number((tokens * 1000) / (last - start), 1)]);
  if (result && !result.error) {
    figures.push(["Score", number(result.score)]);
    figures.push(["Log-probability", number(result.log_probability)]);
    figures.push(["Finish reason", ENDS[result.finish_reason] ?? result.finish_reason]);
    if (result.language) figures.push(["Language", result.language]);
  }
  byId("figures").replaceChildren(...figures.map(([name, value]) =>
    element("div", {}, element("dt", {textContent: name}), element("dd", {textContent: value}))));
  show("figures");
}

/** Shows a result.
 *
 * `streamed`: the tokens of a stream, or empty.
 * `onSelect`: called with the shown hypothesis. */
export function showResult(result, streamed, onSelect) {
  const hypotheses = result.hypotheses ?? [];
  if (result.error) {
    show("text", false);
    return;
  }
  const select = hypothesis => {
    // The text of a stream is already shown; a screen reader would read it twice.
    const text = hypothesis.text ?? hypothesis.tokens.join(" ");
    if (byId("text").textContent.trim() !== text.trim()) byId("text").textContent = text;
    showTokens(tokensOf(hypothesis));
    onSelect(hypothesis);
  };
  if (hypotheses.length) {
    select(hypotheses[0]);
    showHypotheses(hypotheses, select);
    return;
  }
  const text = result.text ?? result.tokens.join(" ");
  if (byId("text").textContent.trim() !== text.trim()) byId("text").textContent = text;
  showTokens(streamed.map(token => ({...token, isEnd: false, alternatives: []})));
  showSegments(result.segments ?? []);
  onSelect(result);
}

function showHypotheses(hypotheses, select) {
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
      select(hypothesis);
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

/** What is marked while it is spoken: its times and its element. */
let spoken = [];
let frame = 0;

function mark() {
  const player = byId("player"), now = player.currentTime;
  for (const {start, end, node} of spoken) node.classList.toggle("now", start <= now && now < end);
  cancelAnimationFrame(frame);
  if (!player.paused) frame = requestAnimationFrame(mark);
}

for (const event of ["play", "seeked"]) byId("player").addEventListener(event, mark);

function words(segment) {
  return segment.words.map(word => {
    const node = element("span", {textContent: word.text});
    node.addEventListener("click", () => (byId("player").currentTime = word.start));
    spoken.push({start: word.start, end: word.end, node});
    return node;
  });
}

function showSegments(segments) {
  show("segments-part", segments.length > 0);
  spoken = [];
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
    const text = segment.words?.length
      ? element("td", {className: "spoken"}, ...words(segment))
      : element("td", {textContent: segment.text ?? segment.tokens.join(" ")});
    const row = element("tr", {}, element("td", {className: "n"}, play), text);
    if (!segment.words?.length) spoken.push({start: segment.start, end: segment.end, node: text});
    return row;
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
