"""HTTP's half of a daemon: which endpoints there are, and what of the daemon each one gets.

A new module of `tsd.api` is wired in `routes`, with one line.
"""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import trio

from tsd.access.doorkeeper import Doorkeeper
from tsd.access.needs import endpoints as needs_of
from tsd.api import (
    annotation,
    clients,
    exp,
    graph,
    health,
    histogram,
    last,
    logs,
    lookup,
    meta,
    prometheus,
    put,
    query,
    rollup,
    small,
    static,
    stats,
    suggest,
    tree,
    uid,
)
from tsd.api import config as config_api
from tsd.api.taking import PointsDoor, Storing
from tsd.assembly import name_rules
from tsd.compaction.pace import PacedCompactor
from tsd.config import Backend, Config, gateways, layout, state_folder
from tsd.doors.bodies import Room
from tsd.doors.clients import Clients
from tsd.doors.cors import Cors
from tsd.doors.dispatch import Dispatcher, Rules
from tsd.doors.exchange import Endpoint
from tsd.doors.permits import Permits
from tsd.doors.tally import Statistics, Tally
from tsd.doors.visitor import Visitor
from tsd.doors.web import Bounds, WebSession
from tsd.ingest.intake import Intake
from tsd.ingest.journal import Journal
from tsd.ingest.rows import OpenRows
from tsd.ingest.writer import Writer
from tsd.loop_lag import LoopLag
from tsd.metadata.described import SeriesMetas, UidMetas
from tsd.metadata.notes import Notes
from tsd.metadata.trees import Trees
from tsd.query.engine import Engine
from tsd.query.running import Registry
from tsd.series_watch import SeriesWatch
from tsd.stats import Stat
from tsd.store import Store
from tsd.uids import Uids


@dataclass(frozen=True)
class Parts:
    """What endpoints are made of."""

    config: Config
    store: Store
    uids: Uids
    rows: OpenRows
    journal: Journal
    intake: Intake
    writer: Writer
    compactor: PacedCompactor | None
    now_ms: Callable[[], int]  # the wall clock
    drop_caches: Callable[[], None]
    stop: Callable[[], None]
    statistics: Callable[[], Sequence[Stat]]
    stats_tags: Callable[[], str]
    watch: SeriesWatch
    engine: Engine
    queries: Registry  # that run, and that ran
    clients: Clients
    doorkeeper: Doorkeeper


def routes(parts: Parts, tally: Tally, watch: health.Health, lag: LoopLag) -> dict[str, Endpoint]:
    """Every endpoint, by the first words of its path."""
    config = parts.config
    return {
        **_described(parts),
        **_written(parts),
        **small.routes(parts.drop_caches, parts.stop, may_stop=not config.no_diediedie),
        **config_api.routes(config),
        **health.routes(watch),
        **logs.routes(),
        **prometheus.routes(_sources(parts, tally, lag), watch),
        **static.routes(config.staticroot, parts.now_ms),
        **clients.routes(parts.clients),
        **stats.routes(parts.statistics, parts.stats_tags, parts.now_ms, lambda: _gateways(parts)),
        **query.routes(parts.engine, parts.queries, query.Rules(config.corrected, config.allow_delete), parts.now_ms),
        **graph.routes(
            parts.engine,
            parts.queries,
            query.Rules(config.corrected, config.allow_delete),
            parts.now_ms,
            state_folder(config) / "matplotlib",
        ),
        **exp.routes(parts.engine, parts.queries, query.Rules(config.corrected, config.allow_delete), parts.now_ms),
    }


def _sources(parts: Parts, tally: Tally, lag: LoopLag) -> prometheus.Sources:
    """What /metrics tells beside the numbers of `stats`."""
    return prometheus.Sources(
        parts.statistics,
        parts.journal,
        parts.writer,
        parts.compactor,
        parts.store,
        parts.uids.statistics,
        tally.took,
        lag,
    )


