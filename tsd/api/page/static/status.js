// The daemon's own state: health, ledger, journal, clients, refused lines and running queries.

import { getJson, RequestError, send } from "./http.js";
import { formatTime } from "./state.js";
import { tableOf } from "./table.js";

const REFRESH_MS = 5000;
let timer = 0;
let current = 0; // number of the newest refresh

function element(kind, text, className = "") {
  const found = document.createElement(kind);
  found.textContent = text;
  found.className = className;
  return found;
}

function section(title, ...content) {
  const found = document.createElement("section");
  found.append(element("h2", title), ...content);
  return found;
}

function count(value) {
  return Number(value).toLocaleString("en");
}

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let [size, at] = [Number(value), 0];
  while (size >= 1024 && at < units.length - 1) {
    size /= 1024;
    at += 1;
  }
  return `${size.toFixed(at && size < 100 ? 1 : 0)} ${units[at]}`;
}

function facts(pairs) {
  const found = element("div", "", "facts");
  for (const [name, value, className = ""] of pairs) {
    const one = element("div", name, "fact");
    one.append(element("b", value, className));
    found.append(one);
  }
  return found;
}

/** Return a function that finds statistics by name, summed over the points with these tags. */
function lookup(points) {
  return (name, tags = {}) => {
    const found = points.filter((point) => point.metric === `tsd.${name}` && Object.entries(tags).every(([key, value]) => point.tags[key] === value));
    return found.length ? found.reduce((sum, point) => sum + Number(point.value), 0) : null;
  };
}

/** Return the daemon's health. Its answer has a body whatever its status is. */
async function health() {
  const response = await send("/health/ready");
  return response.json();
}

function healthFacts(state) {
  return Object.entries(state).map(([name, value]) => [name === "status" ? "daemon" : name, String(value), value === "ok" ? "good" : "bad"]);
}

function ledgerFacts(value, speed) {
  const balance = value("ledger.balance");
  return [
    ["received", count(value("ledger.received"))],
    ["lines per second", speed === null ? "–" : count(Math.round(speed))],
    ["stored", count(value("ledger.stored"))],
    ["in the journal only", count(value("ledger.journaled"))],
    ["refused", count(value("ledger.refused")), value("ledger.refused") ? "bad" : ""],
    ["unaccounted", count(balance), balance ? "bad" : "good"],
  ];
}

const JOURNAL_NAMES = {
  bytes: "size", "pending-bytes": "not yet on disk", syncs: "writes to disk", failures: "failed writes", quarantined: "damaged segments kept",
};

function journalFacts(points) {
  return points.filter((point) => point.metric.startsWith("tsd.journal.")).map((point) => {
    const name = point.metric.slice("tsd.journal.".length);
    const kinds = Object.entries(point.tags).filter(([key]) => key !== "host").map(([, value]) => value);
    return [[JOURNAL_NAMES[name] ?? name.replaceAll("-", " "), ...kinds].join(" "), /bytes/.test(name) ? bytes(point.value) : count(point.value)];
  });
}

function clientTable(clients) {
  const sorted = [...clients].sort((a, b) => b.lines - a.lines).slice(0, 50);
  return tableOf(
    ["Client", "Account", "Connections", "Lines", "Received", "Refused", "New names", "Paused for"],
    sorted.map((one) => [one.client, one.account || "–", count(one.connections), count(one.lines), bytes(one.bytes), count(one.refused), count(one.new_names), `${(one.paused_ms / 1000).toFixed(1)} s`]),
    [0, 1],
  );
}

function refusedTable(groups) {
  const found = document.createElement("div");
  if (!groups.length) {
    found.append(element("p", "No refused lines are kept."));
    return found;
  }
  found.append(
    tableOf(
      ["Reason", "Metric", "Source", "Lines", "Last refused", "Last message"],
      groups.map((one) => [one.reason, one.metric, one.source, count(one.lines), formatTime(one.last_ms), one.message]),
      [0, 1, 2, 5],
    ),
  );
  found.append(element("p", "After the cause is repaired, send them again. Run on the daemon's machine:", "small"));
  const reasons = [...new Set(groups.map((one) => one.reason))];
  found.append(...reasons.map((reason) => element("code", `tsd rejected --reason ${reason} --replay`, "command")));
  return found;
}

