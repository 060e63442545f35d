// The graph: by the plotting library, or without it the daemon's own SVG.

import { getBlob } from "./http.js";
import { DAY_MS, extremes, isDrawable, MARGIN, mostTicks, sketch, ticksOfTime } from "./sketch.js";
import { expression, rangeOf } from "./state.js";
import { digits, exactOf, firstOf, number } from "./table.js";

export const MOST_CURVES = 100; // drawn; CSV has all
const MOST_KEYS = 40; // curves in the key of a saved picture
const EXACT_DIGITS = 15; // of a float; further ones are noise
const MARKED_POINTS = 40; // a curve with fewer points has markers,
const MOST_MARKED = 1000; // unless all curves have more points
const COLORS = [
  "#1f77b4", "#e6550d", "#2ca02c", "#d62728", "#9467bd", "#8c564b", "#e377c2", "#17a2b8", "#b5a900", "#5b5bd6",
  "#00876c", "#c2185b", "#6d8b00", "#a05195", "#3d85c6", "#b8621b", "#4f9a94", "#7f7f7f", "#ff9896", "#9c755f",
];
const library = document.querySelector('meta[name="tsd-plotly"]').content;
let loading = null;
let fetching = false;
let picture = ""; // object URL of the shown SVG
let redraw = null; // draws the shown sketch again

export const hasLibrary = Boolean(library);

/** Let the browser fetch the plotting library, without running it. */
export function fetchLibrary() {
  if (!hasLibrary || fetching) return;
  fetching = true;
  const link = document.createElement("link");
  Object.assign(link, { rel: "preload", as: "script", href: library });
  document.head.append(link);
}

/** Return the plotting library. The first call runs its script, which blocks the page for a while. */
export function plotly() {
  loading ??= new Promise((resolve, reject) => {
    const script = document.createElement("script");
    script.src = library;
    script.onload = () => resolve(window.Plotly);
    script.onerror = () => {
      loading = null;
      reject(new Error("The plotting library could not be loaded."));
    };
    document.head.append(script);
  });
  return loading;
}

function color(name) {
  return getComputedStyle(document.documentElement).getPropertyValue(name).trim();
}

function look(at) {
  return { color: COLORS[at % COLORS.length], dash: ["solid", "dash", "dot"][Math.floor(at / COLORS.length) % 3] };
}

/** Return the curves that are drawn: all, or those that the table shows. Each gets its place among them, and whether its
 * points are marked. */
export function drawnOf(curves) {
  const drawn = curves.length > MOST_CURVES ? firstOf(curves, MOST_CURVES) : curves;
  const points = drawn.reduce((sum, curve) => sum + curve.points.length, 0);
  drawn.forEach((curve, at) => {
    curve.place = at;
    curve.marked = curve.points.length < (points > MOST_MARKED ? 2 : MARKED_POINTS); // one point makes no line
  });
  return drawn;
}

/** Return whether a curve has values that are not drawn. */
export function hasUndrawn(curve) {
  return curve.points.some((point) => typeof point[1] === "number" && !isDrawable(point[1]));
}

/** Return whether a curve has values that its axis lacks, because it is logarithmic. `scale` is that of the left axis. */
export function isBelowLog(curve, scale) {
  return scale === "log" && curve.axis !== "right" && curve.points.some((point) => typeof point[1] === "number" && point[1] <= 0);
}

/** Return the format of a curve's values when hovering: integers have all digits, as in the tables. */
function valueFormat(curve) {
  const values = curve.points.map((point) => point[1]).filter(isDrawable);
  if (values.every(Number.isInteger)) return ",d";
  const size = values.reduce((most, value) => Math.max(most, Math.abs(value)), 0);
  return `,.${Math.min(digits(size), EXACT_DIGITS)}~g`;
}

const hidden = new Set(); // names of curves that are not drawn

/** Return how times of a range are given to the library, which shows them in the user's time zone: `to` and `from`
 * convert them. If the zone's offset changes in the range, an axis of local times would repeat or skip an hour. Such an
 * axis gets times of the first offset, and `labels` of its own. In longer ranges an hour is not seen. */
function clockOf(range) {
  const [first, last] = range.map((ms) => new Date(ms).getTimezoneOffset() * 60_000);
  const labels = ticksOfTime(range);
  if (first === last || labels.step >= DAY_MS) return { to: (ms) => new Date(ms), from: (text) => new Date(text).getTime(), labels: null };
  const from = (text) => Date.parse(text.includes(" ") ? `${text.replace(" ", "T")}Z` : text) + first;
  return { to: (ms) => new Date(ms - first).toISOString().slice(0, -1), from, labels };
}

const zoned = new Intl.DateTimeFormat("en", { dateStyle: "medium", timeStyle: "long", hourCycle: "h23" });

