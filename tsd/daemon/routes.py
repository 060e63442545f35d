"""HTTP routes: builds all endpoints from the parts of the daemon.

A new module of `tsd.api` needs one line in `routes`.
"""

from collections.abc import Awaitable, Callable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

import trio

from tsd.api import annotation, health, hot, put, query, search, stats, suggest, system, tree, uid, uid_meta
from tsd.api.points import PutHandler, StoreFlush
from tsd.auth.hosts import LOCAL_HOSTS, parse_hosts
from tsd.auth.roles import endpoint_permissions
from tsd.config.loader import name_rules, state_folder
from tsd.config.settings import Config, Mode
from tsd.daemon.parts import CoreParts
from tsd.errors import PointsWait
from tsd.ingest.writer import Writer
from tsd.lazy import LazyModule
from tsd.server.http.bodies import MemoryBudget
from tsd.server.http.connection import HttpConnection, HttpPort, RequestLimits
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.server.http.router import Router
from tsd.server.http.security import Authorizer, Cors, EndpointSwitches
from tsd.server.http.stats import HttpStatistics, LoopLag, RequestStats
from tsd.server.peer import Peer
from tsd.tables.quirks import quirks_for

if TYPE_CHECKING:
    from tsd.api import entity, expressions, heroic, metrics
    from tsd.api.graph import endpoint as graph
    from tsd.api.kairosdb import routes as kairosdb
    from tsd.api.page import endpoint as page
else:  # most daemons need none of them: together they are a fifth of what a start imports
    entity = LazyModule("tsd.api.entity")
    expressions = LazyModule("tsd.api.expressions")
    heroic = LazyModule("tsd.api.heroic")
    metrics = LazyModule("tsd.api.metrics")
    graph = LazyModule("tsd.api.graph.endpoint")
    kairosdb = LazyModule("tsd.api.kairosdb.routes")
    page = LazyModule("tsd.api.page.endpoint")


class DeferredEndpoints:
    """Endpoints that are built with the first request to one of them, in a thread: imports take some 10 ms."""

    def __init__(self, build: Callable[[], Mapping[str, Endpoint]]) -> None:
        """`build` uses modules of `tsd.lazy` and returns the endpoints by the first words of their paths."""
        self._build = build
        self._built: Mapping[str, Endpoint] = {}
        self._building = trio.Lock()

    def at(self, *paths: str) -> dict[str, Endpoint]:
        """Return endpoints for paths. They are all that `build` returns."""
        return {path: partial(self._answer, path) for path in paths}

    async def _answer(self, path: str, request: Request) -> Response:
        if not self._built:
            async with self._building:
                self._built = self._built or await trio.to_thread.run_sync(self._build)
        return await self._built[path](request)


def routes(parts: CoreParts, request_stats: RequestStats, watch: health.Health, lag: LoopLag) -> dict[str, Endpoint]:
    """Return all endpoints by the first words of their paths."""
    config, control = parts.config, parts.control
    rules = query.QueryRules(quirks_for(config.corrected), config.allow_delete, _cors(config))
    queries = query.Queries(parts.query.engine, parts.query.registry, rules, parts.now_ms)
    return {
        **_catalog_routes(parts),
        **_put_routes(parts),
        **system.utility_routes(control.drop_caches, control.stop, may_stop=not config.no_diediedie),
        **system.config_routes(config),
        **health.routes(watch),
        **system.log_routes(),
        **system.static_routes(config.staticroot, parts.now_ms),
        **stats.rejected_routes(state_folder(config), parts.ingest.rejected.flush),
        **stats.client_routes(parts.access.clients),
        **hot.routes(parts.hot_keys),
        **stats.routes(control.statistics, control.stats_tags, parts.now_ms, lambda: _gateways(parts)),
        **query.routes(queries),
        **_kairosdb_routes(parts, queries, watch),
        **_heroic_routes(parts),
        **_entity_routes(parts),
        **_deferred_routes(parts, queries, lambda: metrics.routes(_metric_sources(parts, request_stats, lag), watch)),
    }


