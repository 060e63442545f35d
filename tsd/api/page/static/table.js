// The curves and their points as tables and as CSV.

import { formatTime } from "./state.js";
import { button } from "./views.js";

const SHOWN_TIMES = 500;
const SHOWN_CURVES = 100; // columns of the table of points

/** Return a value with 7 digits and thousands separators, an integer with all digits. Very large and very small ones:
 * 1.5e-9. */
export function number(value) {
  if (typeof value === "bigint") return value.toLocaleString("en");
  if (typeof value !== "number" || Number.isNaN(value)) return "";
  const size = Math.abs(value);
  if (size && (size < 1e-6 || (size >= 1e15 && !Number.isSafeInteger(value)))) return Number(value.toPrecision(7)).toExponential();
  return formatOf(digits(size)).format(value);
}

const formats = []; // by number of digits: making one takes much longer than its use

function formatOf(most) {
  formats[most] ??= new Intl.NumberFormat("en", { maximumSignificantDigits: most });
  return formats[most];
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

/** Return the value of a point with all digits: its third part is an integer that its second part, a double, is not. */
export function exactOf(point) {
  return point[2] ?? point[1];
}

const HEADS = ["Curve", "Last", "Min", "Mean", "Max", "Points"];
const WAYS = [null, "descending", "ascending"]; // in which a column sorts, in the order of presses
const UNSORTED = { column: 0, way: null };
const LARGEST = { column: HEADS.indexOf("Max"), way: "descending" };
let chosen = null; // order of the curves; it stays when they are fetched again

/** Return the order of curves of which `most` are shown: if there are more, those with the largest values are first. */
export function orderOf(curves, most) {
  const { column, way } = chosen ?? (curves.length > most ? LARGEST : UNSORTED);
  return { column, way, name: HEADS[column] };
}

/** Return the last, least, mean and largest value of a curve, and its number of points. Without values: NaN. */
function figuresOf(curve) {
  if (curve.figures) return curve.figures;
  let [last, least, most, sum, count] = [NaN, Infinity, -Infinity, 0, 0];
  for (const point of curve.points) {
    if (typeof point[1] !== "number") continue;
    last = exactOf(point);
    if (last < least) least = last;
    if (last > most) most = last;
    sum += point[1];
    count += 1;
  }
  const values = count ? [last, least, sum / count, most] : [NaN, NaN, NaN, NaN];
  return (curve.figures = [...values, curve.points.length]);
}

/** Return the first `most` curves in the order of the table. */
export function firstOf(curves, most) {
  const { column, way } = orderOf(curves, most);
  if (way === null) return curves.slice(0, most);
  const sign = way === "ascending" ? 1 : -1;
  const value = (curve) => {
    const found = figuresOf(curve)[column - 1];
    return Number.isNaN(found) ? sign * Infinity : found; // last
  };
  const compare = (a, b) => (a < b ? -sign : a > b ? sign : 0); // also of integers with doubles
  return [...curves].sort((a, b) => compare(value(a), value(b))).slice(0, most);
}

/** Return a table of figures of the first `most` curves. `keyOf` returns a curve's cell. The heads of the columns of
 * numbers sort all curves: largest first, then least first, then as before. `sorted` is called after that. */
export function curveTable(curves, most, keyOf, sorted) {
  const rows = firstOf(curves, most).map((curve) => {
    const [last, least, middle, largest, count] = figuresOf(curve);
    return [keyOf(curve), number(last), number(least), mean(middle), number(largest), number(count)];
  });
  const order = orderOf(curves, most);
  const heads = HEADS.map((text, column) => {
    if (!column) return text;
    const head = button(text, `sort by ${text}`, () => {
      const next = WAYS[(WAYS.indexOf(order.column === column ? order.way : null) + 1) % WAYS.length];
      chosen = next && { column, way: next };
      sorted();
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
    for (const point of curve.points) {
      const [time] = point;
      if (!times.has(time)) times.set(time, new Map());
      times.get(time).set(at, exactOf(point));
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
