"""Endpoints that most daemons are never asked for: their modules are imported with the first request."""

from collections.abc import Callable, Mapping
from functools import partial

import trio

from tsd.server.http.messages import Endpoint, Request, Response


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