/** Return what hovering shows of a curve. */
function hoverOf(curve, clock) {
  const value = curve.hasLong ? "%{customdata}" : `%{y:${valueFormat(curve)}}`;
  return {
    ...(curve.hasLong ? { customdata: curve.points.map((point) => number(exactOf(point))) } : {}),
    ...(clock.labels ? { text: curve.points.map((point) => zoned.format(point[0])) } : {}),
    hovertemplate: clock.labels ? `%{text}<br>${value}` : value,
  };
}

function traces(curves, clock) {
  return curves.map((curve) => ({
    x: curve.points.map((point) => clock.to(point[0])),
    y: curve.points.map((point) => (isDrawable(point[1]) ? point[1] : null)),
    name: verbatim(curve.name),
    visible: !hidden.has(curve.name),
    yaxis: curve.axis === "right" ? "y2" : "y",
    mode: curve.marked ? "lines+markers" : "lines",
    line: { ...look(curve.place), width: 1.4 },
    marker: { size: 4 },
    ...hoverOf(curve, clock),
  }));
}

/** Return the entry of a curve in the key: a button that hides and shows the curve. */
export function keyEntry(box, curve) {
  if (!hasLibrary) return curve.name;
  const button = document.createElement("button");
  button.type = "button";
  button.className = "key";
  const swatch = document.createElement("i");
  const { color: own, dash } = look(curve.place);
  swatch.style.borderTop = `3px ${{ solid: "solid", dash: "dashed", dot: "dotted" }[dash]} ${own}`;
  button.append(swatch, curve.name);
  button.title = "Hide or show this curve";
  button.dataset.key = `curve ${curve.name}`; // for `replace`
  button.setAttribute("aria-pressed", String(!hidden.has(curve.name)));
  button.addEventListener("click", async () => {
    if (!hidden.delete(curve.name)) hidden.add(curve.name);
    button.setAttribute("aria-pressed", String(!hidden.has(curve.name)));
    if (box.data) (await plotly()).restyle(box, { visible: !hidden.has(curve.name) }, [curve.place]);
    else redraw?.();
  });
  return button;
}

/** Return text as the plotting library shows it as it is: it would read tags and entities of HTML. */
function verbatim(text) {
  return text.replaceAll("&", "&amp;").replaceAll("<", "&lt;").replaceAll(">", "&gt;").replaceAll("\n", "<br>");
}

/** Return the title of an axis: its metrics. */
function axisTitle(curves, axis) {
  const names = [...new Set(curves.filter((curve) => (curve.axis ?? "left") === axis).map((curve) => curve.metric))];
  const text = names.slice(0, 3).join(", ") + (names.length > 3 ? ", …" : "");
  return text.length > 60 ? `${text.slice(0, 59)}…` : text;
}

function shownTitle(curves, axis) {
  return { text: verbatim(axisTitle(curves, axis)), standoff: 8 };
}

/** Return the scale of the left axis: "log", or a range such as [0:], whose missing end fits the curves. */
function scaled(scale, curves) {
  if (scale === "log") return { type: "log" };
  const range = rangeOf(scale);
  if (!range) return { type: "linear" };
  const found = extremes(curves.filter((one) => one.axis !== "right"));
  if (found === null) return { type: "linear" };
  const [low, high] = [range[0] ?? found[0], range[1] ?? found[1]];
  const room = (high - low) / 20;
  return { type: "linear", range: [range[0] ?? low - room, range[1] ?? high + room] };
}

function graphHeight() {
  return Math.round(Math.max(320, Math.min(560, window.innerHeight * 0.55)));
}

function layout(curves, annotations, range, scale, clock) {
  const axis = { gridcolor: color("--line"), zerolinecolor: color("--line"), exponentformat: "SI", separatethousands: true, automargin: true };
  const found = {
    height: graphHeight(),
    margin: MARGIN,
    paper_bgcolor: color("--back"),
    plot_bgcolor: color("--back"),
    font: { color: color("--text"), size: 12 },
    xaxis: { ...axis, type: "date", range: range.map(clock.to), tickangle: 0, nticks: mostTicks() },
    yaxis: { ...axis, ...scaled(scale, curves), title: shownTitle(curves, "left"), showticklabels: curves.length > 0 },
    hovermode: curves.length <= 20 && !clock.labels ? "x unified" : "closest",
    hoverlabel: { namelength: 60, bgcolor: color("--panel"), font: { color: color("--text") } },
    dragmode: "zoom",
    showlegend: false, // the table of curves is the key
    shapes: annotations.map((one) => ({
      type: "line", xref: "x", yref: "paper", x0: clock.to(one.time), x1: clock.to(one.time), y0: 0, y1: 1,
      line: { color: color("--bad"), width: 1, dash: "dot" },
    })),
    annotations: annotations.map((one) => ({
      x: clock.to(one.time), yref: "paper", y: 1, text: "▼", showarrow: false, hovertext: verbatim(one.text),
      font: { color: color("--bad") },
    })),
  };
  if (clock.labels) {
    const { times, texts } = clock.labels;
    Object.assign(found.xaxis, { tickmode: "array", tickvals: times.map(clock.to), ticktext: texts.map((lines) => lines.join("<br>")) });
  }
  if (curves.some((curve) => curve.axis === "right")) {
    const title = shownTitle(curves, "right");
    found.yaxis2 = { ...axis, title, overlaying: "y", side: "right", showgrid: false, tickmode: "auto" };
  }
  return found;
}