function queryTable(queries, mayCancel, again) {
  if (!queries.length) return element("p", "No query runs.");
  return tableOf(
    ["Query", "Client", "Running since", "End"],
    queries.map((one) => {
      const texts = (one.query.queries ?? []).map((sub) => `${sub.aggregator}:${sub.downsample ? `${sub.downsample}:` : ""}${sub.metric}`);
      const button = element("button", "End");
      button.type = "button";
      button.disabled = !mayCancel;
      button.setAttribute("aria-label", `End ${texts.join(" ")}`);
      button.dataset.key = `end ${one.id}`;
      if (!mayCancel) button.title = "This needs the role admin.";
      button.addEventListener("click", async () => {
        button.disabled = true;
        try {
          await getJson(`/api/stats/query?id=${one.id}`, { method: "DELETE" });
        } finally {
          again();
        }
      });
      return [texts.join(" "), one.endpoint ?? "", one.queryStart ? formatTime(one.queryStart) : "", button];
    }),
    [0, 1],
  );
}

let last = null; // received lines and when they were counted

function speedOf(received) {
  const now = performance.now();
  // a daemon that started again counts from 0
  const speed = last && received >= last.received ? ((received - last.received) * 1000) / (now - last.at) : null;
  last = { received, at: now };
  return speed;
}

/** Show the view and refresh it until `stop`. `access` is the user's. `failed` is called with an error. */
export async function start(box, access, failed) {
  clearTimeout(timer);
  const mine = (current += 1);
  const again = () => start(box, access, failed);
  try {
    const parts = [health(), getJson("/api/stats"), getJson("/api/stats/clients"), getJson("/api/stats/rejected"), getJson("/api/stats/query")];
    const [state, points, clients, refused, queries] = await Promise.all(parts);
    const value = lookup(points);
    const shown = [
      section("Health", facts(healthFacts(state))),
      section("Lines", facts(ledgerFacts(value, speedOf(value("ledger.received"))))),
      section("Who sends", clientTable(clients)),
      section("Refused lines", refusedTable(refused)),
      section("Running queries", queryTable(queries.running ?? [], access.roles.includes("admin"), again)),
      section("Journal", facts(journalFacts(points))),
    ];
    if (mine !== current) return;
    replace(box, shown);
    box.classList.remove("stale");
    box.dataset.at = formatTime(Date.now());
    failed(null);
  } catch (error) {
    if (!(error instanceof RequestError)) throw error;
    if (mine !== current) return;
    if (box.children.length) {
      box.classList.add("stale");
      error.message += ` Below is the state of ${box.dataset.at}.`;
    }
    failed(error);
  } finally {
    if (mine === current) timer = setTimeout(again, REFRESH_MS);
  }
}

/** Replace the content of the view. The focus stays, and tables keep their scroll positions. */
function replace(box, shown) {
  const key = document.activeElement?.dataset.key;
  const before = [...box.children].map((one) => one.querySelector(".wide"));
  const focused = before.findIndex((one) => one && one === document.activeElement);
  shown.forEach((one, at) => {
    const [to, from] = [one.querySelector(".wide"), before[at]];
    if (to && from) to.dataset.scroll = `${from.scrollLeft} ${from.scrollTop}`;
  });
  box.replaceChildren(...shown);
  for (const one of box.querySelectorAll("[data-scroll]")) [one.scrollLeft, one.scrollTop] = one.dataset.scroll.split(" ").map(Number);
  if (key) [...box.querySelectorAll("[data-key]")].find((one) => one.dataset.key === key)?.focus();
  else if (focused >= 0) box.children[focused].querySelector(".wide")?.focus();
}

export function stop() {
  current += 1;
  clearTimeout(timer);
}
