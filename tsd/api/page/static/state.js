// What the page shows, as a URL fragment in the form of OpenTSDB's own page:
// #start=1h-ago&end=…&m=AGGREGATOR:INTERVAL-FUNCTION:rate:METRIC{TAGS}{FILTERS}&o=axis x1y2&autoreload=15&yrange=[0:]
// Other views: #view=daemon, #view=inventory&prefix=web&metrics=sys.*&silent=10m&order=METRIC:desc&from=NAME,
// #view=entity&entity=web01&metrics=sys.*&start=3h-ago

export const DEFAULT_START = "1h-ago";
export const DEFAULT_SILENT = "10m";
export const DEFAULT_ENTITY_START = "3h-ago";
const MOST_REFRESH_S = 86_400;
const VIEWS = ["graph", "daemon", "inventory", "entity"];

export function emptyQuery() {
  return {
    metric: "", aggregator: "sum", interval: "auto", function: "avg", fill: "", rate: false,
    counter: "", others: [], axis: "left", tags: [],
  };
}

export function emptyState() {
  return {
    view: "graph", start: DEFAULT_START, end: "", refresh: "", table: false, scale: "", queries: [emptyQuery()],
    entity: "", prefix: "", metrics: "", silent: DEFAULT_SILENT, order: "", from: "",
  };
}

/** Return the text of a query's `m` parameter. `interval` replaces an automatic one; "" for none. */
export function expression(query, interval = query.interval) {
  const parts = [query.aggregator];
  if (interval) parts.push(`${interval}-${query.function}${query.fill ? `-${query.fill}` : ""}`);
  if (query.rate) parts.push(`rate${query.counter}`);
  parts.push(...query.others);
  const grouped = query.tags.filter((tag) => tag.name && tag.group);
  const other = query.tags.filter((tag) => tag.name && !tag.group);
  const text = (tags) => `{${tags.map((tag) => `${tag.name}=${tag.value || "*"}`).join(",")}}`;
  let metric = query.metric;
  if (grouped.length || other.length) metric += text(grouped);
  if (other.length) metric += text(other);
  parts.push(metric);
  return parts.join(":");
}

/** Split text at `separator` outside braces and parentheses. */
function split(text, separator) {
  const parts = [""];
  let depth = 0;
  for (const one of text) {
    if (one === "{" || one === "(") depth += 1;
    if (one === "}" || one === ")") depth -= 1;
    if (one === separator && depth <= 0) parts.push("");
    else parts[parts.length - 1] += one;
  }
  return parts;
}

function tagsOf(text, group) {
  return split(text, ",").filter((pair) => pair.includes("=")).map((pair) => {
    const at = pair.indexOf("=");
    return { name: pair.slice(0, at).trim(), value: pair.slice(at + 1).trim(), group };
  });
}

/** Return the query of an `m` parameter and its `o` parameter. */
export function parseExpression(text, options = "") {
  const query = emptyQuery();
  query.interval = "";
  const parts = split(text, ":");
  const last = parts.pop() ?? "";
  query.aggregator = parts.shift() || "sum";
  for (const part of parts) {
    if (part.startsWith("rate")) {
      query.rate = true;
      query.counter = part.includes("counter") ? part.slice("rate".length) : ""; // such as {counter,65535,1000}
    } else if (/^(auto|\d+[a-z]+)-/.test(part)) {
      [query.interval, query.function, query.fill = ""] = part.split("-");
    } else query.others.push(part); // without a field in the form, such as explicit_tags
  }
  const open = last.indexOf("{");
  query.metric = open < 0 ? last : last.slice(0, open);
  if (open >= 0) {
    const groups = last.slice(open).split("}{");
    query.tags = tagsOf(groups[0].replace(/^\{|\}$/g, ""), true);
    if (groups[1] !== undefined) query.tags.push(...tagsOf(groups[1].replace(/\}$/, ""), false));
  }
  query.axis = /x1y2/.test(options) ? "right" : "left";
  return query;
}

/** Return the fragment of the view of entities, or of one. */
function entitiesFragment(state) {
  const found = new URLSearchParams({ view: state.view });
  const fields = state.view === "entity" ? ["entity", "metrics", "start"] : ["prefix", "metrics", "silent", "order", "from"];
  for (const field of fields) {
    if (state[field] && !(field === "silent" && state.silent === DEFAULT_SILENT)) found.set(field, state[field]);
  }
  return `#${found}`;
}

/** Return the fragment of the view of one entity. */
export function entityFragment(entity) {
  return entitiesFragment({ view: "entity", entity });
}

export function toFragment(state) {
  if (state.view === "inventory" || state.view === "entity") return entitiesFragment(state);
  const found = new URLSearchParams();
  if (state.view !== "graph") found.set("view", state.view);
  if (state.view === "graph" && state.queries.some((query) => query.metric)) {
    found.set("start", state.start);
    if (state.end) found.set("end", state.end);
    for (const query of state.queries.filter((one) => one.metric)) {
      found.append("m", expression(query));
      found.append("o", query.axis === "right" ? "axis x1y2" : "");
    }
    if (state.scale === "log") found.set("ylog", "");
    else if (state.scale) found.set("yrange", state.scale);
    if (state.refresh) found.set("autoreload", state.refresh);
    if (state.table) found.set("table", "1");
  }
  return `#${found.toString()}`;
}