def _cors(config: Config) -> Cors:
    """Return the origins that CORS allows."""
    return Cors(config.cors_domains, config.cors_headers)


def _deferred_routes(
    parts: CoreParts, queries: query.Queries, metric_routes: Callable[[], Mapping[str, Endpoint]]
) -> dict[str, Endpoint]:
    """Return the endpoints that are imported with their first request."""
    config = parts.config
    entity_tag = config.entity_tag if parts.tables.entities else None
    fonts = state_folder(config) / "matplotlib"
    return {
        **DeferredEndpoints(metric_routes).at("metrics"),
        **DeferredEndpoints(
            lambda: page.routes(has_accounts=config.authentication, entity_tag=entity_tag)
        ).at("", "ui"),
        **DeferredEndpoints(lambda: expressions.routes(queries)).at("api/query/exp", "api/query/gexp"),
        **DeferredEndpoints(lambda: graph.routes(queries, fonts)).at("q"),
    }  # fmt: skip


def _metric_sources(parts: CoreParts, request_stats: RequestStats, lag: LoopLag) -> "metrics.MetricSources":
    """Return the sources of /metrics."""
    return metrics.MetricSources(
        parts.control.statistics,
        parts.ingest.journal,
        parts.ingest.writer,
        parts.store.latencies,
        request_stats.durations,
        lag,
        parts.hot_keys,
    )


def _put_handler(parts: CoreParts) -> PutHandler:
    writer = parts.ingest.writer
    return PutHandler(parts.ingest.intake, StoreFlush(writer.flush_due, lambda: writer.trouble))


def _put_routes(parts: CoreParts) -> dict[str, Endpoint]:
    """Return the endpoints that accept points."""
    handler = _put_handler(parts)
    return {
        **put.routes(handler, name_rules(parts.config), parts.config.header_tag),
        **put.rollup_routes(handler, parts.tables.rollups),
        **put.histogram_routes(handler, parts.tables.histograms),
    }


def _kairosdb_routes(parts: CoreParts, queries: query.Queries, watch: health.Health) -> dict[str, Endpoint]:
    """Return KairosDB's endpoints; none if they are not enabled."""
    if not (parts.config.kairosdb or parts.config.has_kairosdb_tables):
        return {}
    return kairosdb.routes(
        kairosdb.KairosParts(
            _put_handler(parts),
            queries,
            parts.tables.deleter,
            parts.tables.catalog,
            parts.tables.services,
            watch,
            parts.config.kairosdb_dialect,
            has_ttl=parts.tables.has_ttl,
            has_texts=parts.tables.has_texts,
            read_only=parts.config.mode is Mode.READ_ONLY,
        )
    )


def _heroic_routes(parts: CoreParts) -> dict[str, Endpoint]:
    """Return Heroic's endpoint; none if it is not enabled."""
    config = parts.config
    if not (config.heroic or config.has_heroic_tables):
        return {}
    resource_tags = config.resource_tags if config.has_heroic_tables else None
    return heroic.routes(_put_handler(parts), resource_tags)


def _entity_routes(parts: CoreParts) -> dict[str, Endpoint]:
    """Return the endpoint of entities; it refuses requests if their tables are not kept."""
    entities, mode = parts.tables.entities, parts.config.mode
    if entities is None:
        return DeferredEndpoints(lambda: entity.routes(None)).at("api/entity")
    access = entity.EntityAccess(
        mode is not Mode.WRITE_ONLY, mode is not Mode.READ_ONLY, name_rules(parts.config).extra
    )
    stored = partial(_write_metric, parts.ingest.writer)
    made = entity.EntityEndpoint(entities, parts.query.engine, access, parts.store.sync, stored, parts.now_ms)
    return entity.routes(made)


