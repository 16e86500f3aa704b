// Audio from a microphone or a file, as the server reads it.

import {byId, element, show} from "./dom.js";

const READ_BY_SERVER = /\.(wav|flac|ogg|oga|mp3)$/i;
const RATE = 16000;
const MEGABYTE = 1 << 20;

/** What is to be sent: audio as base64, or null. */
let chosen = null;
let recorder = null;

export const audio = () => chosen;

/** Lets people choose audio; `fail` is told what goes wrong, `ready` that there is some. */
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
  if (error.name === "NotAllowedError") return "The microphone may not be used: allow it for this page.";
  if (error.name === "NotFoundError") return "No microphone was found.";
  return error.message;
}

async function record() {
  if (!navigator.mediaDevices) {
    throw new Error("Browsers let pages record over HTTPS or from localhost only: choose a file instead.");
  }
  const stream = await navigator.mediaDevices.getUserMedia({audio: true});
  const parts = [];
  recorder = new MediaRecorder(stream);
  recorder.addEventListener("dataavailable", event => parts.push(event.data));
  const stopped = new Promise(resolve => recorder.addEventListener("stop", resolve, {once: true}));
  recorder.start();
  const begun = performance.now();
  const tell = () => say(`Recording: ${Math.round((performance.now() - begun) / 1000)} s`);
  const ticking = setInterval(tell, 1000);
  const button = byId("record");
  button.textContent = "Stop recording";
  button.classList.add("on");
  tell();
  await stopped;
  clearInterval(ticking);
  stream.getTracks().forEach(track => track.stop());
  button.textContent = "Record";
  button.classList.remove("on");
  const kind = recorder.mimeType;
  recorder = null;
  await take(new Blob(parts, {type: kind}), "recording");
}

/** Reads a file; what the server may not be able to read, the browser turns into WAV. */
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
    throw new Error("This is no audio that the browser can read: expected wav, flac, ogg, mp3 or another such file.");
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
