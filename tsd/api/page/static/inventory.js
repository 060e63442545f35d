// The inventory: entities, such as hosts, with their newest values. Those that fell silent come first.

import { getJson } from "./http.js";
import { age, durationMs, entityFragment, formatTime } from "./state.js";
import { number, tableOf } from "./table.js";
import { button, count, element, link, refreshedView, section } from "./views.js";

const REFRESH_MS = 15_000;
const PAGE = 100; // entities that report
const MOST_SILENT = 200;
const DEFAULT_COLUMNS = 5; // metrics, unless the filter names some
const MOST_COLUMNS = 12;

/** Return the path of a request. Empty parameters are left out. */
function path(parameters) {
  return `/api/entity?${new URLSearchParams(Object.entries(parameters).filter(([, value]) => value))}`;
}

/** Return the time of the newest value of an entity, in Unix ms. */
function newest(entity) {
  return entity.series.reduce((most, one) => Math.max(most, one.timestamp), 0);
}

/** Return the metrics that get a column: those of most entities. */
function columnsOf(entities, state) {
  const found = new Map();
  for (const entity of entities) {
    for (const name of new Set(entity.series.map((one) => one.metric))) found.set(name, (found.get(name) ?? 0) + 1);
  }
  const ordered = state.order.replace(/:(asc|desc)$/, "");
  const all = [...found.keys()].sort((a, b) => (b === ordered) - (a === ordered) || found.get(b) - found.get(a) || (a < b ? -1 : 1));
  const shown = all.slice(0, state.metrics ? MOST_COLUMNS : DEFAULT_COLUMNS);
  return { shown: shown.sort(), left: all.length - shown.length };
}

/** Return the value of a metric: of several series the least and the largest one. */
function valueOf(entity, metric) {
  const values = entity.series.filter((one) => one.metric === metric).map((one) => one.value);
  if (values.length < 2) return number(values[0]);
  const [least, most] = [values.reduce((a, b) => (b < a ? b : a)), values.reduce((a, b) => (b > a ? b : a))];
  const found = element("span", least === most ? number(most) : `${number(least)} … ${number(most)}`);
  found.title = `Least and largest of ${values.length} series`;
  return found;
}

/** Return the head of a column that orders the inventory: largest first, then least first, then by name. */
function orderButton(metric, state, go) {
  const next = { [`${metric}:desc`]: `${metric}:asc`, [`${metric}:asc`]: "" }[state.order] ?? `${metric}:desc`;
  const found = button(metric, `order ${metric}`, () => go({ order: next, from: "" }), "order");
  found.title = next ? `Order by ${metric}, ${next.endsWith("desc") ? "largest" : "least"} first` : "Order by name";
  return found;
}

function silentSection(answer, state) {
  const hosts = answer.entities.map((entity) => ({ name: entity.entity, at: newest(entity), series: entity.series.length }));
  hosts.sort((a, b) => b.at - a.at);
  const some = answer.next === null ? count(hosts.length) : `more than ${count(hosts.length)}`;
  const title = `Silent for more than ${state.silent}: ${some}`;
  if (!hosts.length) return section(title, element("p", "All of them report.", "good"));
  const rows = hosts.map((one) => [link(one.name, entityFragment(one.name)), `${age(one.at)} ago`, formatTime(one.at), count(one.series)]);
  return section(title, tableOf(["Name", "Newest value", "At", "Series"], rows, [0]));
}

function reportingSection(answer, state, go) {
  const { entities } = answer;
  const { shown, left } = columnsOf(entities, state);
  const order = state.order ? `, by ${state.order.replace(/:(asc|desc)$/, "")}` : "";
  const title = `Reporting: ${answer.next || (order && entities.length === PAGE) ? `${count(entities.length)} shown` : count(entities.length)}${state.from ? `, from ${state.from}` : ""}${order}`;
  if (!entities.length) return section(title, element("p", "None has such a value in this time."));
  const rows = entities.map((one) => [link(one.entity, entityFragment(one.entity)), `${age(newest(one))} ago`, ...shown.map((metric) => valueOf(one, metric))]);
  const table = tableOf(["Name", "Newest value", ...shown.map((metric) => orderButton(metric, state, go))], rows, [0]);
  for (const [at, metric] of shown.entries()) {
    const sort = { [`${metric}:desc`]: "descending", [`${metric}:asc`]: "ascending" }[state.order];
    if (sort) table.querySelectorAll("th")[at + 2].setAttribute("aria-sort", sort);
  }
  const below = element("p", "", "bar");
  if (state.from) below.append(button("First page", "first page", () => go({ from: "" })));
  if (answer.next) below.append(button("Next page", "next page", () => go({ from: answer.next })));
  if (left) below.append(element("span", `${count(left)} more metrics: name some above, such as sys.cpu.*`, "small"));
  return section(title, table, below);
}

async function content({ state, go }, again, early) {
  const { prefix, metrics, silent } = state;
  const known = { prefix, metrics, max_age: durationMs(silent) === null ? "" : silent };
  const asked = getJson(path({ ...known, stale: "true", limit: MOST_SILENT })); // looks at all entities
  asked.catch(() => {}); // told below, unless the other request fails first
  const reporting = await getJson(path({ ...known, limit: PAGE, order: state.order, from: state.order ? "" : state.from }));
  if (reporting.entities.length) early([section(`Silent for more than ${state.silent}`, element("p", "Looking …")), reportingSection(reporting, state, go)]);
  const still = await asked;
  if (!still.entities.length && !reporting.entities.length && !state.from) {
    const wanted = prefix || metrics ? "Nothing has such a name and such metrics." : "There are no entities yet: send points.";
    return [element("p", wanted)];
  }
  return [silentSection(still, state), reportingSection(reporting, state, go)];
}

export const { start, stop } = refreshedView(content, REFRESH_MS);
