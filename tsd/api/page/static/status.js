// The daemon's own state: health, ledger, journal, clients, refused lines and running queries.

import { getJson, send } from "./http.js";
import { formatTime } from "./state.js";
import { tableOf } from "./table.js";
import { act, count, element, facts, refreshedView, section } from "./views.js";

const REFRESH_MS = 5000;

function bytes(value) {
  const units = ["B", "KiB", "MiB", "GiB", "TiB"];
  let [size, at] = [Number(value), 0];
  while (size >= 1024 && at < units.length - 1) {
    size /= 1024;
    at += 1;
  }
  return `${size.toFixed(at && size < 100 ? 1 : 0)} ${units[at]}`;
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

function queryTable(queries, { access, failed }, again) {
  const mayCancel = access.roles.includes("admin");
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
      button.addEventListener("click", () => {
        button.disabled = true;
        return act(getJson(`/api/stats/query?id=${one.id}`, { method: "DELETE" }), again, failed);
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

async function content(given, again) {
  const parts = [health(), getJson("/api/stats"), getJson("/api/stats/clients"), getJson("/api/stats/rejected"), getJson("/api/stats/query")];
  const [state, points, clients, refused, queries] = await Promise.all(parts);
  const value = lookup(points);
  return [
    section("Health", facts(healthFacts(state))),
    section("Lines", facts(ledgerFacts(value, speedOf(value("ledger.received"))))),
    section("Who sends", clientTable(clients)),
    section("Refused lines", refusedTable(refused)),
    section("Running queries", queryTable(queries.running ?? [], given, again)),
    section("Journal", facts(journalFacts(points))),
  ];
}

export const { start, stop } = refreshedView(content, REFRESH_MS);
