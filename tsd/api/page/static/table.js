// The curves and their points as tables and as CSV.

import { formatTime } from "./state.js";
import { button } from "./views.js";

const SHOWN_TIMES = 500;
const SHOWN_CURVES = 100; // columns of the table of points

/** Return a value with 7 digits and thousands separators, an integer with all digits. Very large and very small ones:
 * 1.5e-9. */
export function number(value) {
  if (typeof value !== "number" || Number.isNaN(value)) return "";
  const size = Math.abs(value);
  if (size && (size < 1e-6 || (size >= 1e15 && !Number.isSafeInteger(value)))) return Number(value.toPrecision(7)).toExponential();
  return value.toLocaleString("en", { maximumSignificantDigits: digits(size) });
}

/** Return how many digits of a value are shown. */
export function digits(size) {
  return Math.max(7, String(Math.trunc(size)).length);
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

const HEADS = ["Curve", "Last", "Min", "Mean", "Max", "Points"];
const WAYS = [null, "descending", "ascending"]; // in which a column sorts, in the order of presses
let order = { column: 0, way: null }; // of the curves; it stays when they are fetched again

/** Return the last, least, mean and largest value of a curve, and its number of points. Without values: NaN. */
function figuresOf(curve) {
  let [last, least, most, sum, count] = [NaN, Infinity, -Infinity, 0, 0];
  for (const [, value] of curve.points) {
    if (typeof value !== "number") continue;
    last = value;
    least = Math.min(least, value);
    most = Math.max(most, value);
    sum += value;
    count += 1;
  }
  return count ? [last, least, sum / count, most, curve.points.length] : [NaN, NaN, NaN, NaN, curve.points.length];
}

/** Return [curve, its place, its figures] of the first `most` curves in the chosen order. */
function firstOf(curves, most) {
  const all = order.way === null ? curves.slice(0, most) : curves;
  const found = all.map((curve, at) => [curve, at, figuresOf(curve)]);
  if (order.way === null) return found;
  const sign = order.way === "ascending" ? 1 : -1;
  const value = ([, , figures]) => (Number.isNaN(figures[order.column - 1]) ? -Infinity : figures[order.column - 1]);
  return found.sort((a, b) => sign * (value(a) - value(b) || 0)).slice(0, most);
}

/** Return a table of figures of the first `most` curves. `keyOf` returns a curve's cell. The heads of the columns of
 * numbers sort all curves: largest first, then least first, then as they were. `sorted` is called with the new table. */
export function curveTable(curves, most, keyOf, sorted) {
  const rows = firstOf(curves, most).map(([curve, at, [last, least, middle, largest, count]]) => (
    [keyOf(curve, at), number(last), number(least), mean(middle), number(largest), number(count)]
  ));
  const heads = HEADS.map((text, column) => {
    if (!column) return text;
    const head = button(text, `sort by ${text}`, () => {
      const next = WAYS[(WAYS.indexOf(order.column === column ? order.way : null) + 1) % WAYS.length];
      order = { column, way: next };
      sorted(curveTable(curves, most, keyOf, sorted));
    }, "order");
    head.title = "Sort by this column";
    return head;
  });
  const box = tableOf(heads, rows, [0]);
  if (order.way) box.querySelectorAll("th")[order.column].setAttribute("aria-sort", order.way);
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
