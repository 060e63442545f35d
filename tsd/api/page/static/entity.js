// One entity, such as a host: its metadata, and all its series with their newest values and small graphs.

import { getJson } from "./http.js";
import { age, durationMs, emptyQuery, emptyState, formatTime, parseTime, toFragment } from "./state.js";
import { number, tableOf } from "./table.js";
import { act, button, count, element, link, refreshedView, section } from "./views.js";

const REFRESH_MS = 30_000;
const MOST_SERIES = 500;
const WIDTH = 220; // of a small graph, in pixels
const HEIGHT = 30;
const GAP = 4; // so many usual distances of points interrupt a curve
const SVG = "http://www.w3.org/2000/svg";

function keyOf(one) {
  return JSON.stringify([one.metric, Object.entries(one.tags).sort()]);
}

/** Return all series by metric and tags: those with points in the range, and those with a newest value. */
function merged(entity, newest, from) {
  const found = new Map(entity.series.map((one) => [keyOf(one), { ...one, points: Object.entries(one.dps).map(([time, value]) => [Number(time), Number(value), value]) }]));
  for (const one of newest) {
    const key = keyOf(one);
    if (!found.has(key)) found.set(key, { ...one, points: [] });
    const { points } = found.get(key);
    found.get(key).last = [one.timestamp, one.value];
    if (one.timestamp >= from && one.timestamp > (points.at(-1)?.[0] ?? 0)) points.push([one.timestamp, Number(one.value), one.value]);
  }
  for (const one of found.values()) one.last ??= one.points.at(-1) && [one.points.at(-1)[0], one.points.at(-1)[2]];
  return [...found.values()].sort((a, b) => (a.metric < b.metric ? -1 : a.metric > b.metric ? 1 : keyOf(a) < keyOf(b) ? -1 : 1));
}

/** Return the usual distance of points, in ms. */
function distance(points) {
  const all = points.slice(1).map((point, at) => point[0] - points[at][0]).sort((a, b) => a - b);
  return all[Math.floor(all.length / 2)] ?? 0;
}

/** Return the path of a curve: the least and the largest value of each pixel, and no line across gaps. */
function curve(points, [from, to], [least, most]) {
  const x = (time) => Math.round(((time - from) / (to - from)) * (WIDTH - 2)) + 1;
  const y = (value) => (HEIGHT - 2 - ((value - least) / (most - least || 1)) * (HEIGHT - 4)).toFixed(1);
  const gap = GAP * distance(points);
  const parts = [];
  for (let at = 0; at < points.length;) {
    const column = x(points[at][0]);
    const isBroken = !at || points[at][0] - points[at - 1][0] > gap;
    let [low, high] = [points[at][1], points[at][1]];
    for (; at < points.length && x(points[at][0]) === column; at += 1) {
      low = Math.min(low, points[at][1]);
      high = Math.max(high, points[at][1]);
    }
    parts.push(`${isBroken ? "M" : "L"}${column} ${y(low)}L${column} ${y(high)}`);
  }
  return parts.join("");
}

/** Return a small graph of points. */
function sparkline(points, span, [least, most]) {
  const picture = document.createElementNS(SVG, "svg");
  const attributes = { class: "sparkline", width: WIDTH, height: HEIGHT, viewBox: `0 0 ${WIDTH} ${HEIGHT}`, preserveAspectRatio: "none", role: "img", "aria-label": `${points.length} points from ${number(least)} to ${number(most)}` };
  for (const [name, value] of Object.entries(attributes)) picture.setAttribute(name, value);
  const line = document.createElementNS(SVG, "path");
  line.setAttribute("d", curve(points, span, [least, most]));
  picture.append(line);
  return picture;
}

function extremes(values) {
  return values.reduce(([least, most], value) => [Math.min(least, value), Math.max(most, value)], [Infinity, -Infinity]);
}

