"""/metrics: all counters, gauges and histograms in the text formats of Prometheus.

The numbers of `stats` get Prometheus names, base units, types and help texts here. A number without an entry is
exposed as a gauge; a test checks that the table has all numbers of a daemon.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    InfoMetricFamily,
    Metric,
)
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import tsd
from tsd.api.health import Health
from tsd.api.hot import SORTS, HotKeys
from tsd.api.messages import check_method
from tsd.config.health import OK
from tsd.ingest.journal.journal import Journal
from tsd.ingest.writer import Writer
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.server.http.stats import LoopLag
from tsd.store.timing import BOUNDS_S, Latency
from tsd.tables.catalog import Stat


class MetricType(NamedTuple):
    """How one number of `stats` is exposed. Its tag becomes a label."""

    name: str  # without the prefix tsd_, and for counters without _total
    help: str
    is_counter: bool = True
    unit: float = 1  # factor from the number's unit to Prometheus' base unit
    label: str = ""  # name of the label, if it differs from the tag's


def _gauge(name: str, text: str, *, unit: float = 1) -> MetricType:
    return MetricType(name, text, is_counter=False, unit=unit)


# By the name in `stats`, or by name and tag. None: not exposed, because another metric is more precise.
METRICS: dict[str, MetricType | None] = {
    "connectionmgr.connections type=open": _gauge("connections_open", "Open connections."),
    "connectionmgr.connections type=rejected": MetricType(
        "connections_rejected", "Connections rejected by a connection limit."
    ),
    "connectionmgr.connections type=total": MetricType("connections_accepted", "Accepted connections."),
    "connectionmgr.exceptions": MetricType(
        "connection_errors", "Connections that ended with an error.", label="reason"
    ),
    "rpc.received": MetricType("requests_received", "Telnet lines, HTTP requests, and put requests among them."),
    "rpc.exceptions": MetricType(
        "internal_errors", "Requests, connections and background tasks that failed because of a bug."
    ),
    "rpc.forbidden": MetricType("requests_forbidden", "Requests without the needed permission.", label="protocol"),
    "rpc.unauthorized": MetricType("requests_unauthorized", "Requests without authentication.", label="protocol"),
    "rpc.errors": None,  # by reason: lines_refused
    "rpc.errors type=socket_writes_blocked": MetricType(
        "error_replies_coalesced", "Error replies that were counted in one line instead of sent."
    ),
    "http.query.invalid_requests": MetricType("queries_invalid", "Queries refused as invalid."),
    "http.query.exceptions": MetricType("queries_failed", "Queries that failed."),
    "http.query.success": MetricType("queries_answered", "Answered queries."),
    "http.latency_50pct": None,  # http_request_duration_seconds
    "http.latency_75pct": None,
    "http.latency_90pct": None,
    "http.latency_95pct": None,
    "http.client-disconnects": MetricType(
        "http_client_disconnects", "Requests that ended because the client disconnected."
    ),
    "http.errors": MetricType("http_errors", "Error responses, also to requests that were not read."),
    "http.body-bytes": _gauge("http_body_bytes", "Memory held by request bodies."),
    "uid.cache-hit": MetricType("uid_cache_hits", "Names and UIDs found in memory."),
    "uid.cache-miss": MetricType("uid_cache_misses", "Names and UIDs looked up in the store."),
    "uid.cache-size": _gauge("uid_cache_entries", "Names and UIDs kept in memory."),
    "uid.random-collisions": MetricType("uid_collisions", "Random UIDs that were already taken."),
    "uid.rejected-assignments": MetricType("uid_assignments_refused", "Names refused a UID."),
    "uid.ids-used": _gauge("uids_used", "Assigned UIDs."),
    "uid.ids-available": _gauge("uids_available", "Free UIDs; 0 for random ones."),
    "datapoints.added": MetricType("points_accepted", "Data points accepted over telnet since the start."),
    "retention.rows": MetricType("retention_rows", "Rows deleted because they had expired."),
    "retention.points": MetricType("retention_points", "Points deleted because they had expired."),
    "retention.bytes": MetricType("retention_bytes", "Bytes deleted because they had expired, before compression."),
    "retention.waiting": _gauge("retention_waiting", "1 while nothing expires because the clock is not trusted."),
    "rollups.points": MetricType("rollup_points_read", "Points read to build rollups."),
    "rollups.cells": MetricType("rollup_cells_written", "Cells of rollups written by the daemon itself."),
    "rollups.late": _gauge("rollup_late_days", "Days of metrics whose rollups lack late points: they are built again."),
    "rollups.complete": _gauge("rollup_complete_seconds", "Time before which rollups are complete, in Unix seconds."),
    "compaction.count": MetricType("compaction_rows", "Compacted rows."),
    "compaction.duplicates": MetricType("compaction_duplicates", "Points dropped as duplicates."),
    "compaction.queue.size": _gauge("compaction_queue_rows", "Rows queued for compaction."),
    "compaction.errors": MetricType("compaction_errors", "Store calls of the compactor that failed.", label="call"),
    "compaction.writes": MetricType("compaction_cells_written", "Cells written by the compactor."),
    "compaction.deletes": MetricType("compaction_cells_deleted", "Cells deleted by the compactor."),
    "compactor.queue-full": MetricType(
        "compaction_rows_not_queued", "Rows left to `tsd compact` because the queue was full."
    ),
    "compactor.rows-skipped": MetricType(
        "compaction_rows_skipped", "Rows not compacted: corrupt, or hidden by deletes."
    ),
    "compactor.oldest-seconds": _gauge(
        "compaction_oldest_seconds", "Seconds since the end of the oldest hour with a queued row."
    ),
    "compactor.folded-points": MetricType("compaction_points_folded", "Points moved to blocks."),
    "compactor.hours-not-folded": MetricType(
        "compaction_folds_left_out", "Hours of metrics not moved to blocks: too many waited, or a block is damaged."
    ),
    "ledger.received": MetricType("lines_received", "Received put lines, including those replayed from the journal."),
    "ledger.stored": MetricType("lines_stored", "Put lines in the store."),
    "ledger.journaled": _gauge("lines_journaled", "Put lines in the journal or on their way to it."),
    "ledger.refused": MetricType("lines_refused", "Refused put lines."),
    "ledger.balance": _gauge("ledger_balance", "Put lines unaccounted for. Anything but 0 is a bug."),
    "telnet.truncated-lines": MetricType("lines_truncated", "Lines whose connection ended before their line end."),
    "ingest.backpressure": _gauge("ingest_backpressure", "1 while the daemon stops reading from its clients."),
    "clients.known": _gauge("clients_known", "Known clients: addresses, and accounts at addresses."),
    "clients.throttled": _gauge("clients_throttled", "Connections paused by a quota."),
    "clients.names-over-pace": MetricType("clients_names_over_pace", "New names that came faster than their pace."),
    "clients.throttled-ms": MetricType(
        "clients_throttled_seconds", "Time that connections were paused by a quota.", unit=0.001
    ),
    "clients.closed": MetricType("connections_closed", "Connections closed because of their client."),
    "clients.partial-input-bytes": _gauge(
        "connections_partial_input_bytes", "Memory of incomplete lines and HTTP heads."
    ),
    "rejected.kept": MetricType("rejected_lines_kept", "Refused lines kept for `tsd rejected`."),
    "rejected.dropped": MetricType("rejected_lines_dropped", "Refused lines dropped because of a limit."),
    "rejected.bytes": _gauge("rejected_bytes", "Size of the log of refused lines."),
    "rejected.failures": MetricType("rejected_failures", "Failed writes to the log of refused lines."),
    "authentication.succeeded": MetricType(
        "authentications_succeeded", "Successful authentications.", label="protocol"
    ),
    "authentication.denied": MetricType("authentications_denied", "Failed authentications.", label="protocol"),
    "auth.accounts": _gauge("auth_accounts", "Accounts in the accounts file."),
    "auth.network-rejections": MetricType(
        "auth_network_rejections", "Connections and requests from networks that are not allowed."
    ),
    "tls.handshakes": MetricType("tls_handshakes", "TLS handshakes."),
    "tls.plain-refused": MetricType("tls_plain_refused", "Connections refused because they did not use TLS."),
    "tls.certificate-seconds-left": _gauge("tls_certificate_left_seconds", "Seconds until the certificate expires."),
    "journal.bytes": _gauge("journal_bytes", "Size of the journal, unwritten bytes included."),
    "journal.segments": _gauge("journal_segments", "Files of the journal."),
    "journal.pending-bytes": _gauge("journal_unsynced_bytes", "Bytes of the journal that are not on disk yet."),
    "journal.syncs": MetricType("journal_syncs", "Groups of lines synced to disk."),
    "journal.failures": MetricType("journal_failures", "Failed writes of the journal."),
    "journal.quarantined": MetricType(
        "journal_quarantined", "Files moved to quarantine: damaged or torn ones, and segments of other daemons."
    ),
    "writer.windows": _gauge("windows_waiting", "Sealed windows that are not in the store yet."),
    "writer.held-points": _gauge("held_points", "Points of open hours in memory and in the journal."),
    "writer.early-releases": MetricType(
        "early_releases",
        "How often open hours were written early: memory or the journal reached a bound, or the store was away.",
    ),
    "writer.cells": MetricType("cells_written", "Cells written for points."),
    "writer.retries": MetricType("store_write_failures", "Failed writes of windows to the store."),
    "series.known": _gauge("series_known", "Series in memory."),
    "process.compiled": _gauge("compiled", "1 if put lines are parsed by the compiled parser, 0 if by Python."),
    # Duplicates process_* of the client library, which needs all of /proc.
    "process.started": _gauge("start_time_seconds", "Start of the daemon, Unix seconds."),
    "process.cpu-ms": MetricType("cpu_seconds", "CPU time of the daemon.", unit=0.001),
    "process.resident-kib": _gauge("resident_memory_bytes", "Resident memory.", unit=1024),
    "process.peak-kib": _gauge("process_peak_memory_bytes", "Peak of resident memory.", unit=1024),
    "canary.rounds": MetricType("canary_rounds", "Canary rounds: a point of its own, written and read back."),
    "canary.missed": MetricType("canary_missed", "Canary rounds that did not find their point."),
    "canary.latency-ms": _gauge("canary_latency_seconds", "Duration of the latest canary round.", unit=0.001),
    "query.warnings": MetricType("query_warnings", "Warnings in answers, such as rows that cannot be read."),
    "query.cache.hits": MetricType("query_cache_hits", "Hours of queries that were taken from the result cache."),
    "query.cache.misses": MetricType("query_cache_misses", "Hours of queries that were read and may be cached."),
    "query.cache.invalidated": MetricType("query_cache_invalidated", "Cached hours that were removed after a write."),
    "query.cache.hours": _gauge("query_cache_entries", "Hours in the result cache."),
    "query.cache.bytes": _gauge("query_cache_bytes", "Bytes of hours in the result cache."),
    "store.clock_ahead_ms": _gauge(
        "store_clock_ahead_seconds", "How far this machine's clock is ahead of those of Cassandra's nodes.", unit=0.001
    ),
    "store.gateways_down": _gauge("store_gateways_down", "Thrift gateways that do not answer."),
    "store.connections_opened": MetricType("store_connections_opened", "Connections opened to Thrift gateways."),
    "store.errors": MetricType("store_errors", "Store calls, or parts of them, that failed."),
    "store.retries": MetricType("store_retries", "Store calls that were repeated."),
    "store.row_cache.hits": MetricType("row_cache_hits", "Hours of many series that queries took from the row cache."),
    "store.row_cache.misses": MetricType("row_cache_misses", "Hours of many series that queries read from RocksDB."),
    "store.row_cache.invalidated": MetricType("row_cache_invalidated", "Hours that left the row cache after a write."),
    "store.row_cache.reads": MetricType("row_cache_reads", "Reads of few rows that queries took from the row cache."),
    "store.row_cache.ranges": _gauge("row_cache_entries", "Hours in the row cache."),
    "store.row_cache.bytes": _gauge("row_cache_bytes", "Bytes of the row cache."),
    "store.stalls": MetricType("store_stalls", "Times RocksDB could not accept a write yet."),
    "store.reopened": MetricType("store_reopened", "Times the embedded store was reopened after an error."),
    "store.cells_put": MetricType("store_cells_put", "Cells put into the store for any purpose."),
}
# The store reports these only after their first event. Rates need an initial 0.
FROM_THE_START = tuple(Stat(f"store.{name}", 0) for name in ("errors", "retries", "stalls", "reopened"))


def metric_type(stat: Stat) -> MetricType | None:
    """Return how a number of `stats` is exposed; None if it is not."""
    for key in (f"{stat.name} {stat.tag}", stat.name):
        if key in METRICS:
            return METRICS[key]
    if stat.name.startswith("store."):  # calls by name, which store_call_duration_seconds counts
        return None
    return _gauge(_underscored(stat.name), f"`tsd.{stat.name}` of the command stats.")


def families(stats: Sequence[Stat]) -> Iterator[Metric]:
    """Yield the metric families of statistics, each with all label values.

    >>> family, *_ = families([Stat("uid.ids-used", 3, "kind=tagk"), Stat("uid.ids-used", 4, "kind=tagv")])
    >>> family.name, [(sample.labels, sample.value) for sample in family.samples]
    ('tsd_uids_used', [({'kind': 'tagk'}, 3), ({'kind': 'tagv'}, 4)])
    """
    found: dict[str, CounterMetricFamily | GaugeMetricFamily] = {}
    names = {stat.name for stat in stats}
    for stat in (*stats, *(stat for stat in FROM_THE_START if stat.name not in names)):
        if (kind := metric_type(stat)) is None:
            continue
        tag, _, value = stat.tag.partition("=")
        has_label = tag and f"{stat.name} {stat.tag}" not in METRICS
        labels = {_underscored(kind.label or tag): value} if has_label else {}
        if (family := found.get(kind.name)) is None:
            make = CounterMetricFamily if kind.is_counter else GaugeMetricFamily
            family = found[kind.name] = make(f"tsd_{kind.name}", kind.help, labels=list(labels))
        family.add_metric(list(labels.values()), stat.value * kind.unit)
    yield from found.values()


def _underscored(name: str) -> str:
    return "".join(letter if letter.isalnum() else "_" for letter in name)


LE = [*map(str, BOUNDS_S), "+Inf"]


@dataclass(frozen=True)
class MetricSources:
    """The sources of the metrics."""

    statistics: Callable[[], Sequence[Stat]]
    journal: Journal
    writer: Writer
    store_calls: Mapping[str, Latency]  # how long calls of the store took
    requests: Mapping[str, Latency]  # durations of HTTP requests by kind
    lag: LoopLag
    hot: HotKeys | None  # None: the table layout counts no ranges


def routes(sources: MetricSources, health: Health) -> dict[str, Endpoint]:
    """Return the endpoint /metrics. It runs the health checks first, which may wait for the store."""

    async def metrics(request: Request) -> Response:
        check_method(request, "GET", "HEAD")
        checks = await health.check("ready")
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        hot = await _hot_metrics(sources.hot) if sources.hot else []
        return Response(200, encode(_registry(sources, checks, hot)), content_type)

    return {"metrics": metrics}


class _FixedCollector(Collector):
    """Metrics collected for one answer."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _registry(sources: MetricSources, health: Mapping[str, str], hot: Iterable[Metric]) -> CollectorRegistry:
    registry = CollectorRegistry()
    stats = sources.statistics()
    registry.register(
        _FixedCollector(
            [*families(stats), *_uid_ratios(stats), *_measurements(sources), *_health_metrics(health), *hot]
        )
    )
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


