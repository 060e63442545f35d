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

/** Return a mean: its digits beyond the fifth say nothing, except in a large number. */
function mean(value) {
  return number(Math.abs(value) < 1e5 ? Number(value.toPrecision(5)) : value);
}

function cell(kind, content, isText = false) {
  const found = document.createElement(kind);
  found.append(content ?? "");
  if (isText) found.className = "text";
  return found;
}

/** Return a table in a box that scrolls. Cells and heads are texts or elements. */
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
    body.insertRow().append(...row.map((value, at) => cell("td", value, textColumns.includes(at))));
  }
  const box = document.createElement("div");
  box.className = "wide";
  box.tabIndex = 0;
  box.append(table);
  return box;
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
    return [keyOf(curve, at), number(values.at(-1)), some ? number(least) : "", some ? mean(sum / values.length) : "", some ? number(most) : "", number(curve.points.length)];
  });
  return sortable(tableOf(["Curve", "Last", "Min", "Mean", "Max", "Points"], rows, [0]));
}

/** Return the number that a cell shows; of a cell without any, less than all. */
function numberIn(row, column) {
  const value = Number.parseFloat(row.cells[column].textContent.replaceAll(",", ""));
  return Number.isNaN(value) ? -Infinity : value;
}

/** Let the heads of a table's columns of numbers sort its rows: largest first, then least first, then as they were. */
function sortable(box) {
  const table = box.querySelector("table");
  const body = table.tBodies[0];
  const rows = [...body.rows];
  const heads = [...table.querySelectorAll("th")];
  heads.slice(1).forEach((head, at) => {
    const button = document.createElement("button");
    button.type = "button";
    button.className = "order";
    button.append(...head.childNodes);
    button.title = "Sort by this column";
    head.append(button);
    button.addEventListener("click", () => {
      const next = { descending: "ascending", ascending: null }[head.getAttribute("aria-sort")];
      for (const one of heads) one.removeAttribute("aria-sort");
      if (next !== null) head.setAttribute("aria-sort", next ?? "descending");
      const sign = next === "ascending" ? 1 : -1;
      const values = new Map(rows.map((row) => [row, numberIn(row, at + 1)]));
      body.append(...(next === null ? rows : [...rows].sort((a, b) => sign * (values.get(a) - values.get(b) || 0))));
    });
  });
  return box;
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
