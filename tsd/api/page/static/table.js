// The curves and their points as tables and as CSV.

import { formatTime } from "./state.js";

const SHOWN_TIMES = 500;
const SHOWN_CURVES = 100; // columns of the table of points

/** Return a value with 7 digits and thousands separators; very large and very small ones as 1.5e-9. */
export function number(value) {
  if (typeof value !== "number") return "";
  const size = Math.abs(value);
  if (size && (size >= 1e15 || size < 1e-6)) return String(Number(value.toPrecision(7)));
  return value.toLocaleString("en", { maximumSignificantDigits: Math.max(7, String(Math.trunc(size)).length) });
}

function cell(kind, text, isText = false) {
  const found = document.createElement(kind);
  found.textContent = text;
  if (isText) found.className = "text";
  return found;
}

export function tableOf(heads, rows, textColumns = []) {
  const table = document.createElement("table");
  const head = table.createTHead().insertRow();
  head.append(...heads.map((text, at) => {
    const found = cell("th", text, textColumns.includes(at));
    found.scope = "col";
    return found;
  }));
  const body = table.createTBody();
  for (const row of rows) {
    body.insertRow().append(...row.map((value, at) => (value instanceof Node ? wrapped(value, textColumns.includes(at)) : cell("td", value, textColumns.includes(at)))));
  }
  const box = document.createElement("div");
  box.className = "wide";
  box.tabIndex = 0;
  box.append(table);
  return box;
}

function wrapped(node, isText) {
  const found = cell("td", "", isText);
  found.append(node);
  return found;
}

/** Return a table of the last, least, mean and largest value of each curve. `keyOf` returns a curve's cell. */
export function curveTable(curves, keyOf) {
  const rows = curves.map((curve, at) => {
    const values = curve.points.map((point) => point[1]).filter((value) => typeof value === "number");
    let [least, most, sum] = [Infinity, -Infinity, 0];
    for (const value of values) {
      least = Math.min(least, value);
      most = Math.max(most, value);
      sum += value;
    }
    const some = values.length > 0;
    return [keyOf(curve, at), number(values.at(-1)), some ? number(least) : "", some ? number(sum / values.length) : "", some ? number(most) : "", number(curve.points.length)];
  });
  return tableOf(["Curve", "Last", "Min", "Mean", "Max", "Points"], rows, [0]);
}

function byTime(curves) {
  const times = new Map();
  curves.forEach((curve, at) => {
    for (const [time, value] of curve.points) {
      if (!times.has(time)) times.set(time, new Map());
      times.get(time).set(at, value);
    }
  });
  return [...times].sort((a, b) => a[0] - b[0]);
}

/** Return a table of the newest points, a column a curve. */
export function pointTable(curves) {
  const shown = curves.slice(0, SHOWN_CURVES);
  const rows = byTime(shown).slice(-SHOWN_TIMES).reverse();
  return tableOf(
    ["Time", ...shown.map((curve) => curve.name)],
    rows.map(([time, values]) => [formatTime(time), ...shown.map((_, at) => number(values.get(at)))]),
  );
}

function quoted(text) {
  return /[",\n\r]/.test(text) ? `"${text.replaceAll('"', '""')}"` : text;
}

/** Return all points as CSV: a line a time in ISO 8601, a column a curve. */
export function csv(curves) {
  const lines = [["time", ...curves.map((curve) => curve.name)].map(quoted).join(",")];
  for (const [time, values] of byTime(curves)) {
    lines.push([new Date(time).toISOString(), ...curves.map((_, at) => values.get(at) ?? "")].join(","));
  }
  return `${lines.join("\r\n")}\r\n`;
}
