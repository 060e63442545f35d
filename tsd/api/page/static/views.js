// Parts of views that refresh themselves: headings, facts, and a refresh that keeps focus and scroll positions.

import { RequestError } from "./http.js";
import { formatTime } from "./state.js";

export function element(kind, text, className = "") {
  const found = document.createElement(kind);
  found.textContent = text;
  found.className = className;
  return found;
}

export function section(title, ...content) {
  const found = document.createElement("section");
  found.append(element("h2", title), ...content);
  return found;
}

export function count(value) {
  return Number(value).toLocaleString("en");
}

/** Return boxes of [name, value, class]. */
export function facts(pairs) {
  const found = element("div", "", "facts");
  for (const [name, value, className = ""] of pairs) {
    const one = element("div", name, "fact");
    one.append(element("b", value, className));
    found.append(one);
  }
  return found;
}

/** Return a button. `key` names it, so that it keeps the focus when the view is refreshed. */
export function button(text, key, pressed, className = "") {
  const found = element("button", text, className);
  found.type = "button";
  found.dataset.key = key;
  found.addEventListener("click", pressed);
  return found;
}

/** Wait for what a button does, and refresh the view. Tell why it failed, unless another view is shown by now. */
export async function act(doing, again, failed) {
  let problem = null;
  try {
    await doing;
  } catch (error) {
    problem = error;
  }
  if ((await again()) && problem) failed(problem);
}

/** Return a link within the page. */
export function link(text, fragment, className = "") {
  const found = element("a", text, className);
  found.href = fragment;
  found.dataset.key = `link ${fragment}`;
  return found;
}

/** Call a function now, or once the page is not hidden any more. */
export function whenVisible(call) {
  if (document.hidden) document.addEventListener("visibilitychange", call, { once: true });
  else call();
}

const REST = 9; // a view rests this many times as long as its refresh took, so that an open page loads the daemon little

/** Return a view. `content(state, again, early)` resolves to its elements; `again` refreshes it, and resolves to whether
 * it is still shown. It may pass elements to `early` that are shown until then, if nothing of these choices is shown yet. */
export function refreshedView(content, everyMs) {
  let timer = 0;
  let current = 0; // number of the newest refresh
  let shows = 0; // how often the view was shown or left

  /** Call `again` after a while; not while the page is hidden. */
  function later(again, ms) {
    timer = setTimeout(() => whenVisible(again), ms);
  }

  /** Show the view and refresh it until `stop`. `failed` is called with an error, or null. */
  function start(box, state, failed) {
    shows += 1;
    return refresh(box, state, failed);
  }

  async function refresh(box, state, failed) {
    clearTimeout(timer);
    const mine = (current += 1);
    const atShow = shows;
    const again = async () => {
      if (atShow === shows) await refresh(box, state, failed);
      return atShow === shows;
    };
    const begun = performance.now();
    let isRefused = false;
    const early = (elements) => {
      if (mine !== current || !box.classList.contains("busy")) return;
      show(box, elements);
    };
    try {
      const shown = await content(state, again, early);
      if (mine !== current) return;
      show(box, shown);
      failed(null);
    } catch (error) {
      if (!(error instanceof RequestError)) throw error;
      if (mine !== current) return;
      isRefused = error.status === 401; // a refresh would ask again to sign in
      box.classList.remove("busy");
      if (box.children.length) {
        box.classList.add("stale");
        error.message += ` Below is the state of ${box.dataset.at}.`;
      }
      failed(error);
    } finally {
      if (mine === current && !isRefused) later(() => mine === current && again(), Math.max(everyMs, REST * (performance.now() - begun)));
    }
  }

  function stop() {
    current += 1;
    shows += 1;
    clearTimeout(timer);
  }

  return { start, stop };
}

function show(box, elements) {
  replace(box, elements);
  box.classList.remove("stale", "busy");
  box.dataset.at = formatTime(Date.now());
}

function tableIn(one) {
  return one.matches(".wide") ? one : one.querySelector(".wide");
}

/** Replace the content of a box. The focus stays, and tables keep their scroll positions. */
export function replace(box, shown) {
  const key = box.contains(document.activeElement) ? document.activeElement.dataset.key : null;
  const before = [...box.children].map(tableIn);
  const focused = before.findIndex((one) => one && one === document.activeElement);
  shown.forEach((one, at) => {
    const [to, from] = [tableIn(one), before[at]];
    if (to && from) to.dataset.scroll = `${from.scrollLeft} ${from.scrollTop}`;
  });
  box.replaceChildren(...shown);
  for (const one of box.querySelectorAll("[data-scroll]")) [one.scrollLeft, one.scrollTop] = one.dataset.scroll.split(" ").map(Number);
  const next = key ? [...box.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key) : shown[focused] && tableIn(shown[focused]);
  next?.focus({ preventScroll: true });
}
