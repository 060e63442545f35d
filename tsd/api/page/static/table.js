// The curves and their points as tables and as CSV.

const SHOWN_TIMES = 500;
const SHOWN_CURVES = 100;

export function number(value) {
  return typeof value === "number" ? String(Number(value.toPrecision(7))) : "";
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
    body.insertRow().append(...row.map((value, at) => (value instanceof Node ? wrapped(value) : cell("td", value, textColumns.includes(at)))));
  }
  const box = document.createElement("div");
  box.className = "wide";
  box.tabIndex = 0;
  box.append(table);
  return box;
}

function wrapped(node) {
  const found = document.createElement("td");
  found.append(node);
  return found;
}

/** Return a table of the last, least, mean and largest value of each curve. */
export function curveTable(curves) {
  const rows = curves.slice(0, SHOWN_CURVES).map((curve) => {
    const values = curve.points.map((point) => point[1]).filter((value) => typeof value === "number");
    let [least, most, sum] = [Infinity, -Infinity, 0];
    for (const value of values) {
      least = Math.min(least, value);
      most = Math.max(most, value);
      sum += value;
    }
    const some = values.length > 0;
    return [curve.name, number(values.at(-1)), some ? number(least) : "", some ? number(sum / values.length) : "", some ? number(most) : "", String(curve.points.length)];
  });
  return tableOf(["Curve", "last", "min", "mean", "max", "points"], rows, [0]);
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
    rows.map(([time, values]) => [new Date(time).toLocaleString(), ...shown.map((_, at) => number(values.get(at)))]),
    [0],
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