/** Return the fragment of the graph of a series. */
function graphFragment(one, state, tag) {
  const tags = Object.entries({ [tag]: state.entity, ...one.tags }).map(([name, value]) => ({ name, value, group: true }));
  return toFragment({ ...emptyState(), start: state.start, queries: [{ ...emptyQuery(), metric: one.metric, tags }] });
}

function seriesRow(one, state, span, tag) {
  const tags = Object.entries(one.tags).map(([name, value]) => `${name}=${value}`).join(" ");
  const name = element("span", "");
  const to = link(one.metric, graphFragment(one, state, tag));
  to.title = "Show the graph";
  name.append(to, tags ? ` ${tags}` : "");
  const bounds = extremes(one.points.map((point) => point[1]));
  const some = one.points.length > 0;
  return [
    name, some ? sparkline(one.points, span, bounds) : element("span", "no points in this range", "small"),
    number(one.last?.[1]), one.last ? `${age(one.last[0])} ago` : "", some ? number(bounds[0]) : "", some ? number(bounds[1]) : "",
  ];
}

function headSection(state, last) {
  const head = element("h2", state.entity);
  const isSilent = last && Date.now() - last > (durationMs(state.silent) ?? 0);
  const text = last ? `${isSilent ? "Silent" : "Reports"}: newest value ${age(last)} ago, ${formatTime(last)}` : "No value is known.";
  const found = document.createElement("section");
  found.append(head, element("p", text, isSilent || !last ? "bad" : "good"));
  return found;
}

function metadataSection(metadata, { state, access, edit, failed }, again) {
  const mayWrite = access.roles.includes("write");
  const entity = encodeURIComponent(state.entity);
  const rows = Object.entries(metadata).sort().map(([key, value]) => {
    const remove = button("✕", `delete ${key}`, () => {
      remove.disabled = true;
      return act(getJson(`/api/entity/${entity}?keys=${encodeURIComponent(key)}`, { method: "DELETE" }), again, failed);
    });
    remove.setAttribute("aria-label", `Delete ${key}`);
    const change = button("Edit", `edit ${key}`, () => edit(key, value));
    change.setAttribute("aria-label", `Edit ${key}`);
    const buttons = element("span", "", "bar tight");
    buttons.append(change, remove);
    return mayWrite ? [key, value, buttons] : [key, value];
  });
  const add = mayWrite ? button("Add metadata", "add metadata", () => edit("", "")) : "";
  const bar = element("p", rows.length ? "" : "None.", "bar");
  bar.append(add);
  return section("Metadata", ...(rows.length ? [tableOf(mayWrite ? ["Key", "Value", ""] : ["Key", "Value"], rows, [0, 1])] : []), bar);
}

async function content(given, again) {
  const { state, access } = given;
  const now = Date.now();
  const from = parseTime(state.start, now);
  const chosen = state.metrics ? { metrics: state.metrics } : {};
  const name = encodeURIComponent(state.entity);
  const [entity, inventory] = await Promise.all([
    getJson(`/api/entity/${name}?${new URLSearchParams({ start: from ?? state.start, limit: MOST_SERIES, ...chosen })}`),
    getJson(`/api/entity?${new URLSearchParams({ prefix: state.entity, limit: 1, ...chosen })}`),
  ]);
  const newest = inventory.entities.find((one) => one.entity === state.entity)?.series ?? [];
  const series = merged(entity, newest, from);
  const last = series.reduce((most, one) => Math.max(most, one.last?.[0] ?? 0), 0);
  const rows = series.slice(0, MOST_SERIES).map((one) => seriesRow(one, state, [from, now], access.entities ?? "host"));
  const table = rows.length ? tableOf(["Series", "Points", "Newest", "When", "Min", "Max"], rows, [0, 1]) : element("p", "There are no series with such metrics.");
  const shown = section(`Series: ${count(series.length)}`, table);
  if (entity.omitted || series.length > MOST_SERIES) shown.append(element("p", `Only ${MOST_SERIES} are shown. Name some metrics above.`, "small"));
  return [headSection(state, last), metadataSection(entity.metadata, given, again), shown];
}

export const { start, stop } = refreshedView(content, REFRESH_MS);
