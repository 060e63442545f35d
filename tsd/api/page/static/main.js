// The page: it shows what the URL's fragment says, and writes every change to it.

import { annotationsOf, curvesOf, queriesOfMovedPoints } from "./curves.js";
import * as entity from "./entity.js";
import { queryForm } from "./form.js";
import { clear, draw, drawFirst, drawnOf, drawPicture, fetchLibrary, hasLibrary, hasUndrawn, isBelowLog, keyEntry, MOST_CURVES, plotly, png } from "./graph.js";
import { credential, getJson, RequestError, setCredential } from "./http.js";
import * as inventory from "./inventory.js";
import { askPoints } from "./request.js";
import { automaticInterval, DEFAULT_START, emptyQuery, formatTime, fromFragment, parseTime, sharedTime, shownTime, toFragment, zoneName } from "./state.js";
import * as status from "./status.js";
import { complete, metricsLike } from "./suggest.js";
import { csv, curveTable, orderOf, pointTable } from "./table.js";
import { replace, whenVisible } from "./views.js";

const MOST_POINTS = 1500; // of a curve
const RETRY_MS = 5000;
const FIRST_MS = 0; // of ranges: queries take no negative times
const $ = (id) => document.getElementById(id);

let state = fromFragment(location.hash);
let access = { name: "", roles: [], sign_in: false, entities: null, aggregators: ["sum", "avg", "min", "max", "count"] };
let shown = null; // { curves, drawn, annotations, queries, range, intervals, scale, at } of the last answer that was drawn
let running = null; // AbortController
let refreshing = 0; // timers
let beginning = 0;

function say(text, isError = false) {
  const box = $("message");
  box.hidden = !text;
  box.textContent = text ?? "";
  box.classList.toggle("error", isError);
}

// ---- state and URL

const refreshed = { daemon: status, inventory, entity }; // views that refresh themselves

/** Write the state to the URL. `replace`: without an entry in the history. */
function remember(replace = false) {
  const fragment = toFragment(state);
  if (fragment === (location.hash || "#")) return;
  if (replace) history.replaceState(history.state, "", fragment);
  else history.pushState({ hasBefore: true }, "", fragment);
  keepLink();
}

function changed() {
  remember();
  if (state.queries.some((query) => query.metric)) show();
  else showNothing();
}

/** Show that no metric is chosen. What was shown before goes. */
function showNothing() {
  running?.abort();
  running = shown = null;
  clearTimeout(refreshing);
  clear($("graph"));
  $("graph").classList.remove("busy", "stale");
  $("below").hidden = $("table").hidden = true;
  $("curves").replaceChildren();
  document.title = "OpenTSDB";
  say("Choose a metric, or send points first: the daemon takes lines such as “put sys.cpu.user 1700000000 42.5 host=web01” on this port.");
}

function showForms() {
  const list = $("queries");
  list.replaceChildren(...state.queries.map((query) => queryForm(query, access.aggregators, changed, () => {
    state.queries.splice(state.queries.indexOf(query), 1);
    if (!state.queries.length) state.queries.push(emptyQuery());
    showForms();
    changed();
  })));
}

function showRange() {
  const last = $("last");
  const isLast = !state.end && [...last.options].some((option) => option.value && option.value === state.start);
  last.value = isLast ? state.start : "";
  for (const label of document.querySelectorAll("#range .fixed")) label.hidden = isLast;
  $("start").value = shownTime(state.start);
  $("end").value = shownTime(state.end);
  $("zone").textContent = zoneName(parseTime(state.start) ?? Date.now());
  choose($("scale"), state.scale);
  choose($("refresh"), state.refresh);
}

/** Show the state that the URL has. */
function load() {
  state = fromFragment(location.hash);
  const tab = state.view === "entity" ? "inventory" : state.view;
  for (const view of document.querySelectorAll("main > section")) view.hidden = view.id !== `${state.view}-view`;
  for (const link of document.querySelectorAll("nav a")) {
    if (link.id === `view-${tab}`) link.setAttribute("aria-current", "page");
    else link.removeAttribute("aria-current");
  }
  $("view-inventory").hidden = access.entities === null && tab !== "inventory";
  say("");
  for (const view of Object.values(refreshed)) view.stop();
  if (state.view !== "graph") showRefreshed();
  else showGraph();
}

