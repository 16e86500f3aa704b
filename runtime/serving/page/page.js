// The page of a server: lists its bundles, sends texts or audio, shows the results.

import {ApiError, ask, events, json, key} from "./api.js";
import {listenForAudio} from "./audio.js";
import {byId, show} from "./dom.js";
import {fit, requestOf, workOf} from "./fields.js";
import {heatMap} from "./heat_map.js";
import {showEncoderResults} from "./encoder_results.js";
import {append, clear, showFigures, showResult} from "./results.js";

let bundles = [];
/** Aborts the running request; null: none is running. */
let running = null;
/** Repeats the request that was refused without a key. */
let retry = null;

const bundle = () => bundles.find(one => one.name === byId("bundle").value);
const say = text => { byId("status").textContent = text; };

function fail(message) {
  byId("error").textContent = message;
  show("error", message !== "");
}

/** Does work that can be stopped, and shows its error. */
async function attempt(work) {
  if (running) return;
  running = new AbortController();
  fail("");
  busy(true);
  try {
    await work(running.signal);
  } catch (error) {
    if (error.name === "AbortError") say("Stopped");
    else {
      say("");
      showError(error, () => attempt(work));
    }
  } finally {
    running = null;
    busy(false);
  }
}

function busy(is) {
  byId("run").disabled = is;
  byId("stop").disabled = !is;
  byId("attend").disabled = is;
  document.querySelector(".output").classList.toggle("busy", is);
}

function showError(error, repeat) {
  if (error instanceof ApiError && error.status === 401) {
    retry = repeat;
    show("key-form");
    byId("key").focus();
    fail(key.get() ? "This key is not valid." : "This server requires an API key.");
    return;
  }
  fail(error.message);
}

async function load(signal) {
  ({bundles} = await json(await ask("v1/bundles", undefined, signal)));
  byId("bundle").replaceChildren(...bundles.map(one => new Option(one.name, one.name)));
  show("forget", key.get() !== null);
  choose();
}

function choose() {
  const one = bundle();
  byId("about").textContent = `${one.what}, ${one.precision}, for ${one.target}`;
  fit(one);
}

async function run(signal) {
  clear();
  const one = bundle();
  if (!one) return load(signal);
  const work = workOf(one), body = requestOf(one);
  say("Running\u2026");
  const start = performance.now();
  if (work === "generate") await generate(one, body, start, signal);
  else {
    const {results} = await json(await ask(`v1/${work}`, body, signal));
    showFigures({start, first: null, last: performance.now(), tokens: 0, result: null});
    showEncoderResults(work, body.texts, results);
    fail(results.map(result => result.error).filter(Boolean).join("; "));
    if (one.shows_attention && !results[0]?.error) offerAttention({model: one.name, source: body.texts[0]});
  }
  say("Done");
}

async function generate(one, body, start, signal) {
  const streamed = [];
  let first = null, result = null, last = start;
  try {
    const response = await ask("v1/generate", body, signal);
    if (!body.stream) [result] = (await json(response)).results;
    else {
      for await (const {name, data} of events(response)) {
        if (name === "error") throw new ApiError(data.error);
        if (name === "end") result = data;
        else {
          first ??= performance.now();
          streamed.push(data);
          append(data);
        }
      }
      if (!result) throw new ApiError("The connection ended before the output did.");
    }
  } finally {
    last = performance.now();
    const tokens = result ? counted(body, result) : streamed.length;
    if (result || tokens) showFigures({start, first, last, tokens, result});
  }
  if (result.error) fail(result.error);
  showResult(result, streamed, hypothesis => {
    if (one.shows_attention && hypothesis.tokens.length) offerAttention(attentionRequest(body, hypothesis));
  });
}

/** The number of new tokens: of the best hypothesis for beams, of all samples otherwise. */
function counted(body, result) {
  const outputs = body.do_sample && result.hypotheses?.length ? result.hypotheses : [result];
  return outputs.reduce((sum, output) => sum + output.tokens.length, 0);
}

/** The request for the attention of an output. For speech, the server decodes again, greedily. */
function attentionRequest(body, hypothesis) {
  const {model, source, source_language, target_language, language, task, timestamps} = body;
  if (body.audio) return {model, audio: body.audio, language, task, timestamps};
  const target = hypothesis.tokens, end_token = hypothesis.end_token !== null;
  return {model, source, target, end_token, source_language, target_language};
}

/** Shows the button that requests attention. */
function offerAttention(body) {
  byId("attention").replaceChildren();
  show("attention-part");
  show("attend");
  byId("attend").onclick = () => attempt(async signal => {
    const {rows, columns, weights} = await json(await ask("v1/attention", body, signal));
    byId("attention").replaceChildren(heatMap(rows, columns, weights));
    show("attend", false);
    byId("attention").querySelector("canvas").focus();
  });
}

byId("form").addEventListener("submit", event => {
  event.preventDefault();
  attempt(run);
});
byId("form").addEventListener("invalid", event => {
  const closed = event.target.closest("details");
  if (closed) closed.open = true;
}, true);
byId("form").addEventListener("change", () => bundle() && fit(bundle()));
byId("bundle").addEventListener("change", () => {
  running?.abort();
  clear();
  fail("");
  say("");
  choose();
});
byId("stop").addEventListener("click", () => running?.abort());
document.addEventListener("keydown", event => {
  if (event.key === "Enter" && (event.ctrlKey || event.metaKey) && event.target !== byId("key")) {
    event.preventDefault();
    byId("form").requestSubmit();
  } else if (event.key === "Escape") running?.abort();
});
byId("key-form").addEventListener("submit", event => {
  event.preventDefault();
  key.set(byId("key").value);
  byId("key").value = "";
  show("key-form", false);
  show("forget");
  (retry ?? (() => attempt(load)))();
});
byId("forget").addEventListener("click", () => {
  key.forget();
  show("forget", false);
});
listenForAudio(fail, () => fail(""));
attempt(load);
