"""What the engine needs of a transport, how calls are repeated, and what their errors mean.

`tsd.store.bigtable.transport` implements `Session` with grpcio, which is an optional dependency.
"""

import re
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from functools import partial
from typing import Protocol, TypeVar

import trio

from tsd.errors import NoTable, StoreBusy, StoreDown, StoreError
from tsd.store.retry import backoff
from tsd.store.session import LazySession

T = TypeVar("T")

# Codes of gRPC.
OK, CANCELLED, UNKNOWN, INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND = 0, 1, 2, 3, 4, 5
ALREADY_EXISTS, PERMISSION_DENIED, RESOURCE_EXHAUSTED, FAILED_PRECONDITION, ABORTED = 6, 7, 8, 9, 10
OUT_OF_RANGE, UNIMPLEMENTED, INTERNAL, UNAVAILABLE, DATA_LOSS, UNAUTHENTICATED = 11, 12, 13, 14, 15, 16

FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES = 0.05, 2.0, 7  # 3 to 6 s in all
_STREAM = re.compile(r"RST_STREAM|GOAWAY|[Ss]tream removed|Received unexpected EOS")
_FAMILY = re.compile(r"famil(y|ies)", re.IGNORECASE)
_TABLE = re.compile(r"\btable\b", re.IGNORECASE)


@dataclass(frozen=True)
class Contact:
    """How to reach an instance."""

    project: str
    instance: str
    app_profile: str = ""  # empty: the instance's default one
    credentials: str = ""  # file of a service account; empty: application default credentials
    emulator: str = ""  # host:port; empty: the service
    channels: int = 2
    timeout_s: float = 15.0

    @property
    def name(self) -> str:
        """Full name of the instance."""
        return f"projects/{self.project}/instances/{self.instance}"


class CallError(Exception):
    """A call that failed with a code of gRPC. `retry_after_s` is the pause that the server asks for."""

    def __init__(self, code: int, message: str, retry_after_s: float = 0.0) -> None:
        super().__init__(message)
        self.code = code
        self.message = " ".join(message.split())[:500]
        self.retry_after_s = retry_after_s

    @property
    def is_busy(self) -> bool:
        """Whether the server refused the call because of its load."""
        return self.code == RESOURCE_EXHAUSTED

    @property
    def is_transient(self) -> bool:
        """Whether the same call may succeed later, although the server may have executed it."""
        return self.code in (UNAVAILABLE, DEADLINE_EXCEEDED, ABORTED, CANCELLED) or (
            self.code in (INTERNAL, UNKNOWN) and _STREAM.search(self.message) is not None
        )


class Session(Protocol):
    """Open channels. `unary` and `stream` raise CallError, and cancel the call if their caller is cancelled."""

    async def unary(self, method: str, request: bytes, params: str, timeout_s: float) -> bytes:
        """Call a method of one answer. `params` is the routing header, already quoted."""
        ...

    async def stream(
        self, method: str, request: bytes, params: str, timeout_s: float, take: Callable[[bytes], bool]
    ) -> None:
        """Call a method that answers with a stream. `take` gets each message in a thread, and ends the call by
        returning True. It may raise StoreError."""
        ...

    def renew(self) -> None:
        """Get a new token with the next call."""
        ...

    def close(self) -> None:
        """Close the channels."""
        ...


class Caller:
    """Logs in at the first call, repeats calls that may be repeated, and turns their errors into StoreErrors."""

    def __init__(self, contact: Contact, connect: Callable[[Contact], Session], count: Counter[str]) -> None:
        """`connect` may block, and raises StoreError."""
        self._contact = contact
        self._count = count
        self._session = LazySession(partial(connect, contact))

    async def run(self, what: str, attempt: Callable[[Session, float], Awaitable[T]], *, once: bool = False) -> T:
        """Return what `attempt` returns, which gets the seconds that are left. Repeat it while it fails with
        a transient error, unless it may be sent `once` only. `what` names the table in errors."""
        session = await self._session.get()
        deadline = trio.current_time() + self._contact.timeout_s
        renewed = False
        refused: CallError | None = None
        waits = backoff(FIRST_BACKOFF_S, LONGEST_BACKOFF_S, RETRIES)
        while True:
            self._count["requests"] += 1
            try:
                return await attempt(session, max(deadline - trio.current_time(), 0.001))
            except CallError as exc:
                self._count["errors"] += 1
                refused = exc if exc.is_busy else refused
                # An attempt without answer may have had too little time: a refusal before it is the reason then.
                reported = refused if refused and exc.code == DEADLINE_EXCEEDED else exc
                wait_s = next(waits, None)
                if exc.code == UNAUTHENTICATED and not renewed:  # refused, so not executed
                    session.renew()
                    renewed, wait_s = True, 0.0
                elif once or wait_s is None or not (exc.is_transient or exc.is_busy):
                    raise self.translated(reported, what, once=once) from None
                else:
                    wait_s = max(wait_s, exc.retry_after_s)
                if trio.current_time() + wait_s >= deadline:
                    raise self.translated(reported, what, once=once) from None
            self._count["retries"] += 1
            await trio.sleep(wait_s)

    def translated(self, error: CallError, what: str, *, once: bool = False) -> StoreError:
        """Return an error as a StoreError with one line."""
        said = error.message
        contact = self._contact
        if error.is_busy:
            return StoreBusy(f"Bigtable refuses calls because of a quota or its load: {said}")
        if error.is_transient:
            doubt = f"the change of {what} may or may not have been made: " if once else ""
            where = contact.emulator or contact.name
            return StoreDown(f"Bigtable ({where}) gave no answer: {doubt}{said or f'code {error.code}'}")
        if error.code in (NOT_FOUND, UNKNOWN, INTERNAL) and _FAMILY.search(said):
            return StoreError(f"table {what} of {contact.name} lacks a column family: {said}")
        if error.code == NOT_FOUND and _TABLE.search(said):
            return NoTable(f"there is no table {what} in {contact.name}: `tsd create-tables` creates it")
        if error.code == NOT_FOUND:
            return StoreError(f"there is no project, instance or app profile of {contact.name}: {said}")
        if error.code == PERMISSION_DENIED:
            wanted = "roles/bigtable.user, and roles/bigtable.admin to create tables"
            return StoreError(f"Bigtable denies permission on {contact.name} (wanted {wanted}): {said}")
        if error.code == UNAUTHENTICATED:
            return StoreError(f"Bigtable refuses the credentials {contact.credentials or '(default)'}: {said}")
        if error.code == FAILED_PRECONDITION:
            profile = contact.app_profile or "default"
            return StoreError(
                f"app profile {profile} of {contact.name} must route to one cluster and allow single-row transactions, "
                f"which UIDs need: {said}"
            )
        return StoreError(f"Bigtable, table {what}: {said or 'error'} (code {error.code})")

    async def aclose(self) -> None:
        """Close the channels."""
        await self._session.aclose()