function showGraph() {
  $("graph").before($("message"));
  if (state.queries.some((query) => query.metric)) show(); // asks for the points before the forms ask for names
  else showNothing();
  showForms();
  showRange();
  keepLink();
}

/** Show a view that refreshes itself. */
function showRefreshed() {
  running?.abort(); // its answer, or its error, is not of this view
  running = null;
  clearTimeout(refreshing);
  const box = $(`${state.view}-content`);
  box.before($("message"));
  for (const input of document.querySelectorAll(`#${state.view}-view [data-field]`)) choose(input, state[input.dataset.field]);
  if (box.dataset.of !== state.entity) box.replaceChildren(); // of another entity
  box.dataset.of = state.entity;
  box.classList.add("busy");
  keepLink();
  document.title = `${state.entity || { daemon: "Daemon", inventory: "Inventory" }[state.view]} – tsd`;
  refreshed[state.view].start(box, { state, access, go, edit: editMetadata, failed }, failed);
}

/** Change fields of the state, and show it. */
function go(fields) {
  Object.assign(state, fields);
  remember();
  load();
}

/** Let the tabs of the graph and of the inventory lead back to what they showed. */
function keepLink() {
  const link = $(`view-${state.view}`);
  if (link) link.href = location.hash || "#";
}

function failed(error) {
  if (error === null) return say("");
  say(error.message, true);
  if (error.status === 401) askToSignIn();
  return undefined;
}

// ---- the graph

function range() {
  const now = Date.now();
  const from = parseTime(state.start, now);
  const to = parseTime(state.end, now);
  if (from === null || to === null) throw new RequestError(400, `${from === null ? state.start : state.end} is no time. Wanted: 2026/11/23-10:00, Unix seconds, or 2h-ago.`);
  const first = Math.max(from, FIRST_MS);
  if (first >= to) throw new RequestError(400, `The range starts at ${formatTime(first)} and ends at ${formatTime(to)}: its start must be earlier.`);
  return [first, to];
}

/** Return why an answer has no curves. */
function reasonOfNothing(queries) {
  const literal = queries.flatMap((query) => query.tags).find((tag) => /^[^()]*\|[^()]*$/.test(tag.value) && tag.value.includes("*"));
  if (!literal) return "There are no points in this range.";
  const expression = literal.value.split("|").map((one) => one.replace(/[.+?^$[\]\\]/g, "\\$&").replaceAll("*", ".*")).join("|");
  return `There are no points in this range. In “${literal.value}” a * is no wildcard, since names in a list are taken as they are. Wanted: regexp(^(${expression})$).`;
}

/** Wait until the browser has painted what was changed. A tab in the background paints nothing. */
function painted() {
  return document.hidden ? null : new Promise((resolve) => requestAnimationFrame(() => setTimeout(resolve)));
}

