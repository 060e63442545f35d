// The forms of queries: they show a query and change it.

import { complete, metricsLike, tagNames, tagsOf, tagValues } from "./suggest.js";

const $ = (parent, selector) => parent.querySelector(selector);

function options(select, names, chosen) {
  if (chosen && !names.includes(chosen)) names = [...names, chosen];
  select.replaceChildren(...names.map((name) => new Option(name, name, false, name === chosen)));
}

function choose(select, value) {
  if (![...select.options].some((option) => option.value === value)) select.append(new Option(value, value));
  select.value = value;
}

/** Return the form of one query. `changed` is called after each change, `removed` to remove it. */
export function queryForm(query, aggregators, changed, removed) {
  const form = document.getElementById("query").content.firstElementChild.cloneNode(true);
  const found = $(form, ".found");
  options($(form, ".aggregator"), aggregators, query.aggregator);
  options($(form, ".function"), aggregators.filter((name) => name !== "none"), query.function);
  $(form, ".metric").value = query.metric;
  choose($(form, ".interval"), query.interval);
  choose($(form, ".fill"), query.fill);
  $(form, ".rate").checked = query.rate;
  choose($(form, ".counter-options"), query.counter);
  choose($(form, ".axis"), query.axis);
  const showMore = () => {
    $(form, ".counter").hidden = !query.rate;
    for (const label of form.querySelectorAll(".downsampled")) label.hidden = !query.interval;
  };
  showMore();

  const count = async () => {
    found.textContent = "";
    if (!query.metric) return;
    try {
      const { tags, all, series } = await tagsOf(query.metric);
      const names = [...tags.keys()].sort().join(", ");
      if (series) found.textContent = `${all ? series.toLocaleString("en") : `more than ${(series - 1).toLocaleString("en")}`} series, tags: ${names}`;
    } catch {
      // the graph's message says what is wrong
    }
  };

  const bind = (selector, field, value = (input) => input.value) => {
    const input = $(form, selector);
    input.addEventListener("change", () => {
      query[field] = value(input);
      showMore();
      if (field === "metric") count();
      changed();
    });
  };
  bind(".metric", "metric", (input) => input.value.trim());
  bind(".aggregator", "aggregator");
  bind(".interval", "interval");
  bind(".function", "function");
  bind(".fill", "fill");
  bind(".rate", "rate", (input) => input.checked);
  bind(".counter-options", "counter");
  bind(".axis", "axis");
  complete($(form, ".metric"), metricsLike);
  $(form, ":scope > .bar .remove").addEventListener("click", removed);
  $(form, ".add-tag").addEventListener("click", () => {
    query.tags.push({ name: "", value: "", group: true });
    addTag(query.tags.at(-1), true);
  });

  function addTag(tag, focus = false) {
    const line = document.getElementById("tag").content.firstElementChild.cloneNode(true);
    const name = $(line, ".name");
    const value = $(line, ".value");
    name.value = tag.name;
    value.value = tag.value;
    $(line, ".group").checked = tag.group;
    const update = () => {
      Object.assign(tag, { name: name.value.trim(), value: value.value.trim(), group: $(line, ".group").checked });
      changed();
    };
    for (const input of line.querySelectorAll("input")) input.addEventListener("change", update);
    complete(name, (text) => tagNames(query.metric, text));
    complete(value, (text) => tagValues(query.metric, tag.name, text));
    $(line, ".remove").addEventListener("click", () => {
      query.tags.splice(query.tags.indexOf(tag), 1);
      line.remove();
      changed();
    });
    $(form, ".tags").append(line);
    if (focus) name.focus();
  }
  for (const tag of query.tags) addTag(tag);
  count();
  return form;
}
