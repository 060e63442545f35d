"""The query engine as it is configured, for a daemon and for commands. Commands that query import no server."""

from pathlib import Path

from tsd.config.settings import Config
from tsd.daemon.settings import Clock, now_ms
from tsd.query.engine import EngineSettings, QueryEngine
from tsd.query.limits import Bounds, Limits, read_overrides
from tsd.query.plan_reader import Flush
from tsd.store.scheduling import IngestLoad
from tsd.tables.open_points import OpenPointSource
from tsd.tables.reading import PointReader


def build_engine(
    config: Config,
    reader: PointReader,
    flush: Flush,
    load: IngestLoad | None,
    now_ms: Clock,
    *,
    cache: bool = True,
    open_points: OpenPointSource | None = None,
) -> QueryEngine:
    """Build the query engine. `open_points` has points that the store lacks, and `flush` writes those of a metric.
    Raise BadConfig."""
    settings = EngineSettings(
        query_limits(config),
        memory_bytes=config.query_memory,
        max_concurrent=config.max_queries,
        cache_bytes=config.cache_memory if cache else 0,
    )
    return QueryEngine(reader, settings=settings, flush=flush, now_ms=now_ms, load=load, open_points=open_points)


def query_limits(config: Config) -> Limits:
    """Return the limits of queries. Raise BadConfig."""
    return Limits(
        Bounds(config.query_bytes, config.query_points),
        read_overrides(Path(config.query_overrides)) if config.query_overrides else (),
        size_override=config.query_bytes_override,
        points_override=config.query_points_override,
        timeout_ms=config.query_timeout_ms,
    )


def make_engine(config: Config, reader: PointReader) -> QueryEngine:
    """Return a query engine for commands: all points are in the store, results are not cached. Raise BadConfig."""

    async def flushed(_: bytes) -> bool:
        return True

    return build_engine(config, reader, flushed, None, now_ms, cache=False)