/** Ask for the points and draw them. Only the last call of several counts. */
async function show() {
  clearTimeout(refreshing);
  running?.abort();
  const mine = new AbortController();
  running = mine;
  const box = $("graph");
  const queries = state.queries.filter((query) => query.metric);
  let isDrawn = false;
  let isRefused = false;
  box.classList.add("busy");
  box.classList.remove("sketch"); // what is drawn is not yet of this call: it is dimmed
  try {
    const span = range();
    const points = Math.min(MOST_POINTS, Math.max(200, Math.round(box.clientWidth)));
    const automatic = automaticInterval(span[1] - span[0], points, Intl.DateTimeFormat().resolvedOptions().timeZone === "UTC");
    const intervals = queries.map((query) => (query.interval === "auto" ? automatic : query.interval));
    const begun = performance.now();
    const ask = () => askPoints(queries, intervals, span, mine.signal);
    const asked = ask();
    fetchLibrary();
    let answer = await asked;
    const moved = queriesOfMovedPoints(answer, queries, intervals);
    if (moved.length) {
      for (const at of moved) intervals[at] = "";
      answer = await ask();
    }
    if (running !== mine) return;
    const curves = curvesOf(answer, queries);
    const drawn = drawnOf(curves);
    const annotations = annotationsOf(answer);
    const isFirst = hasLibrary && drawFirst(box, drawn, annotations, span, state.scale);
    if (!hasLibrary) await drawPicture(box, { queries, scale: state.scale }, span, intervals, mine.signal);
    else if (!isFirst) await draw(box, drawn, annotations, span, state.scale, zoomed);
    if (running !== mine) return; // a later call began while this one drew
    isDrawn = true;
    shown = { curves, drawn, annotations, queries: structuredClone(queries), range: span, intervals, scale: state.scale, at: formatTime(Date.now()) };
    box.classList.remove("stale");
    document.title = [...new Set(queries.map((query) => query.metric))].join(", ");
    summarise(performance.now() - begun);
    if (!isFirst) return;
    await painted();
    await plotly();
    if (running === mine) await drawShown();
  } catch (error) {
    if (error.name === "AbortError" || running !== mine) return;
    const told = error instanceof RequestError ? error : new RequestError(0, error.message);
    isRefused = told.status === 401; // a refresh would ask again to sign in
    if (shown && !isDrawn) {
      box.classList.add("stale");
      told.message += ` Below is the answer of ${shown.at}.`;
    }
    failed(told);
  } finally {
    if (running === mine) {
      box.classList.remove("busy");
      if (state.refresh && !isRefused) refreshing = setTimeout(() => whenVisible(show), Number(state.refresh) * 1000);
    }
  }
}

function drawShown() {
  const { drawn, annotations, range: span, scale } = shown;
  return draw($("graph"), drawn, annotations, span, scale, zoomed);
}

/** Show the table of the curves in the chosen order. If not all are drawn, draw the first ones of it. */
async function sortCurves() {
  shown.drawn = drawnOf(shown.curves);
  showCurves();
  if (shown.drawn === shown.curves || !hasLibrary) return;
  showTable();
  say(drawnText());
  try {
    if (!drawFirst($("graph"), shown.drawn, shown.annotations, shown.range, shown.scale)) await drawShown();
  } catch (error) {
    failed(error);
  }
}

/** Return which of many curves are drawn. */
function drawnText() {
  const { way, name } = orderOf(shown.curves, MOST_CURVES);
  const which = `those with the ${way === "descending" ? "largest" : "smallest"} ${name}`;
  return `${shown.drawn.length} of ${shown.curves.length.toLocaleString("en")} curves are drawn: ${which}. For others press a head of the table, or filter by a tag. CSV has all.`;
}

function showCurves() {
  const { curves } = shown;
  if (curves.length) replace($("curves"), [curveTable(curves, MOST_CURVES, (curve) => keyEntry($("graph"), curve), sortCurves)]);
  else $("curves").replaceChildren();
}

/** Tell what the graph lacks. */
function tell() {
  const { curves, drawn, scale } = shown;
  if (!curves.length) say(reasonOfNothing(shown.queries));
  else if (drawn !== curves && hasLibrary) say(drawnText());
  else if (hasLibrary && curves.some(hasUndrawn)) say("Values above 1e300 or below -1e300 are not drawn. CSV has all.");
  else if (curves.some((curve) => isBelowLog(curve, scale))) say("A logarithmic axis has no place for values of 0 or less. CSV has all.");
  else say("");
}

function summarise(took) {
  const { curves } = shown;
  const points = curves.reduce((sum, curve) => sum + curve.points.length, 0);
  const curveCount = curves.length === 1 ? "1 curve" : `${curves.length.toLocaleString("en")} curves`;
  $("summary").textContent = `${curveCount}, ${points.toLocaleString("en")} points, ${Math.round(took).toLocaleString("en")} ms`;
  $("below").hidden = false;
  $("annotate").hidden = !access.roles.includes("write");
  showCurves();
  showTable();
  tell();
}

