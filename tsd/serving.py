"""HTTP's half of a daemon: which endpoints there are, and what of the daemon each one gets.

A new module of `tsd.api` is wired in `routes`, with one line.
"""

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass

import trio

from tsd.api import small
from tsd.config import Config
from tsd.doors.bodies import Room
from tsd.doors.cors import Cors
from tsd.doors.dispatch import Dispatcher, Rules
from tsd.doors.exchange import Endpoint
from tsd.doors.web import Bounds, Statistics, Tally, WebSession
from tsd.ingest.intake import Intake
from tsd.ingest.journal import Journal
from tsd.ingest.rows import OpenRows
from tsd.ingest.writer import Writer
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
    now_ms: Callable[[], int]  # the wall clock
    drop_caches: Callable[[], None]
    stop: Callable[[], None]
    statistics: Callable[[], Sequence[Stat]]
    stats_tags: Callable[[], str]


def routes(parts: Parts) -> dict[str, Endpoint]:
    """Every endpoint, by the first words of its path."""
    return {
        **small.routes(parts.drop_caches, parts.stop, may_stop=not parts.config.no_diediedie),
    }


class Web:
    """All HTTP connections of a daemon."""

    def __init__(self, parts: Parts) -> None:
        config = parts.config
        rules = Rules(config.mode, config.enable_api, config.enable_ui, config.show_stack_trace)
        self._dispatcher = Dispatcher(routes(parts), rules, Cors(config.cors_domains, config.cors_headers))
        self._bounds = Bounds(config.max_chunk, config.http_timeout_s, config.enable_chunked)
        self._room = Room(config.http_memory)
        self.tally = Tally()

    async def serve(self, stream: trio.abc.Stream, first: bytes, receive: Callable[[], Awaitable[bytes]]) -> None:
        """Serve one connection to its end."""
        session = WebSession(stream, self._dispatcher, self._bounds, self._room, self.tally, _peer(stream))
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


def _peer(stream: trio.abc.Stream) -> str:
    """Address and port of a client."""
    if not isinstance(stream, trio.SocketStream):
        return "here:0"
    try:
        host, port, *_ = stream.socket.getpeername()
    except OSError:
        return "gone:0"
    return f"{host}:{port}"
