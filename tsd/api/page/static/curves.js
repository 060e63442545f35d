// The curves of an answer: their names, their order, and what of the answer tells how to ask again.

import { durationMs, expression } from "./state.js";

function metricOf(group, query) {
  return query?.rate ? `rate of ${group.metric}` : group.metric;
}

function nameOf(group, query, isOnly) {
  const tags = Object.entries(group.tags).map(([name, value]) => `${name}=${value}`).join(" ");
  return tags && !isOnly ? `${metricOf(group, query)} ${tags}` : metricOf(group, query);
}

/** Return the points of a group, [ms, value]. Integers that no double holds are also a third part, with all digits. */
function pointsOf({ dps }) {
  const hasLong = dps.some((point) => typeof point[1] === "bigint");
  const asDouble = (point) => (typeof point[1] === "bigint" ? [point[0], Number(point[1]), point[1]] : point);
  return { hasLong, points: hasLong ? dps.map(asDouble) : dps };
}

const NATURAL = 1000; // more curves are ordered by characters, which is ten times as fast
const natural = new Intl.Collator("en", { numeric: true }); // web2 before web10

function inOrder(curves) {
  const compare = curves.length > NATURAL ? (a, b) => (a < b ? -1 : Number(a > b)) : natural.compare;
  return curves.sort((a, b) => a.query - b.query || compare(a.name, b.name));
}

/** Return the name of a curve with how its query asks, such as max:1m-avg. */
function fullName(curve, queries) {
  return `${curve.name} (${expression({ ...queries[curve.query], metric: "", tags: [] }).replace(/:$/, "")})`;
}

/** Return the curves of an answer in their order, each {query, name, metric, axis, hasLong, points}. Of two queries with
 * curves of one name, the names tell how they ask. */
export function curvesOf(answer, queries) {
  const groups = answer.filter((group) => group.dps);
  const curves = groups.map((group) => {
    const at = group.query?.index ?? 0;
    const name = nameOf(group, queries[at], groups.length === 1 && !Object.keys(group.tags).length);
    return { query: at, name, metric: metricOf(group, queries[at]), axis: queries[at]?.axis ?? "left", ...pointsOf(group) };
  });
  const firstQuery = new Map();
  const repeated = new Set();
  for (const { name, query } of curves) {
    if (firstQuery.has(name) && firstQuery.get(name) !== query) repeated.add(name);
    firstQuery.set(name, query);
  }
  return inOrder(curves.map((curve) => (repeated.has(curve.name) ? { ...curve, name: fullName(curve, queries) } : curve)));
}

const THINNING = ["avg", "first", "last", "max", "median", "min", "sum"]; // functions that return the value of one point

/** Return the places of queries of rates whose automatic interval is shorter than the distance of points. It thins
 * nothing then: it only moves points to the starts of intervals, and rates between such times are wrong. If a curve of
 * a query has more points, that query is not among them: without downsampling its answer may be too large. */
export function queriesOfMovedPoints(answer, queries, intervals) {
  const isSparse = (points, interval) => {
    const least = durationMs(interval.replace(/c$/, ""));
    const gaps = points.filter((point, at) => at && point[0] - points[at - 1][0] > least).length;
    return gaps * 5 > points.length; // a few are points that are missing
  };
  const areAllSparse = (at) => {
    const long = answer.filter((group) => group.dps?.length > 1 && (group.query?.index ?? 0) === at);
    return long.length > 0 && long.every((group) => isSparse(group.dps, intervals[at]));
  };
  return queries.map((_, at) => at).filter((at) => (
    queries[at].rate && queries[at].interval === "auto" && intervals[at] && THINNING.includes(queries[at].function) && areAllSparse(at)
  ));
}

export function annotationsOf(answer) {
  const found = new Map();
  for (const group of answer) {
    for (const one of [...(group.annotations ?? []), ...(group.globalAnnotations ?? [])]) {
      const time = one.startTime < 2 ** 32 ? one.startTime * 1000 : one.startTime;
      found.set(`${time} ${one.description}`, { time, text: [one.description, one.notes].filter(Boolean).join("\n") });
    }
  }
  return [...found.values()];
}