function showTable() {
  $("table").hidden = !state.table;
  $("points").setAttribute("aria-expanded", String(state.table));
  replace($("table"), state.table && shown ? [pointTable(shown.drawn)] : []);
}

/** Show a range. Times that were not typed are Unix seconds: at the end of summer time a date may be two times. */
function setRange(start, end) {
  state.start = sharedTime(start);
  state.end = sharedTime(end);
  showRange();
  changed();
}

/** Show a range that was dragged; null: the range before. */
function zoomed(span) {
  if (span === null) {
    if (history.state?.hasBefore) history.back(); // else it would leave the page
  } else setRange(String(Math.floor(span[0] / 1000)), String(Math.ceil(span[1] / 1000)));
}

function move(by, scale = 1) {
  try {
    const [from, to] = range();
    const [middle, half] = [(from + to) / 2 + by * (to - from), ((to - from) / 2) * scale];
    const last = Date.now();
    const start = Math.max(Math.min(middle + half, last) - 2 * half, FIRST_MS);
    zoomed([start, Math.min(start + 2 * half, last)]);
  } catch (error) {
    failed(error);
  }
}

// ---- files, links, annotations

function save(blob, name) {
  const link = document.createElement("a");
  link.href = URL.createObjectURL(blob);
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

function fileName(ending) {
  return `${shown.queries[0].metric.replace(/[^\p{L}\p{M}\p{N}_.-]/gu, "_")}.${ending}`;
}

async function copyLink() {
  const link = location.href;
  try {
    await navigator.clipboard.writeText(link);
    say("The link is copied.");
  } catch {
    say(`The link: ${link}`);
  }
}

/** Show a dialog; return whether it was confirmed. */
function confirmed(dialog) {
  return new Promise((resolve) => {
    dialog.addEventListener("close", () => resolve(dialog.returnValue === "ok"), { once: true });
    dialog.returnValue = "cancel";
    dialog.showModal();
  });
}

async function annotate() {
  $("annotation-time").value = formatTime(Date.now());
  $("annotation-text").value = "";
  if (!(await confirmed($("annotation")))) return;
  try {
    const time = parseTime($("annotation-time").value);
    if (time === null) throw new RequestError(400, `${$("annotation-time").value} is no time.`);
    const body = { startTime: Math.floor(time / 1000), description: $("annotation-text").value };
    await getJson("/api/annotation", { method: "POST", body });
    await show();
  } catch (error) {
    failed(error);
  }
}

/** Ask for a key and a value of the metadata of the shown entity. */
async function editMetadata(key, value) {
  const { entity: name } = state;
  $("metadata-key").value = key;
  $("metadata-key").readOnly = Boolean(key);
  $("metadata-value").value = value;
  const saved = confirmed($("metadata"));
  if (key) $("metadata-value").focus();
  if (!(await saved)) return;
  try {
    const body = { [$("metadata-key").value.trim()]: $("metadata-value").value };
    await getJson(`/api/entity/${encodeURIComponent(name)}`, { method: "POST", body });
    load();
  } catch (error) {
    failed(error);
  }
}

// ---- sign-in

function showUser() {
  $("sign").hidden = !access.sign_in;
  $("sign").textContent = credential() ? "Sign out" : "Sign in";
  $("who").textContent = access.name;
}

async function signIn(reason = "") {
  if ($("sign-in").open) return;
  $("sign-in-reason").textContent = reason;
  $("sign-in-reason").hidden = !reason;
  $("credential").value = "";
  if (!(await confirmed($("sign-in")))) return;
  setCredential($("credential").value.trim());
  $("credential").value = "";
  await begin();
}

/** Show that the daemon wants credentials, or others. It may want them since the page was loaded. */
function askToSignIn() {
  const given = credential();
  setCredential("");
  access = { ...access, name: "", roles: [], sign_in: true, entities: null };
  showUser();
  return signIn(given ? "These credentials are not valid." : "");
}

async function sign() {
  if (!credential()) return signIn();
  setCredential("");
  return begin();
}

// ---- start

/** Set an input; a choice that a list lacks is added to it. */
function choose(input, value) {
  if (input.options && ![...input.options].some((option) => option.value === value)) input.append(new Option(value, value));
  input.value = value;
}

const themes = ["", "dark", "light"];

function setTheme(theme) {
  const text = { dark: "Colours: dark", light: "Colours: light" }[theme] ?? "Colours: as the system";
  $("theme").setAttribute("aria-label", text);
  $("theme").title = text;
  if (theme) document.documentElement.dataset.theme = theme;
  else delete document.documentElement.dataset.theme;
}

function bind() {
  $("run").addEventListener("click", () => changed());
  $("add").addEventListener("click", () => {
    state.queries.push(emptyQuery());
    showForms();
    $("queries").lastElementChild.querySelector(".metric").focus();
  });
  $("last").addEventListener("change", () => {
    if ($("last").value) setRange($("last").value, "");
    else {
      const [from, to] = [parseTime(state.start) ?? parseTime(DEFAULT_START), parseTime(state.end) ?? Date.now()];
      zoomed([from, to]);
    }
  });
  $("start").addEventListener("change", () => setRange($("start").value.trim() || DEFAULT_START, state.end));
  $("end").addEventListener("change", () => setRange(state.start, $("end").value.trim()));
  $("refresh").addEventListener("change", () => {
    state.refresh = $("refresh").value;
    changed();
  });
  $("scale").addEventListener("change", () => {
    state.scale = $("scale").value;
    changed();
  });
  $("earlier").addEventListener("click", () => move(-0.5));
  $("later").addEventListener("click", () => move(0.5));
  $("out").addEventListener("click", () => move(0, 2));
  $("points").addEventListener("click", () => {
    state.table = !state.table;
    remember(true);
    showTable();
  });
  $("csv").addEventListener("click", () => save(new Blob([csv(shown.curves)], { type: "text/csv" }), fileName("csv")));
  $("png").addEventListener("click", async () => {
    try {
      save(await png($("graph"), { queries: shown.queries, scale: shown.scale }, shown.range, shown.intervals), fileName("png"));
    } catch (error) {
      failed(error);
    }
  });
  $("copy").addEventListener("click", copyLink);
  $("annotate").addEventListener("click", annotate);
  $("sign").addEventListener("click", sign);
  $("theme").addEventListener("click", () => {
    const next = themes[(themes.indexOf(localStorage.getItem("tsd-theme") ?? "") + 1) % themes.length];
    localStorage.setItem("tsd-theme", next);
    setTheme(next);
    if (shown && state.view === "graph") show();
  });
  for (const input of document.querySelectorAll("[data-field]")) {
    input.addEventListener("change", () => go({ [input.dataset.field]: input.value.trim(), from: "" }));
    if (input.dataset.field === "metrics") complete(input, metricsLike);
  }
  for (const button of document.querySelectorAll("dialog .cancel")) {
    button.addEventListener("click", () => button.closest("dialog").close("cancel"));
  }
  matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => {
    if (shown && state.view === "graph") show();
  });
  window.addEventListener("popstate", load);
}

/** Show what the URL says once it is known who the user is. While the daemon does not answer, ask again. */
async function begin() {
  clearTimeout(beginning);
  try {
    access = await getJson("/ui/access");
    showUser();
    if (!access.roles.length) throw new RequestError(access.name ? 403 : 401, access.name ? "You may not see this." : "Sign in to see this.");
  } catch (error) {
    failed(error);
    if (!error.status || error.status >= 500) beginning = setTimeout(begin, RETRY_MS);
    return;
  }
  load();
}

setTheme(localStorage.getItem("tsd-theme") ?? "");
bind();
if (state.view === "graph" && state.queries.some((query) => query.metric)) fetchLibrary();
begin();
