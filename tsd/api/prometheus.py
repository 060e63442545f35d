"""/metrics: everything that can be counted or timed, in the text formats that Prometheus reads.

Nothing here costs anything until somebody asks: the parts count as they go, and are looked at then.
"""

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from prometheus_client import CollectorRegistry, PlatformCollector, ProcessCollector
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily, InfoMetricFamily, Metric
from prometheus_client.exposition import choose_encoder
from prometheus_client.registry import Collector

import tsd
from tsd.api.health import OK, Health
from tsd.api.messages import check_method
from tsd.api.metric_names import families
from tsd.codec.uid import Kind
from tsd.compaction.pace import PacedCompactor
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.ingest.journal import Journal
from tsd.ingest.writer import Writer
from tsd.latency import BOUNDS_S, Latency
from tsd.loop_lag import LoopLag
from tsd.stats import Stat
from tsd.store import Store
from tsd.store.timing import Timed
from tsd.uid_flight import KindStatistics

LE = [*map(str, BOUNDS_S), "+Inf"]


@dataclass(frozen=True)
class Sources:
    """Whom the numbers come from that `stats` does not tell."""

    statistics: Callable[[], Sequence[Stat]]
    journal: Journal
    writer: Writer
    compactor: PacedCompactor | None
    store: Store
    uids: Callable[[], Mapping[Kind, KindStatistics]]
    requests: Mapping[str, Latency]  # over HTTP, by what they want
    lag: LoopLag


def routes(sources: Sources, health: Health) -> dict[str, Endpoint]:
    """GET /metrics. Health is asked for first, which may take as long as a store that does not answer is given."""

    async def metrics(request: Request) -> Response:
        check_method(request, "GET", "HEAD")
        found = await health.look("ready")
        encode, content_type = choose_encoder(request.headers.get("accept", ""))
        return Response(200, encode(_registry(sources, found)), content_type)

    return {"metrics": metrics}


class _Once(Collector):
    """Metrics that were made for one answer."""

    def __init__(self, metrics: Iterable[Metric]) -> None:
        self._metrics = metrics

    def collect(self) -> Iterable[Metric]:
        return self._metrics


def _registry(sources: Sources, health: Mapping[str, str]) -> CollectorRegistry:
    registry = CollectorRegistry()
    registry.register(_Once([*families(sources.statistics()), *_measured(sources), *_healthy(health)]))
    ProcessCollector(registry=registry)
    PlatformCollector(registry=registry)
    return registry


def _healthy(health: Mapping[str, str]) -> Iterator[Metric]:
    yield InfoMetricFamily("tsd_build", "What runs here.", {"version": tsd.__version__})
    yield GaugeMetricFamily("tsd_ready", "1 where /health/ready says so.", float(health["status"] == OK))
    checks = GaugeMetricFamily("tsd_healthy", "1 where /health/CHECK says so.", labels=["check"])
    for check, verdict in health.items():
        if check != "status":
            checks.add_metric([check], float(verdict == OK))
    yield checks


def _measured(sources: Sources) -> Iterator[Metric]:
    journal, writer = sources.journal, sources.writer
    yield GaugeMetricFamily(
        "tsd_oldest_unstored_seconds", "For how long the oldest point waits for the store.", writer.waiting_s
    )
    yield GaugeMetricFamily(
        "tsd_journal_limit_bytes", "The size at which reading from clients stops.", journal.max_bytes
    )
    yield _histogram("tsd_journal_sync_duration_seconds", "What the journal's disk takes to sync.", journal.sync_times)
    yield _histogram(
        "tsd_journal_wait_duration_seconds",
        "From a line's coming until it is on disk: of the first line of each group.",
        journal.wait_times,
    )
    yield _histogram("tsd_loop_lag_seconds", "How late the event loop is, looked at twice a second.", sources.lag.late)
    yield _histograms("tsd_http_request_duration_seconds", "What HTTP requests took.", "kind", sources.requests.items())
    if isinstance(sources.store, Timed):
        yield _histograms(
            "tsd_store_call_duration_seconds", "What calls of the store took.", "call", sources.store.took.items()
        )
    if sources.compactor is not None:
        oldest_s = sources.compactor.statistics().oldest_s
        yield GaugeMetricFamily(
            "tsd_compaction_oldest_seconds", "How long ago the oldest hour of a waiting row was over.", oldest_s
        )
    shares = GaugeMetricFamily("tsd_uids_used_ratio", "Share of all UIDs that is given out.", labels=["kind"])
    for kind, uids in sources.uids().items():
        shares.add_metric([kind.value], uids.used / max(uids.used + uids.available, 1))
    yield shares


def _histogram(name: str, text: str, took: Latency) -> Metric:
    return HistogramMetricFamily(name, text, buckets=_buckets(took), sum_value=took.total_s)


def _histograms(name: str, text: str, label: str, took: Iterable[tuple[str, Latency]]) -> Metric:
    family = HistogramMetricFamily(name, text, labels=[label])
    for value, latency in took:
        family.add_metric([value], _buckets(latency), latency.total_s)
    return family


def _buckets(took: Latency) -> list[tuple[str, float]]:
    """Each bound with the number of times that were no longer, as Prometheus has them."""
    found, passed = [], 0
    for bound, count in zip(LE, took.counts, strict=True):
        passed += count
        found.append((bound, float(passed)))
    return found
