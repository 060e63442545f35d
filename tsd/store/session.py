"""The session with a server, which is opened by the first call. The server need not be up at the start."""

from collections.abc import Callable
from typing import Generic, Protocol, TypeVar

import trio

from tsd.errors import StoreDown, StoreError, bare

FIRST_BACKOFF_S, LONGEST_BACKOFF_S = 0.5, 4.0  # between attempts to open it; meanwhile calls fail at once


class Closable(Protocol):
    """A session."""

    def close(self) -> None:
        """End the session. It may block."""
        ...


S = TypeVar("S", bound=Closable)


class LazySession(Generic[S]):
    """Opens a session when it is needed, once for all tasks. After a failure calls raise its error until the backoff is
    over."""

    def __init__(self, connect: Callable[[], S]) -> None:
        """`connect` runs in a thread, may block, and raises StoreError."""
        self._connect = connect
        self._session: S | None = None
        self._lock = trio.Lock()
        self._retry_at = 0.0
        self._backoff_s = FIRST_BACKOFF_S
        self._failure: StoreError = StoreDown("")

    async def get(self) -> S:
        """Return the session. Raise StoreError if there is none and it cannot be opened now."""
        if self._session is not None:
            return self._session
        async with self._lock:
            if self._session is not None:
                return self._session
            if trio.current_time() < self._retry_at:
                raise bare(self._failure)
            try:
                self._session = await trio.to_thread.run_sync(self._connect)
            except StoreError as exc:
                self._failure = bare(exc)
                self._retry_at = trio.current_time() + self._backoff_s
                self._backoff_s = min(2 * self._backoff_s, LONGEST_BACKOFF_S)
                raise
            self._backoff_s = FIRST_BACKOFF_S
            return self._session

    async def aclose(self) -> None:
        """Close the session if there is one."""
        session, self._session = self._session, None
        if session is not None:
            await trio.to_thread.run_sync(session.close)
        else:
            await trio.lowlevel.checkpoint()