async def _hot_metrics(hot: HotKeys) -> list[Metric]:
    """Return the shares of the ranges of row keys with most writes and reads. Their number has a bound."""
    found: list[Metric] = []
    for sort, verb in (("writes", "written"), ("reads", "read")):
        text = (
            f"Share of a range of row keys in the cells {verb} in the last ten minutes; those with the largest shares."
        )
        family = GaugeMetricFamily(f"tsd_hot_range_{verb}_ratio", text, labels=["table", "start", "metric", "tags"])
        for row in await hot.wide_ranges(sort):
            names = row.get("metric", ""), row.get("tags", "")
            family.add_metric([row["table"], row["start"], *names], row[SORTS[sort]])
        found.append(family)
    return found


def _health_metrics(health: Mapping[str, str]) -> Iterator[Metric]:
    yield InfoMetricFamily("tsd_build", "Version of the daemon.", {"version": tsd.version()})
    yield GaugeMetricFamily("tsd_ready", "1 if /health/ready answers ok.", float(health["status"] == OK))
    checks = GaugeMetricFamily("tsd_healthy", "1 if /health/CHECK answers ok.", labels=["check"])
    for check, result in health.items():
        if check != "status":
            checks.add_metric([check], float(result == OK))
    yield checks


def _measurements(sources: MetricSources) -> Iterator[Metric]:
    journal, writer = sources.journal, sources.writer
    yield GaugeMetricFamily(
        "tsd_oldest_unstored_seconds", "Age of the oldest point that is due and not stored.", writer.waiting_s
    )
    yield GaugeMetricFamily(
        "tsd_journal_limit_bytes",
        "Size of the journal at which the daemon stops reading from clients.",
        journal.max_bytes,
    )
    yield _histogram("tsd_journal_sync_duration_seconds", "Duration of the journal's syncs.", journal.sync_times)
    yield _histogram(
        "tsd_journal_wait_duration_seconds",
        "Time from the arrival of a group's first line until the group is on disk.",
        journal.wait_times,
    )
    yield _histogram("tsd_loop_lag_seconds", "Delay of the event loop, sampled every minute.", sources.lag.late)
    yield _histograms(
        "tsd_http_request_duration_seconds", "Duration of HTTP requests.", "kind", sources.requests.items()
    )
    if sources.store_calls:
        yield _histograms(
            "tsd_store_call_duration_seconds", "Duration of store calls.", "call", sources.store_calls.items()
        )


