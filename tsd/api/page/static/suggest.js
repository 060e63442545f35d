// Completion of metrics, tag names and tag values from what is stored.

import { getJson } from "./http.js";

const MOST = 30; // suggestions shown
const SAMPLE = 1000; // series of a metric in which tags are looked up
const PAUSE_MS = 150; // after the last key

let lists = 0;

function fill(list, names) {
  list.replaceChildren(...names.map((name) => {
    const option = document.createElement("option");
    option.value = name;
    return option;
  }));
}

/** Complete an input with the names that `find` returns for its text. */
export function complete(input, find) {
  const list = document.createElement("datalist");
  list.id = `names-${(lists += 1)}`;
  input.setAttribute("list", list.id);
  input.after(list);
  let timer = 0;
  let current = 0; // number of the newest request
  const ask = async () => {
    const mine = (current += 1);
    const names = await find(input.value).catch(() => []); // the query itself shows why it fails
    if (mine === current) fill(list, names.slice(0, MOST));
  };
  input.addEventListener("input", () => {
    clearTimeout(timer);
    timer = setTimeout(ask, PAUSE_MS);
  });
  input.addEventListener("focus", ask);
}

function suggested(type, text) {
  return getJson(`/api/suggest?type=${type}&max=${MOST}&q=${encodeURIComponent(text)}`);
}

export function metricsLike(text) {
  return suggested("metrics", text);
}

const samples = new Map(); // by metric

/** Return tag names of a metric with the values of a sample of its series, and whether these are all its series. */
export function tagsOf(metric) {
  if (!samples.has(metric)) {
    if (samples.size > 50) samples.clear();
    const found = getJson(`/api/search/lookup?limit=${SAMPLE}&m=${encodeURIComponent(metric)}`).then((answer) => {
      const tags = new Map();
      for (const series of answer.results) {
        for (const [name, value] of Object.entries(series.tags)) {
          if (!tags.has(name)) tags.set(name, new Set());
          tags.get(name).add(value);
        }
      }
      return { tags, all: answer.results.length < SAMPLE, series: answer.results.length };
    });
    samples.set(metric, found);
    found.catch(() => samples.delete(metric));
    setTimeout(() => samples.delete(metric), 60_000);
  }
  return samples.get(metric);
}

export async function tagNames(metric, text) {
  const { tags } = await tagsOf(metric);
  return [...tags.keys()].filter((name) => name.includes(text)).sort();
}

/** Return values of a tag: of the sample, then all values with the prefix if the sample is not complete. */
export async function tagValues(metric, name, text) {
  const { tags, all } = await tagsOf(metric);
  const before = text.includes("|") ? text.slice(0, text.lastIndexOf("|") + 1) : "";
  const typed = text.slice(before.length);
  const found = [...(tags.get(name) ?? [])].filter((value) => value.includes(typed)).sort();
  if (!all && found.length < MOST && typed) {
    found.push(...(await suggested("tagv", typed)).filter((value) => !found.includes(value)));
  }
  return found.map((value) => before + value);
}
