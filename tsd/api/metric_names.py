"""The numbers of `stats` → what Prometheus calls them: its names, base units, types and a sentence on each.

A number of `stats` that is not here would be told without its type: a test holds this table against a daemon's.
"""

from collections.abc import Iterator, Sequence
from typing import NamedTuple

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from tsd.stats import Stat


class Told(NamedTuple):
    """How a number is told. Tags of the line in `stats` are labels here."""

    name: str  # behind tsd_; a counter's without the _total that it gets
    help: str
    counter: bool = True
    unit: float = 1  # what one stands for, in Prometheus' base unit
    label: str = ""  # the name of the label, where it is not the tag's


def _gauge(name: str, text: str, *, unit: float = 1, label: str = "") -> Told:
    return Told(name, text, counter=False, unit=unit, label=label)


# By the name in `stats`, or where the tag decides by both. None: something else tells the same, and better.
TOLD: dict[str, Told | None] = {
    "connectionmgr.connections type=open": _gauge("connections_open", "Connections that are open."),
    "connectionmgr.connections type=rejected": Told("connections_rejected", "Connections closed as one too many."),
    "connectionmgr.connections type=total": Told("connections_accepted", "Connections made."),
    "connectionmgr.exceptions": Told("connections_broken", "Connections that did not end well.", label="reason"),
    "rpc.received": Told("requests_received", "Telnet lines, HTTP requests, and those of them that put."),
    "rpc.exceptions": Told("internal_errors", "Requests, connections and tasks that met an error of the daemon."),
    "rpc.forbidden": Told("requests_forbidden", "Requests refused because of who asked.", label="door"),
    "rpc.unauthorized": Told("requests_unauthorized", "Requests of those who did not say who they are.", label="door"),
    "rpc.errors": None,  # by reason: lines_refused
    "rpc.errors type=socket_writes_blocked": Told("replies_summed_up", "Refusals told in one line with others."),
    "http.query.invalid_requests": Told("queries_invalid", "Queries that cannot be run as they were asked."),
    "http.query.exceptions": Told("queries_failed", "Queries that failed."),
    "http.query.success": Told("queries_answered", "Queries that were answered."),
    "http.latency_50pct": None,  # http_request_duration_seconds
    "http.latency_75pct": None,
    "http.latency_90pct": None,
    "http.latency_95pct": None,
    "http.hung-up": Told("http_hung_up", "Questions whose client went away before the answer."),
    "http.body-bytes": _gauge("http_body_bytes", "Memory held by the bodies of requests."),
    "uid.cache-hit": Told("uid_cache_hits", "Names and UIDs found in memory."),
    "uid.cache-miss": Told("uid_cache_misses", "Names and UIDs looked up in the store."),
    "uid.cache-size": _gauge("uid_cache_entries", "Names and UIDs kept in memory."),
    "uid.random-collisions": Told("uid_collisions", "Random UIDs that were taken already."),
    "uid.rejected-assignments": Told("uid_assignments_refused", "Names that got no UID."),
    "uid.ids-used": _gauge("uids_used", "UIDs given out."),
    "uid.ids-available": _gauge("uids_available", "UIDs that are left; 0 too where they are random."),
    "datapoints.added": Told("points_accepted", "Points taken in over telnet since the start."),
    "compaction.count": Told("compaction_rows", "Rows made one cell."),
    "compaction.duplicates": Told("compaction_duplicates", "Points dropped because another had their time."),
    "compaction.queue.size": _gauge("compaction_queue_rows", "Rows that wait to become one cell."),
    "compaction.errors": Told("compaction_errors", "Calls of the store that failed.", label="call"),
    "compaction.writes": Told("compaction_cells_written", "Cells written."),
    "compaction.deletes": Told("compaction_cells_deleted", "Cells deleted."),
    "compactor.queue-full": Told("compaction_rows_left_out", "Rows left to `tsd compact`: the queue was full."),
    "compactor.rows-left": Told("compaction_rows_left", "Rows left as they are, corrupt or hidden by deletes."),
    "ledger.received": Told("lines_received", "Put lines that came, those found in the journal at the start included."),
    "ledger.stored": Told("lines_stored", "Put lines that are in the store."),
    "ledger.journaled": _gauge("lines_journaled", "Put lines that wait in the journal, or on their way there."),
    "ledger.refused": Told("lines_refused", "Put lines that will not be stored."),
    "ledger.balance": _gauge("ledger_balance", "Put lines that are nowhere: 0, or there is a bug."),
    "telnet.cut-lines": Told("lines_cut", "Lines whose connection ended before they did."),
    "intake.stopped": _gauge("intake_stopped", "1 while the daemon does not read from its clients."),
    "clients.known": _gauge("clients_known", "Clients: addresses, and accounts at addresses."),
    "clients.pausing": _gauge("clients_pausing", "Connections that are not read from, because of a quota."),
    "clients.paused-ms": Told("clients_paused_seconds", "For how long connections were not read from.", unit=0.001),
    "clients.closed": Told("connections_ended", "Connections ended because of what their client did."),
    "clients.unfinished-bytes": _gauge("connections_unfinished_bytes", "Memory of lines and heads not whole yet."),
    "rejected.kept": Told("rejected_lines_kept", "Refused lines kept for `tsd rejected`."),
    "rejected.left-out": Told("rejected_lines_left_out", "Refused lines that were too many to be kept."),
    "rejected.bytes": _gauge("rejected_bytes", "Size of the log of refused lines."),
    "rejected.failures": Told("rejected_failures", "Times that refused lines could not be kept."),
    "authentication.succeeded": Told("authentications_succeeded", "Who showed who they are.", label="door"),
    "authentication.denied": Told("authentications_denied", "Who could not show who they are.", label="door"),
    "access.accounts": _gauge("access_accounts", "Accounts in the file of accounts."),
    "access.outside-networks": Told("access_outside_networks", "Connections and requests from networks not let in."),
    "tls.handshakes": Told("tls_handshakes", "TLS handshakes."),
    "tls.plain-refused": Told("tls_plain_refused", "Connections refused because they did not speak TLS."),
    "tls.certificate-seconds-left": _gauge("tls_certificate_left_seconds", "For how long the certificate holds."),
    "journal.bytes": _gauge("journal_bytes", "Journal on disk and on its way."),
    "journal.segments": _gauge("journal_segments", "Files of the journal."),
    "journal.pending-bytes": _gauge("journal_unsynced_bytes", "Journal that is only in memory yet."),
    "journal.syncs": Told("journal_groups", "Groups of lines put on disk."),
    "journal.failures": Told("journal_failures", "Times that the disk refused a group of lines."),
    "journal.set-aside": Told("journal_set_aside", "Files put aside: what was damaged or torn, and others' segments."),
    "writer.windows": _gauge("windows_waiting", "Sealed windows that are not in the store yet."),
    "writer.cells": Told("cells_written", "Cells put into the store for points."),
    "writer.retries": Told("store_write_failures", "Times that the store did not take a window."),
    "series.known": _gauge("series_known", "Series in memory."),
    "process.compiled": _gauge("compiled", "1 where put lines are read in the compiled loop, 0 where in Python."),
    # As process_* of the client library too, which has nothing to tell where it may not see all of /proc.
    "process.started": _gauge("start_time_seconds", "When the daemon was started, in seconds since 1970."),
    "process.cpu-ms": Told("cpu_seconds", "Time of processors that the daemon took.", unit=0.001),
    "process.resident-kib": _gauge("resident_memory_bytes", "Memory that is resident.", unit=1024),
    "process.peak-kib": _gauge("process_peak_memory_bytes", "Most memory that was resident at once.", unit=1024),
    "canary.rounds": Told("canary_rounds", "Rounds of the canary: a point of its own, taken in and read back."),
    "canary.missed": Told("canary_missed", "Rounds at whose end the point was not there."),
    "canary.latency-ms": _gauge("canary_latency_seconds", "What the canary's latest round took.", unit=0.001),
    "query.warnings": Told(
        "query_warnings", "What answers were without, and said so: rows that cannot be read and such."
    ),
    "query.remembered.hits": Told("query_cache_hits", "Hours of queries that need not be read again."),
    "query.remembered.misses": Told("query_cache_misses", "Hours of queries that were read, and might be remembered."),
    "query.remembered.invalidated": Told("query_cache_invalidated", "Remembered hours that were written to."),
    "query.remembered.hours": _gauge("query_cache_entries", "Hours that are remembered."),
    "query.remembered.bytes": _gauge("query_cache_bytes", "Memory of hours that are remembered."),
    "store.gateways_down": _gauge("store_gateways_down", "Thrift gateways that do not answer."),
    "store.connections_opened": Told("store_connections_opened", "Connections made to Thrift gateways."),
    "store.errors": Told("store_errors", "Calls of the store, or parts of them, that failed."),
    "store.retries": Told("store_retries", "Calls of the store that were repeated."),
    "store.stalls": Told("store_stalls", "Times that RocksDB had no room for a write yet."),
    "store.reopened": Told("store_reopened", "Times that the embedded store was opened again after an error."),
    "store.cells_put": Told("store_cells_put", "Cells put into the store, for whatever purpose."),
}
# These are counted by the store once they occur: rates of what was never there begin too late.
FROM_THE_START = tuple(Stat(f"store.{name}", 0) for name in ("errors", "retries", "stalls", "reopened"))


