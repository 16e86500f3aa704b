// Requests to the server, their errors, and streams of events.

const KEY = "dragoman.key";

export const key = {
  get: () => sessionStorage.getItem(KEY),
  set: value => sessionStorage.setItem(KEY, value),
  forget: () => sessionStorage.removeItem(KEY),
};

/** A failed request. */
export class ApiError extends Error {
  constructor(message, status = 0) {
    super(message);
    this.status = status;
  }
}

/** Sends a GET, or a POST of `body`; throws ApiError if the request fails. */
export async function ask(path, body, signal) {
  const headers = {};
  if (key.get()) headers.Authorization = `Bearer ${key.get()}`;
  const request = {headers, signal};
  if (body !== undefined) {
    headers["Content-Type"] = "application/json";
    Object.assign(request, {method: "POST", body: JSON.stringify(body)});
  }
  const response = await reached(fetch(path, request));
  if (!response.ok) throw await problem(response);
  return response;
}

/** The JSON of a response. */
export const json = response => reached(response.json());

/** The events of a response: each has a name and data. */
export async function* events(response) {
  const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
  let waiting = "";
  for (;;) {
    const {done, value} = await reached(reader.read());
    if (done) return;
    const parts = (waiting + value).split("\n\n");
    waiting = parts.pop();
    yield* parts.map(event);
  }
}

function event(part) {
  const lines = part.split("\n");
  const of = name => lines.filter(line => line.startsWith(`${name}: `))
    .map(line => line.slice(name.length + 2)).join("\n");
  return {name: of("event") || "message", data: JSON.parse(of("data"))};
}

/** Waits for a promise of fetch; its error says that the server cannot be reached. */
async function reached(promise) {
  try {
    return await promise;
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new ApiError("The server cannot be reached, or it ended the connection.");
  }
}

async function problem(response) {
  let message = `The server answered with status ${response.status}.`;
  try {
    const body = await response.json();
    if (typeof body.error === "string") message = body.error;
  } catch {
    // The body is not from the server, such as the page of a proxy.
  }
  const wait = response.headers.get("Retry-After");
  if (wait) message += ` (try again in ${wait} s)`;
  return new ApiError(message, response.status);
}
