"""Waiting for space when a daemon starts on a full disk. The log, systemd's status and the port say so.

Meanwhile the port answers HTTP: `/health/live` passes, and everything else is answered with 503 and the reason. Telnet
clients are not read from. Their connections end when the start continues.
"""

import os
import tempfile
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

import trio

from tsd.api.health import UNAVAILABLE
from tsd.api.messages import answer
from tsd.config.loader import journal_folder, state_folder
from tsd.config.settings import Config
from tsd.daemon.builders import build_access, listener_limits
from tsd.daemon.settings import Clock
from tsd.daemon.systemd import extend_timeout
from tsd.errors import Refused, lacks_space
from tsd.lazy import LazyLogger
from tsd.server.http.bodies import TOO_LARGE, MemoryBudget
from tsd.server.http.connection import HttpConnection, HttpPort, RequestLimits
from tsd.server.http.messages import Request, Response, Target
from tsd.server.http.router import Router
from tsd.server.http.security import Authorizer, Cors
from tsd.server.http.stats import RequestStats
from tsd.server.listener import Listener
from tsd.server.peer import Peer

log = LazyLogger(__name__)

PROBE_BYTES = 1 << 20  # a start needs some hundred KiB
RETRY_S = 1.0
REQUEST_BYTES = 1 << 20


def first_text(error: BaseException) -> str:
    """Return the text of an error, or of the first error of a group."""
    return first_text(error.exceptions[0]) if isinstance(error, BaseExceptionGroup) else str(error)


class _Refuser(Router):
    """Answers every request except `/health/live` with 503 and a reason."""

    def __init__(self, reason: str, cors: Cors) -> None:
        super().__init__({}, Authorizer(cors))
        self._reason = reason

    async def answer(self, request: Request, target: Target, headers: Sequence[tuple[str, str]] = ()) -> Response:
        """See Router."""
        if request.method == "OPTIONS":
            return Response(200, b"", None, tuple(headers))
        return replace(self._refusal(target), headers=tuple(headers))

    def refuse(self, error: Refused, target: Target, headers: Sequence[tuple[str, str]] = ()) -> Response:
        """See Router. A body that is too large now may be accepted later: a client must not drop it for a 413."""
        if error.status != TOO_LARGE:
            return super().refuse(error, target, headers)
        return replace(self._refusal(target), headers=tuple(headers))

    def _refusal(self, target: Target) -> Response:
        if target.key == "health":
            if target.segments[1:2] == ("live",):
                return answer({"status": "ok"})
            return answer({"status": "not ready", "write": self._reason, "read": self._reason}, UNAVAILABLE)
        error = {"code": UNAVAILABLE, "message": "The daemon waits for space on its disk", "details": self._reason}
        return answer({"error": error}, UNAVAILABLE)


async def wait_for_space(
    config: Config, error: BaseException, listeners: Sequence[trio.SocketListener], now_ms: Clock, stop: trio.Event
) -> Counter[int]:
    """Return once files can be written in the state folder and the journal's, or `stop` is set. The result counts error
    responses by status. Raise BadConfig."""
    reason, stats = first_text(error), RequestStats()
    log.warning("start.disk_full", error=reason, port=listeners[0].socket.getsockname()[1])
    probes = 0
    async with trio.open_nursery() as nursery:
        nursery.start_soon(_answer_requests, config, reason, listeners, now_ms, stats)
        nursery.start_soon(extend_timeout, lambda: probes, lambda: f"waiting for space on the disk: {reason}")
        while not stop.is_set():
            with trio.move_on_after(RETRY_S):
                await stop.wait()
            probes += 1
            if await trio.to_thread.run_sync(_has_space, {state_folder(config), journal_folder(config)}):
                break
        nursery.cancel_scope.cancel()
    if not stop.is_set():
        log.info("start.disk_has_space")
    return stats.errors


def _has_space(folders: set[Path]) -> bool:
    return all(map(_is_writable, folders))


def _is_writable(folder: Path) -> bool:
    """Return whether a file can be written in a folder, or in the nearest one that exists. An error that is not about
    space counts as success: the start reports it."""
    place = next(one for one in (folder, *folder.absolute().parents) if os.path.isdir(one))
    try:
        with tempfile.TemporaryFile(dir=place) as file:
            file.write(bytes(PROBE_BYTES))
            file.flush()
            os.fsync(file.fileno())
    except OSError as exc:
        return not lacks_space(exc)
    return True


async def _answer_requests(
    config: Config, reason: str, listeners: Sequence[trio.SocketListener], now_ms: Clock, stats: RequestStats
) -> None:
    """Serve copies of the listening sockets until cancelled: a server closes its own."""
    access, cors = build_access(config, now_ms), Cors(config.cors_domains, config.cors_headers)
    limits = RequestLimits(config.max_chunk, config.http_timeout_s, config.enable_chunked, config.hsts_s)
    port = HttpPort(_Refuser(reason, cors), limits, MemoryBudget(REQUEST_BYTES), stats)

    async def http(stream: trio.abc.Stream, first: bytes, receive: Callable[[], Awaitable[bytes]], peer: Peer) -> None:
        await HttpConnection(port, stream, peer).run(first, receive)

    async def telnet(*_: object) -> None:
        await trio.sleep_forever()

    server = Listener(telnet, http, listener_limits(config), access)
    copies = [trio.SocketListener(one.socket.dup()) for one in listeners]
    with suppress(trio.ClosedResourceError):
        await server.serve(copies)