/** Draw curves without the plotting library, unless it has started. Return whether they were drawn. */
export function drawFirst(box, curves, annotations, range, scale) {
  if (window.Plotly) return false;
  const looks = curves.map((curve) => ({ ...curve, look: look(curve.place) }));
  redraw = () => sketch(box, looks.filter((curve) => !hidden.has(curve.name)), {
    range,
    marks: annotations.map((one) => one.time),
    axes: {
      left: { ...scaled(scale, curves), title: axisTitle(curves, "left") },
      right: { type: "linear", title: axisTitle(curves, "right") },
    },
    colors: { text: color("--text"), line: color("--line"), mark: color("--bad"), back: color("--back") },
    height: graphHeight(),
    label: `Graph of ${[...new Set(curves.map((curve) => curve.metric))].join(", ")}`,
  });
  redraw();
  box.classList.add("sketch");
  return true;
}

/** Draw curves, each {name, metric, axis, place, marked, hasLong, points: [[ms, value], …]}. `scale` is that of the left axis. `zoomed` is called with a new range in ms. */
export async function draw(box, curves, annotations, range, scale, zoomed) {
  const drawing = await plotly();
  redraw = null;
  if (!box.data) box.replaceChildren(); // a sketch
  box.classList.remove("sketch");
  const clock = clockOf(range);
  const config = { responsive: true, displaylogo: false, displayModeBar: false, doubleClick: false };
  await drawing.react(box, traces(curves, clock), layout(curves, annotations, range, scale, clock), config);
  box.removeAllListeners("plotly_relayout");
  box.removeAllListeners("plotly_doubleclick");
  box.on("plotly_relayout", (change) => {
    const [from, to] = [change["xaxis.range[0]"], change["xaxis.range[1]"]];
    if (from !== undefined) zoomed([clock.from(from), clock.from(to)]);
  });
  box.on("plotly_doubleclick", () => zoomed(null));
}

/** Return the parameters of the daemon's own pictures. */
function pictureParameters(state, range, width, intervals) {
  const tz = Intl.DateTimeFormat().resolvedOptions().timeZone;
  const given = new URLSearchParams({ start: String(range[0]), end: String(range[1]), tz, wxh: `${Math.max(400, width)}x450` });
  if (state.scale === "log") given.set("ylog", "");
  else if (state.scale) given.set("yrange", state.scale);
  state.queries.forEach((query, at) => {
    given.append("m", expression(query, intervals[at]));
    given.append("o", query.axis === "right" ? "axis x1y2" : "");
  });
  return given;
}

/** Remove the graph. */
export async function clear(box) {
  if (box.data) (await plotly()).purge(box);
  if (picture) URL.revokeObjectURL(picture);
  picture = "";
  redraw = null;
  box.classList.remove("sketch");
  box.replaceChildren();
}

/** Return the daemon's own picture. One that does not know the user's time zone shows times of its own. */
async function fetchPicture(given, kind, options) {
  try {
    return await getBlob(`/q?${given}&${kind}`, options);
  } catch (error) {
    if (error.status !== 400) throw error;
    given.delete("tz");
    return getBlob(`/q?${given}&${kind}`, options);
  }
}

/** Show the daemon's own SVG. */
export async function drawPicture(box, state, range, intervals, signal) {
  const given = pictureParameters(state, range, Math.round(box.clientWidth), intervals);
  const blob = await fetchPicture(given, "svg", { signal });
  if (picture) URL.revokeObjectURL(picture);
  picture = URL.createObjectURL(blob);
  const image = new Image();
  image.alt = `Graph of ${state.queries.map((query) => query.metric).join(", ")}`;
  image.src = picture;
  box.replaceChildren(image);
}

/** Return the graph as a PNG. */
export async function png(box, state, range, intervals) {
  if (!box.data) return fetchPicture(pictureParameters(state, range, Math.round(box.clientWidth), intervals), "png");
  const drawing = await plotly();
  // a picture has no table beneath it: it has a key of its own, a line a curve
  const key = 20 * Math.min(box.data.length, MOST_KEYS);
  const height = box.clientHeight + key + 30;
  const legend = { orientation: "v", x: 0, y: -60 / box.clientHeight, yanchor: "top" };
  const figure = {
    data: box.data.map((one, at) => ({ ...one, showlegend: at < MOST_KEYS })),
    layout: { ...box.layout, height, legend, showlegend: true, margin: { ...box.layout.margin, b: key + 70 } },
  };
  const text = await drawing.toImage(figure, { format: "png", width: box.clientWidth, height, scale: 2 });
  const bytes = Uint8Array.from(atob(text.slice(text.indexOf(",") + 1)), (one) => one.charCodeAt(0));
  return new Blob([bytes], { type: "image/png" });
}
