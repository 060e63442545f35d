// Requests for points: as links have them, or as a body if intervals are days of the user's time zone.

import { getJson } from "./http.js";
import { expression } from "./state.js";

/** Return a tag as a filter of a body. */
function filterOf({ name, value, group }) {
  const [, type, inner] = /^([^(]*)\((.*)\)$/s.exec(value) ?? [];
  const found = { tagk: name, groupBy: group };
  if (type !== undefined) return { ...found, type: type.toLowerCase(), filter: inner };
  return { ...found, type: value.includes("*") || !value ? "iwildcard" : "literal_or", filter: value || "*" };
}

/** Return the options of a query that the form has no fields for, as members of a body. */
function membersOf(options) {
  const found = {};
  for (const text of options) {
    const word = text.toLowerCase();
    if (word.startsWith("explicit_tags")) found.explicitTags = true;
    else if (word.startsWith("pre-agg")) found.preAggregate = true;
    else if (word.startsWith("rollup_")) found.rollupUsage = word.toUpperCase();
    else if (word.startsWith("show-histogram-buckets")) found.showHistogramBuckets = true;
    else if (word.startsWith("percentiles")) found.percentiles = (/\[(.*)\]/.exec(word)?.[1] ?? "").split(",");
  }
  return found;
}

function rateOptions(text) {
  const [kind, most, reset] = text.replace(/[{}]/g, "").split(",");
  return {
    counter: kind.endsWith("counter"),
    dropResets: kind === "dropcounter",
    ...(most ? { counterMax: most } : {}),
    ...(reset ? { resetValue: reset } : {}),
  };
}

/** Return a query as a body has it. */
function subQuery(query, interval) {
  return {
    aggregator: query.aggregator,
    metric: query.metric,
    filters: query.tags.filter((tag) => tag.name).map(filterOf),
    ...(interval ? { downsample: `${interval}-${query.function}${query.fill ? `-${query.fill}` : ""}` } : {}),
    ...(query.rate ? { rate: true } : {}),
    ...(query.rate && query.counter ? { rateOptions: rateOptions(query.counter) } : {}),
    ...membersOf(query.others),
  };
}

/** Return the answer to queries, whose intervals are given. Those of the calendar, such as 1dc, begin at midnight in
 * the user's time zone; at midnight UTC if the daemon does not know the zone. `span` is in ms. */
export async function askPoints(queries, intervals, span, signal) {
  const [start, end] = span;
  const isMany = queries.length > 1; // to tell them apart
  if (!intervals.some((interval) => interval.endsWith("c"))) {
    const given = new URLSearchParams({ start, end });
    queries.forEach((query, at) => given.append("m", expression(query, intervals[at])));
    return getJson(`/api/query?${given}&arrays&ms&global_annotations${isMany ? "&show_query" : ""}`, { signal });
  }
  const body = {
    start, end, msResolution: true, globalAnnotations: true, showQuery: isMany,
    queries: queries.map((query, at) => subQuery(query, intervals[at])),
  };
  const ask = (timezone) => getJson("/api/query?arrays", { method: "POST", body: { ...body, timezone }, signal });
  try {
    return await ask(Intl.DateTimeFormat().resolvedOptions().timeZone);
  } catch (error) {
    if (!/timezone/i.test(error.message)) throw error;
    return ask("UTC");
  }
}