export function fromFragment(fragment) {
  const state = emptyState();
  const given = new URLSearchParams(fragment.replace(/^#/, ""));
  state.view = VIEWS.includes(given.get("view")) ? given.get("view") : "graph";
  state.start = given.get("start") || (state.view === "entity" ? DEFAULT_ENTITY_START : DEFAULT_START);
  for (const field of ["entity", "prefix", "metrics", "order", "from"]) state[field] = given.get(field) || "";
  state.silent = given.get("silent") || DEFAULT_SILENT;
  state.end = given.get("end") || "";
  const refresh = given.get("autoreload") || "";
  state.refresh = /^[1-9]\d*$/.test(refresh) && Number(refresh) <= MOST_REFRESH_S ? refresh : "";
  state.table = given.has("table");
  state.scale = given.has("ylog") ? "log" : rangeOf(given.get("yrange") || "") ? given.get("yrange") : "";
  const options = given.getAll("o");
  const queries = given.getAll("m").map((text, at) => parseExpression(text, options[at]));
  if (queries.length) state.queries = queries;
  return state;
}

/** Return the ends of a range of values such as [0:100] or [0:], null for a missing end; null for other text. */
export function rangeOf(text) {
  const ends = /^\[([^:]*):([^:]*)\]$/.exec(text)?.slice(1).map((end) => (end.trim() ? Number(end) : null));
  return ends?.some((end) => end !== null) && !ends.some(Number.isNaN) ? ends : null;
}

const UNITS = { ms: 1, s: 1000, m: 60_000, h: 3_600_000, d: 86_400_000, w: 604_800_000, n: 2_592_000_000, y: 31_536_000_000 };

/** Return a time in Unix milliseconds; null for text that is no time. "" and "now" are now. */
export function parseTime(text, now = Date.now()) {
  const value = text.trim();
  if (!value || value === "now") return now;
  const ago = /^(\d+)(ms|[smhdwny])-ago$/.exec(value);
  if (ago) return now - Number(ago[1]) * UNITS[ago[2]];
  if (/^\d{1,10}$/.test(value)) return Number(value) * 1000;
  if (/^\d{11,13}$/.test(value)) return Number(value);
  const date = /^(\d{4})[/-](\d{1,2})[/-](\d{1,2})(?:[-T ](\d{1,2}):(\d{2})(?::(\d{2}))?)?$/.exec(value);
  if (!date) return null;
  const [year, month, day, hour = 0, minute = 0, second = 0] = date.slice(1).map((part) => (part ? Number(part) : 0));
  const found = new Date(year, month - 1, day, hour, minute, second);
  const isDate = found.getMonth() === month - 1 && found.getDate() === day; // 2026/02/30 would be in March
  return isDate && hour < 24 && minute < 60 && second < 60 ? found.getTime() : null;
}

/** Return a time in the user's time zone, as the page's fields show and take it. */
export function formatTime(ms) {
  const date = new Date(ms);
  const two = (number) => String(number).padStart(2, "0");
  return `${date.getFullYear()}/${two(date.getMonth() + 1)}/${two(date.getDate())}-${two(date.getHours())}:${two(date.getMinutes())}:${two(date.getSeconds())}`;
}

/** Return how long ago a time is: 12 s, 5 min, 3 h, 2 d. */
export function age(ms, now = Date.now()) {
  const seconds = Math.max(0, Math.round((now - ms) / 1000));
  if (seconds < 100) return `${seconds} s`;
  if (seconds < 6000) return `${Math.round(seconds / 60)} min`;
  return seconds < 172_800 ? `${Math.round(seconds / 3600)} h` : `${Math.round(seconds / 86_400)} d`;
}

/** Return the milliseconds of a duration such as 10m; null for text that is none. */
export function durationMs(text) {
  const found = /^(\d+)(ms|[smhdwny])$/.exec(text);
  return found && Number(found[1]) * UNITS[found[2]];
}

/** Return a time as URLs have it: a date as Unix seconds, so that it is the same in every time zone. A date before 1970
 * stays a date. */
export function sharedTime(text) {
  const ms = /^\d{4}[/-]/.test(text.trim()) ? parseTime(text) : null;
  return ms === null || ms < 0 ? text : String(Math.floor(ms / 1000));
}

/** Return a time as fields show it: Unix time as a date. */
export function shownTime(text) {
  return /^\d{9,13}$/.test(text) ? formatTime(parseTime(text)) : text;
}

/** Return the name of the user's time zone and its offset at a time, e.g. Europe/Berlin, UTC+01:00. */
export function zoneName(ms) {
  const minutes = -new Date(ms).getTimezoneOffset();
  const two = (number) => String(Math.floor(number)).padStart(2, "0");
  const offset = minutes ? `UTC${minutes < 0 ? "−" : "+"}${two(Math.abs(minutes) / 60)}:${two(Math.abs(minutes) % 60)}` : "UTC";
  const zone = Intl.DateTimeFormat().resolvedOptions().timeZone;
  return zone && zone !== offset ? `${zone}, ${offset}` : offset;
}

const STEPS_S = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 604800];

/** Return the round time, in seconds, that divides a span into at most `parts` parts. */
function roundStep(spanMs, parts) {
  const least = spanMs / 1000 / parts;
  return STEPS_S.find((one) => one >= least) ?? Math.ceil(least / 604800) * 604800;
}

/** Return the milliseconds between at most `most` labels of an axis of times. */
export function tickStep(spanMs, most) {
  return roundStep(spanMs, most) * 1000;
}

/** Return the interval that gives at most `points` points; "" if that is less than 2 seconds. Days are those of the
 * calendar, unless the user's are the same as UTC's: a multiple of others begins on another day in each series. */
export function automaticInterval(spanMs, points, isUtc) {
  const step = roundStep(spanMs, points);
  if (step < 2) return "";
  if (step >= 86400 && !isUtc) return `1${["d", "w", "n"].find((unit) => UNITS[unit] * points >= spanMs) ?? "y"}c`;
  if (step % 86400 === 0) return `${step / 86400}d`;
  if (step % 3600 === 0) return `${step / 3600}h`;
  return step % 60 === 0 ? `${step / 60}m` : `${step}s`;
}