def _uid_ratios(stats: Sequence[Stat]) -> Iterator[Metric]:
    used = {stat.tag: stat.value for stat in stats if stat.name == "uid.ids-used"}
    available = {stat.tag: stat.value for stat in stats if stat.name == "uid.ids-available"}
    ratios = GaugeMetricFamily("tsd_uids_used_ratio", "Used UIDs, of all UIDs of a kind.", labels=["kind"])
    for tag, count in used.items():
        ratios.add_metric([tag.removeprefix("kind=")], count / max(count + available[tag], 1))
    if used:
        yield ratios


def _histogram(name: str, text: str, latencies: Latency) -> Metric:
    return HistogramMetricFamily(name, text, buckets=_buckets(latencies), sum_value=latencies.total_s)


def _histograms(name: str, text: str, label: str, latencies: Iterable[tuple[str, Latency]]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=[label])
    for value, latency in latencies:
        family.add_metric([value], _buckets(latency), latency.total_s)
    return family


def _buckets(latencies: Latency) -> list[tuple[str, float]]:
    """Return the cumulative buckets of Prometheus: each bound with the count of shorter durations."""
    found, passed = [], 0
    for bound, count in zip(LE, latencies.counts, strict=True):
        passed += count
        found.append((bound, float(passed)))
    return found