def _written(parts: Parts) -> dict[str, Endpoint]:
    """What takes data points."""
    intake = parts.intake
    door = PointsDoor(intake, Storing(lambda: parts.writer.flush(patient=False), lambda: parts.writer.trouble))
    return {
        **put.routes(door, intake, name_rules(parts.config), parts.config.header_tag),
        **rollup.routes(door, intake),
        **histogram.routes(door, intake),
    }


def _described(parts: Parts) -> dict[str, Endpoint]:
    """What there is to ask and say of names and series."""
    config, store, uids, watch = parts.config, parts.store, parts.uids, parts.watch
    form = layout(config)
    names = UidMetas(store, config.uid_table)
    series = SeriesMetas(store, config.meta_table, form.widths)
    told = meta.endpoints(uids, names, series, form.widths, lambda: parts.now_ms() // 1000)
    notes = Notes(store, config.data_table, form)
    trees = Trees(store, config.tree_table, lambda: parts.now_ms() // 1000)
    extra = config.allow_specialchars.encode("latin-1")

    return {
        **annotation.routes(notes, form, parts.now_ms),
        **last.routes(
            last.Answers(
                watch.known,
                watch.points,
                uids,
                form.widths,
                exact_back_scans=not config.track_series,
                corrected=config.corrected,
                written=parts.writer.show,
            )
        ),
        **lookup.routes(watch.known, uids, form.widths, parts.writer.show),
        **tree.routes(trees, uids, names, form.widths),
        **suggest.routes(store, config.uid_table),
        **uid.routes(store, config.uid_table, uids, parts.drop_caches, extra=extra, meta=told),
    }


async def _look_into(parts: Parts) -> None:
    """Read a little of the tables that every query needs. Raises StoreError, or CorruptRow of a UID counter."""
    await parts.store.get(parts.config.data_table, [b"\0"])
    await parts.uids.read_counters()


def _gateways(parts: Parts) -> list[Mapping[str, Any]]:
    """What there is to tell of the servers that the store speaks with: none where it is embedded."""
    if parts.config.backend is not Backend.HBASE:
        return []
    counts = parts.store.statistics()
    return [{"endpoint": f"{host}:{port}", **counts} for host, port in gateways(parts.config)]


class Web:
    """All HTTP connections of a daemon."""

    def __init__(self, parts: Parts) -> None:
        config = parts.config
        cors = Cors(config.cors_domains, config.cors_headers)
        rules = Rules(config.mode, config.enable_api, config.enable_ui, config.show_stack_trace)
        self.tally = Tally()
        self._probe = health.Probe(lambda: _look_into(parts))
        self.health = health.Health(
            config.mode, parts.intake.gate, parts.journal, self._probe, lambda: parts.writer.trouble or ""
        )
        self._lag = LoopLag()
        self.endpoints = routes(parts, self.tally, self.health, self._lag)
        self._dispatcher = Dispatcher(
            self.endpoints,
            rules,
            cors,
            Permits(
                parts.doorkeeper, needs_of(config.health_for, config.metrics_for, may_delete=config.allow_delete), cors
            ),
        )
        self._bounds = Bounds(config.max_chunk, config.http_timeout_s, config.enable_chunked, config.hsts_s)
        self._room = Room(config.http_memory)

    async def run(self) -> None:
        """What endpoints need beside requests, for ever."""
        async with trio.open_nursery() as nursery:
            nursery.start_soon(self._probe.run)
            nursery.start_soon(self._lag.run)

    async def serve(
        self, stream: trio.abc.Stream, first: bytes, receive: Callable[[], Awaitable[bytes]], visitor: Visitor
    ) -> None:
        """Serve one connection to its end."""
        session = WebSession(stream, self._dispatcher, self._bounds, self._room, self.tally, visitor)
        await session.run(first, receive)

    def statistics(self) -> Statistics:
        """The numbers of this moment."""
        tally = self.tally
        return Statistics(
            tally.requests,
            tally.puts,
            tally.hung_up,
            dict(tally.queries),
            tally.latencies,
            tally.graph_latencies,
            self._room.used,
            self._dispatcher.failures,
        )
