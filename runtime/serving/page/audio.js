// Audio from a microphone or a file, in a format that the server reads.

import {byId, element, show} from "./dom.js";

const READ_BY_SERVER = /\.(wav|flac|ogg|oga|mp3)$/i;
const RATE = 16000;
const MEGABYTE = 1 << 20;

/** The audio to send, as base64, or null. */
let chosen = null;
let recorder = null;

export const audio = () => chosen;

/** Lets people choose audio. `fail` is called with an error message, `ready` when there is audio. */
export function listenForAudio(fail, ready) {
  const guarded = work => (...given) => work(...given).then(ready, error => fail(message(error)));
  byId("record").addEventListener("click", () => {
    if (recorder) recorder.stop();
    else guarded(record)();
  });
  byId("file").addEventListener("change", event => {
    const [file] = event.target.files;
    event.target.value = "";
    if (file) guarded(take)(file, file.name);
  });
  const drop = byId("drop");
  const over = on => event => {
    event.preventDefault();
    drop.classList.toggle("over", on);
  };
  drop.addEventListener("dragover", over(true));
  drop.addEventListener("dragleave", over(false));
  drop.addEventListener("drop", event => {
    over(false)(event);
    const [file] = event.dataTransfer.files;
    if (file) guarded(take)(file, file.name);
  });
}

function message(error) {
  if (error.name === "NotAllowedError") return "Access to the microphone was denied: allow it for this page.";
  if (error.name === "NotFoundError") return "No microphone was found.";
  return error.message;
}

async function record() {
  if (!navigator.mediaDevices) {
    throw new Error("Browsers record only on pages from HTTPS or localhost: choose a file instead.");
  }
  const stream = await navigator.mediaDevices.getUserMedia({audio: true});
  const parts = [];
  recorder = new MediaRecorder(stream);
  recorder.addEventListener("dataavailable", event => parts.push(event.data));
  const stopped = new Promise(resolve => recorder.addEventListener("stop", resolve, {once: true}));
  recorder.start();
  const start = performance.now();
  const showTime = () => say(`Recording: ${Math.round((performance.now() - start) / 1000)} s`);
  const ticking = setInterval(showTime, 1000);
  const button = byId("record");
  button.textContent = "Stop recording";
  button.classList.add("on");
  showTime();
  await stopped;
  clearInterval(ticking);
  stream.getTracks().forEach(track => track.stop());
  button.textContent = "Record";
  button.classList.remove("on");
  const kind = recorder.mimeType;
  recorder = null;
  await take(new Blob(parts, {type: kind}), "recording");
}

/** Reads a file. The browser converts formats that the server may not read to WAV. */
async function take(file, name) {
  chosen = null;
  say(`Reading ${name}\u2026`);
  let sent = file;
  try {
    if (!READ_BY_SERVER.test(name)) sent = await asWav(file);
    chosen = await asBase64(sent);
  } catch (error) {
    say("");
    throw error;
  }
  const player = byId("player");
  if (player.src) URL.revokeObjectURL(player.src);
  player.src = URL.createObjectURL(sent);
  player.setAttribute("aria-label", name);
  show("player");
  say(`${name}, ${(sent.size / MEGABYTE).toFixed(2)} MB`);
}

function say(text) {
  byId("audio-status").replaceChildren(element("span", {textContent: text}));
}

function asBase64(blob) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result.slice(reader.result.indexOf(",") + 1));
    reader.onerror = () => reject(new Error("The file cannot be read."));
    reader.readAsDataURL(blob);
  });
}

/** Mono, 16 bits, at the rate of speech models. */
async function asWav(blob) {
  let decoded;
  try {
    decoded = await new OfflineAudioContext(1, 1, RATE).decodeAudioData(await blob.arrayBuffer());
  } catch {
    throw new Error("The browser cannot read this file: expected audio, such as wav, flac, ogg or mp3.");
  }
  const channels = Array.from({length: decoded.numberOfChannels}, (_, n) => decoded.getChannelData(n));
  const header = 44, size = decoded.length * 2, view = new DataView(new ArrayBuffer(header + size));
  const word = (place, text) => [...text].forEach((c, n) => view.setUint8(place + n, c.charCodeAt(0)));
  const long = (place, value) => view.setUint32(place, value, true);
  const short = (place, value) => view.setUint16(place, value, true);
  word(0, "RIFF"), long(4, header - 8 + size), word(8, "WAVEfmt "), long(16, 16), short(20, 1);
  short(22, 1), long(24, RATE), long(28, RATE * 2), short(32, 2), short(34, 16);
  word(36, "data"), long(40, size);
  for (let n = 0; n < decoded.length; n++) {
    const mean = channels.reduce((sum, samples) => sum + samples[n], 0) / channels.length;
    const clipped = Math.max(-1, Math.min(1, mean));
    view.setInt16(header + n * 2, Math.round(clipped * 32767), true);
  }
  return new Blob([view], {type: "audio/wav"});
}