def told(stat: Stat) -> Told | None:
    """How a number of `stats` is told; None where it is not."""
    for key in (f"{stat.name} {stat.tag}", stat.name):
        if key in TOLD:
            return TOLD[key]
    if stat.name.startswith("store."):  # calls, by name: store_call_duration_seconds counts them
        return None
    return _gauge(_plain(stat.name), f"`tsd.{stat.name}` of the command stats.")


def families(stats: Sequence[Stat]) -> Iterator[Metric]:
    """The metrics of some numbers, each with all of its labels' values.

    >>> family, *_ = families([Stat("uid.ids-used", 3, "kind=tagk"), Stat("uid.ids-used", 4, "kind=tagv")])
    >>> family.name, [(sample.labels, sample.value) for sample in family.samples]
    ('tsd_uids_used', [({'kind': 'tagk'}, 3), ({'kind': 'tagv'}, 4)])
    """
    found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    there = {stat.name for stat in stats}
    for stat in (*stats, *(stat for stat in FROM_THE_START if stat.name not in there)):
        if (how := told(stat)) is None:
            continue
        tag, _, value = stat.tag.partition("=")
        labels = {_plain(how.label or tag): value} if tag and f"{stat.name} {stat.tag}" not in TOLD else {}
        if (family := found.get(how.name)) is None:
            make = CounterMetricFamily if how.counter else GaugeMetricFamily
            family = found[how.name] = make(f"tsd_{how.name}", how.help, labels=list(labels))
        family.add_metric(list(labels.values()), stat.value * how.unit)
    yield from found.values()


def _plain(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)
