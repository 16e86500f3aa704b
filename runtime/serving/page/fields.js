// The form: fields for each kind of model, and the request that they make.

import {audio} from "./audio.js";
import {byId, show} from "./dom.js";

/** Methods of encoder-only models; a model has one. */
const ENCODER_METHODS = ["encode", "classify", "tag", "fill", "answer"];

const LABELS = {
  encode: ["Texts", "One per line. Several texts are compared with each other."],
  classify: ["Text", "For a pair of texts, put the second text on a line of its own."],
  tag: ["Text", ""],
  fill: ["Text", "With the model's mask token, such as [MASK] or <mask>."],
  answer: ["Context", "The answer is an excerpt of this text."],
  ids: ["Token ids", "Numbers, separated by spaces: this bundle has no tokenizers."],
};

const STRATEGIES = {
  greedy: "Selects the most probable token at each step. Tokens are shown as they are selected.",
  beams: "Follows several hypotheses. The best are shown at the end.",
  sampling: "Draws each token at random. The tokens of a single sample are shown as they are drawn.",
};

/** The method of a bundle: "generate" or one of `ENCODER_METHODS`. */
export const workOf = bundle => ENCODER_METHODS.find(name => bundle.methods.includes(name)) ?? "generate";

const strategy = () => document.querySelector("input[name=strategy]:checked").value;

/** Shows the fields that a bundle takes. */
export function fit(bundle) {
  const work = workOf(bundle), decodes = work === "generate", speaks = bundle.takes === "audio";
  const [label, hint] = LABELS[bundle.takes === "ids" ? "ids" : work] ?? ["Text", ""];
  byId("source-label").textContent = label;
  byId("source-hint").textContent = hint;
  show("source-hint", hint !== "");
  show("text-input", !speaks);
  show("audio-input", speaks);
  show("second-input", work === "answer");
  show("decoding", decodes);
  show("encoding", !decodes);
  choices("source-language", bundle.languages);
  choices("target-language", bundle.languages);
  choices("language", bundle.spoken_languages);
  show("languages", bundle.languages.length + bundle.spoken_languages.length > 0);
  byId("max-new-tokens").placeholder = bundle.max_new_tokens ?? "default";
  const kinds = new Set([work, strategy(), speaks ? "speech" : "text"]);
  if (bundle.languages.length) kinds.add("translation");
  for (const part of document.querySelectorAll("[data-for]")) part.hidden = !kinds.has(part.dataset.for);
  byId("strategy-hint").textContent = STRATEGIES[strategy()];
}

function choices(id, languages) {
  const select = byId(id), before = select.value;
  select.replaceChildren(new Option("Default", ""), ...languages.map(code => new Option(code, code)));
  if (languages.includes(before)) select.value = before;
}

/** The body of a request to a bundle; throws an Error that names a missing field. */
export function requestOf(bundle) {
  const work = workOf(bundle), model = bundle.name, values = options();
  if (work !== "generate") return {model, texts: texts(work, bundle), ...values};
  const body = {model, pieces: true, ...input(bundle), ...chosen(), ...values};
  body.stream = body.num_beams === 1 && (body.num_return_sequences ?? 1) === 1 && !body.word_timestamps;
  return body;
}

/** The field of a request that holds the source. */
function input(bundle) {
  if (bundle.takes === "audio") {
    if (audio() === null) throw new Error("Record something, or choose an audio file.");
    return {audio: audio()};
  }
  return {source: source(bundle, byId("source").value)};
}

function source(bundle, text) {
  if (bundle.takes !== "ids") return text;
  const ids = text.split(/[\s,]+/).filter(Boolean);
  const wrong = ids.find(id => !/^\d+$/.test(id));
  if (wrong !== undefined) throw new Error(`Expected numbers, found ${wrong}.`);
  return ids.map(Number);
}

function texts(work, bundle) {
  const text = byId("source").value;
  const lines = text.split("\n").filter(line => line.trim() !== "");
  if (work === "answer") return [[byId("second").value, text]];
  if (work === "encode" && lines.length) return lines.map(line => source(bundle, line));
  if (work === "classify" && bundle.takes === "text" && lines.length === 2) return [lines];
  return [source(bundle, text)];
}

function chosen() {
  if (strategy() === "sampling") return {do_sample: true, num_beams: 1};
  return {do_sample: false, num_beams: 1};
}

/** The options of all fields that are shown and filled. */
function options() {
  const values = {};
  for (const field of byId("form").querySelectorAll("[data-option]")) {
    if (field.closest("[hidden]")) continue;
    const value = valueOf(field);
    if (value !== undefined) values[field.dataset.option] = value;
  }
  return values;
}

function valueOf(field) {
  if (field.type === "checkbox") return field.checked || undefined;
  if (field.value.trim() === "") return undefined;
  if (field.type === "number") return Number(field.value);
  if (field.tagName === "TEXTAREA") return field.value.split("\n").filter(line => line.trim() !== "");
  if (["true", "false"].includes(field.value)) return field.value === "true";
  return field.value;
}
