"""Records of a daemon's parts, returned by builders and passed to other builders."""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from tsd.api.hot import HotKeys
from tsd.config.settings import Config
from tsd.daemon.settings import Clock
from tsd.ingest.accepted import Backpressure, Ledger
from tsd.ingest.intake import Intake
from tsd.ingest.journal.journal import Journal
from tsd.ingest.limits import NewNameLimit
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.rejected.log import RejectedLog
from tsd.ingest.unstored_points import UnstoredPoints
from tsd.ingest.writer import Writer
from tsd.query.engine import QueryEngine
from tsd.query.registry import QueryRegistry
from tsd.server.listener import AccessControl
from tsd.store import Store
from tsd.tables import Tables
from tsd.tables.catalog import Stat


@dataclass(frozen=True)
class IngestParts:
    """Parts that accept lines and write points."""

    open_window: OpenWindow
    journal: Journal
    ledger: Ledger
    backpressure: Backpressure
    writer: Writer
    unstored: UnstoredPoints
    intake: Intake
    rejected: RejectedLog
    new_names: NewNameLimit


@dataclass(frozen=True)
class QueryParts:
    """Parts that run queries."""

    engine: QueryEngine
    registry: QueryRegistry  # running and past queries


class DaemonControl(NamedTuple):
    """Operations of the daemon for endpoints and commands."""

    drop_caches: Callable[[], None]
    stop: Callable[[], None]
    statistics: Callable[[], Sequence[Stat]]
    stats_tags: Callable[[], str]
    stats: Callable[[], Awaitable[bytes]]


@dataclass(frozen=True)
class CoreParts:
    """All parts below the servers: what endpoints, commands and background tasks use."""

    config: Config
    store: Store
    tables: Tables
    ingest: IngestParts
    query: QueryParts
    access: AccessControl
    control: DaemonControl
    hot_keys: HotKeys | None  # None: the table layout counts no ranges
    now_ms: Clock