async def _write_metric(writer: Writer, metric: bytes) -> None:
    """Wait until all points of a metric accepted so far are stored. Raise PointsWait."""
    if not await writer.write_metric(metric):
        raise PointsWait


def _catalog_routes(parts: CoreParts) -> dict[str, Endpoint]:
    """Return the endpoints of names and series."""
    config, tables = parts.config, parts.tables
    catalog, stored = tables.catalog, partial(_write_metric, parts.ingest.writer)
    extra = config.allow_specialchars.encode("latin-1")
    rules = search.LastRules(exact_back_scans=not config.track_series, quirks=quirks_for(config.corrected))
    return {
        **annotation.routes(tables.annotations, catalog, parts.now_ms),
        **search.last_routes(catalog, stored, rules),
        **search.lookup_routes(catalog, stored),
        **tree.routes(tables.trees, catalog),
        **suggest.routes(catalog),
        **uid.routes(
            tables.names,
            partial(parts.ingest.writer.flush, patient=False),
            parts.control.drop_caches,
            extra=extra,
            meta=uid_meta.endpoints(tables.metadata, tables.names, catalog),
            new_names=parts.ingest.new_names,
        ),
    }


def _gateways(parts: CoreParts) -> list[Mapping[str, Any]]:
    """Return the statistics of the store's servers; the embedded store has none."""
    counts = parts.store.statistics()
    return [{"endpoint": endpoint, **counts} for endpoint in parts.store.capabilities.endpoints]


class HttpServer:
    """Serves the HTTP connections of a daemon."""

    def __init__(self, parts: CoreParts) -> None:
        config, ingest = parts.config, parts.ingest
        self.request_stats = RequestStats()
        self._probe = health.StoreProbe(parts.tables.check)
        self.health = health.Health(
            config.mode, ingest.backpressure, ingest.journal, self._probe, lambda: ingest.writer.trouble or ""
        )
        self._lag = LoopLag()
        self.hot_keys = parts.hot_keys
        self.endpoints = routes(parts, self.request_stats, self.health, self._lag)
        self._authorizer = Authorizer(
            _cors(config),
            parts.access.authenticator,
            endpoint_permissions(config.health_for, config.metrics_for, may_delete=config.allow_delete),
            EndpointSwitches(config.mode, config.enable_api, config.enable_ui),
        )
        self._port = HttpPort(
            Router(self.endpoints, self._authorizer, shows_traces=config.show_stack_trace),
            RequestLimits(config.max_chunk, config.http_timeout_s, config.enable_chunked, config.hsts_s),
            MemoryBudget(config.http_memory),
            self.request_stats,
        )

    def limit_hosts(self, config: Config, *, is_local: bool) -> None:
        """Allow only requests whose Host header is in `tsd.http.hosts`. `is_local`: only this machine can connect."""
        default = LOCAL_HOSTS if is_local else "*"
        self._authorizer.hosts = parse_hosts(default if config.hosts is None else config.hosts)

    async def run(self) -> None:
        """Run the background tasks of endpoints until cancelled."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._probe.run)
            nursery.start_soon(self._lag.run)

    async def serve(
        self, stream: trio.abc.Stream, first: bytes, receive: Callable[[], Awaitable[bytes]], peer: Peer
    ) -> None:
        """Serve one connection until it ends."""
        await HttpConnection(self._port, stream, peer).run(first, receive)

    def statistics(self) -> HttpStatistics:
        """Return the current statistics."""
        request_stats = self.request_stats
        return HttpStatistics(
            requests=request_stats.requests,
            puts=request_stats.puts,
            errors=dict(request_stats.errors),
            not_http=request_stats.not_http,
            client_disconnects=request_stats.client_disconnects,
            queries=dict(request_stats.queries),
            latencies=request_stats.latencies,
            graph_latencies=request_stats.graph_latencies,
            body_bytes=self._port.budget.used,
            failures=self._port.router.failures,
        )
