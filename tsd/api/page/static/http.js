// Requests to the daemon's API, with the user's credentials.

const KEY = "tsd-authorization"; // in the storage of this tab and origin
export const MAX_ANSWER_BYTES = 32 * 2 ** 20;

/** A request that failed, with a reason for people. */
export class RequestError extends Error {
  constructor(status, message) {
    super(message);
    this.status = status;
  }
}

export function credential() {
  return sessionStorage.getItem(KEY);
}

/** Keep a token, or NAME:PASSWORD; "" forgets it. */
export function setCredential(text) {
  if (!text) sessionStorage.removeItem(KEY);
  else if (text.includes(":")) {
    const bytes = new TextEncoder().encode(text);
    sessionStorage.setItem(KEY, `Basic ${btoa(String.fromCharCode(...bytes))}`);
  } else sessionStorage.setItem(KEY, `Bearer ${text}`);
}

/** Request a path of the daemon. An answer of any status is returned. */
export async function send(path, { method = "GET", body, signal } = {}) {
  const headers = { "X-Requested-With": "tsd" };
  if (credential()) headers.Authorization = credential();
  if (body !== undefined) headers["Content-Type"] = "application/json";
  try {
    return await fetch(`.${path}`, { method, headers, signal, body: body === undefined ? undefined : JSON.stringify(body) });
  } catch (error) {
    if (error.name === "AbortError") throw error;
    throw new RequestError(0, `The daemon at ${location.host} does not answer. Is it running, and is the network up?`);
  }
}

/** Return the body as bytes. Answers over MAX_ANSWER_BYTES are cut off: the daemon then stops working on them. */
async function bytesOf(response) {
  const reader = response.body.getReader();
  const parts = [];
  let size = 0;
  for (;;) {
    const { done, value } = await reader.read().catch((error) => {
      if (error.name === "AbortError") throw error;
      throw new RequestError(0, `The answer of ${location.host} ended early.`);
    });
    if (done) break;
    parts.push(value);
    size += value.length;
    if (size > MAX_ANSWER_BYTES) {
      await reader.cancel();
      throw new RequestError(413, `The answer has more than ${MAX_ANSWER_BYTES >> 20} MB. Group by fewer tags, filter more, or choose a longer downsampling interval.`);
    }
  }
  return new Blob(parts);
}

const CHOICES = [ // of parts of queries, by what the daemon says of a wrong one
  [/No such (aggregation|downsampling) function/, "one of the list, such as sum, avg, max or p99"],
  [/Invalid duration/, "an interval such as 30s, 5m, 1h or 1d"],
  [/Unrecognized fill policy/, "none, nan, null or zero"],
  [/filter of the type/, "web01|web02, web*, regexp(web.*), not_literal_or(web01)"],
];

function plain(status, text) {
  let message = text;
  try {
    const { error } = JSON.parse(text);
    message = error.details && error.details !== error.message ? `${error.message}: ${error.details}` : error.message;
  } catch {
    // not JSON: shown as it is
  }
  const name = /No such name for '(\w+)': '(.*?)'/.exec(message);
  if (name) return `Nothing is stored under the ${{ metrics: "metric", tagk: "tag name", tagv: "tag value" }[name[1]] ?? "name"} “${name[2]}”.`;
  if (status === 401) return "Sign in to see this.";
  if (status === 403) return `You may not see this. ${message}`;
  if (status === 429) return "Too many attempts. Wait a moment.";
  const wanted = CHOICES.find(([wrong]) => wrong.test(message))?.[1];
  const found = message.replace(/: Query\(.*$/s, "").split("\n")[0].slice(0, 500) || `The daemon answered with status ${status}`;
  return `${found}${/[.?!]$/.test(found) ? "" : "."}${wanted ? ` Wanted: ${wanted}.` : ""}`;
}

async function checked(path, options) {
  const response = await send(path, options);
  if (!response.ok) throw new RequestError(response.status, plain(response.status, await response.text()));
  return response;
}

const LONG = /[[,:]-?\d{16,}[,\]}]/; // an integer that a double may not hold, or its like in a text

/** Return the value of JSON. Integers that a double does not hold are of the type bigint. */
function parseJson(text) {
  if (!LONG.test(text)) return JSON.parse(text); // much faster
  return JSON.parse(text, (_, value, context) => {
    const isLong = typeof value === "number" && Number.isInteger(value) && !Number.isSafeInteger(value);
    return isLong && /^-?\d+$/.test(context?.source ?? "") ? BigInt(context.source) : value;
  });
}

/** Return the JSON of an answer; null for an empty one. */
export async function getJson(path, options) {
  const response = await checked(path, options);
  if (response.status === 204) return null;
  const text = await (await bytesOf(response)).text();
  return text ? parseJson(text) : null;
}

export async function getBlob(path, options) {
  const response = await checked(path, options);
  return new Blob([await bytesOf(response)], { type: response.headers.get("Content-Type") ?? "" });
}
