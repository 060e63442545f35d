"""grpcio: channels, calls, and its errors as CallErrors. Only this module imports it.

Calls with one answer are futures that wake their task; a stream is read in one of trio's threads. A cancelled task
cancels its call.
"""

import base64
import itertools
import math
from collections import deque
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import grpc
import trio

from tsd.store.bigtable.session import CANCELLED, DEADLINE_EXCEEDED, INTERNAL, OK, CallError, Contact
from tsd.store.bigtable.wire import fields

DATA_HOST, ADMIN_HOST = "bigtable.googleapis.com:443", "bigtableadmin.googleapis.com:443"
ADMIN = -1  # number of the channel of administration
ADMIN_PATH = "/google.bigtable.admin."
OPTIONS = (
    ("grpc.max_receive_message_length", -1),
    ("grpc.max_send_message_length", -1),
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 100),
    ("grpc.max_reconnect_backoff_ms", 1000),
    ("grpc.use_local_subchannel_pool", 1),  # otherwise all channels share a connection
)
CALLS = 100  # a connection carries as many at once
STREAMS = 16  # threads
CLOSED = "the connection did not answer, and is closed"
RETRY_INFO = b"google.rpc.RetryInfo"
# FeatureFlags: mutate_rows_rate_limit, mutate_rows_rate_limit2 and retry_info are true.
FEATURES = ("bigtable-features", base64.urlsafe_b64encode(b"\x18\x01\x28\x01\x38\x01").decode())


class Credentials(Protocol):
    """Credentials of an account, see `tsd.store.bigtable.credentials`."""

    @property
    def plugin(self) -> Any:
        """Plugin of grpcio that adds a token to each call."""
        ...

    def renew(self) -> None:
        """Get a new token with the next call."""
        ...


class GrpcSession:
    """Channels to an instance. See Session."""

    def __init__(self, contact: Contact, credentials: Credentials | None) -> None:
        """Open the channels, without waiting for the server. `credentials` are None for an emulator."""
        self._credentials = credentials
        self._emulator = contact.emulator
        self._next = itertools.cycle(range(contact.channels))
        self._channels = {number: _Channel(self._open(number)) for number in range(ADMIN, contact.channels)}
        self._answered: deque[trio.Event] = deque()
        self._waking = False
        self._slots = trio.Semaphore(CALLS * contact.channels)
        self._threads = trio.CapacityLimiter(STREAMS)

    def _open(self, number: int) -> Any:
        """Open a channel, without waiting for the server."""
        if self._credentials is None:
            return grpc.insecure_channel(self._emulator, OPTIONS)
        plugin = grpc.metadata_call_credentials(self._credentials.plugin)
        secured = grpc.composite_channel_credentials(grpc.ssl_channel_credentials(), plugin)
        return grpc.secure_channel(ADMIN_HOST if number == ADMIN else DATA_HOST, secured, OPTIONS)

    def _free_channel(self, method: str) -> tuple[int, "_Channel"]:
        """Return the first channel with room for a call: with more of them, each wakes a thread of its own."""
        if method.startswith(ADMIN_PATH):
            return ADMIN, self._channels[ADMIN]
        room = (pair for pair in self._channels.items() if pair[0] != ADMIN and pair[1].calls < CALLS)
        return next(room, (0, self._channels[0]))

    def _wake(self) -> None:
        """Wake the tasks whose calls have ended, all at once: each wake of the event loop costs a system call."""
        self._waking = False
        while self._answered:
            self._answered.popleft().set()

    def _ended(self, number: int, channel: "_Channel", code: int, since: float) -> None:
        """Replace a channel that has not answered since a call that timed out has begun: its connection may be lost,
        which gRPC notices late."""
        if code != DEADLINE_EXCEEDED:
            channel.answered_at = trio.current_time()
        elif channel.answered_at < since and self._channels[number] is channel:
            self._channels[number] = _Channel(self._open(number))
            channel.grpc.close()

    async def unary(self, method: str, request: bytes, params: str, timeout_s: float) -> bytes:
        """See Session."""
        async with self._slots:
            token = trio.lowlevel.current_trio_token()
            answered = trio.Event()

            def done(_: object) -> None:
                self._answered.append(answered)
                if not self._waking:
                    self._waking = True
                    with suppress(trio.RunFinishedError):  # the caller is gone
                        token.run_sync_soon(self._wake)

            number, channel = self._free_channel(method)
            since = trio.current_time()
            begin = channel.method(method, streams=False).future
            future = _begun(lambda: begin(request, timeout=timeout_s, metadata=_metadata(params)))
            future.add_done_callback(done)
            channel.calls += 1
            try:
                await answered.wait()
            finally:
                channel.calls -= 1
                if not future.done():
                    future.cancel()
            try:
                answer: bytes = future.result()
            except (grpc.RpcError, grpc.FutureCancelledError) as exc:
                failed = failure(exc)
                self._ended(number, channel, failed.code, since)
                raise failed from None
            self._ended(number, channel, OK, since)
            return answer

    async def stream(
        self, method: str, request: bytes, params: str, timeout_s: float, take: Callable[[bytes], bool]
    ) -> None:
        """See Session."""
        calls: list[Any] = []
        cancelled = False
        number = next(self._next)
        channel = self._channels[number]
        since = trio.current_time()

        def run() -> None:
            begin = channel.method(method, streams=True)
            call = _begun(lambda: begin(request, timeout=timeout_s, metadata=_metadata(params)))
            calls.append(call)
            if cancelled:
                call.cancel()
                return
            try:
                for message in call:
                    if take(message):
                        break
            except grpc.RpcError as exc:
                raise failure(exc) from None
            finally:
                call.cancel()

        try:
            await trio.to_thread.run_sync(run, abandon_on_cancel=True, limiter=self._threads)
        except trio.Cancelled:
            cancelled = True
            for call in calls:
                call.cancel()
            raise
        except CallError as exc:
            self._ended(number, channel, exc.code, since)
            raise
        self._ended(number, channel, OK, since)

    def renew(self) -> None:
        """See Session."""
        if self._credentials is not None:
            self._credentials.renew()

    def close(self) -> None:
        """See Session."""
        for channel in self._channels.values():
            channel.grpc.close()


class _Channel:
    """A channel of gRPC with its callables."""

    def __init__(self, channel: Any) -> None:
        self.grpc = channel
        self.answered_at = -math.inf
        self.calls = 0  # without an answer
        self._methods: dict[tuple[str, bool], Any] = {}

    def method(self, name: str, *, streams: bool) -> Any:
        """Return a callable."""
        key = name, streams
        if key not in self._methods:
            self._methods[key] = self.grpc.unary_stream(name) if streams else self.grpc.unary_unary(name)
        return self._methods[key]


def _begun(begin: Callable[[], Any]) -> Any:
    """Begin a call. Raise CallError if another one has closed the channel."""
    try:
        return begin()
    except ValueError:
        raise CallError(CANCELLED, CLOSED) from None


def _metadata(params: str) -> tuple[tuple[str, str], ...]:
    return (("x-goog-request-params", params), FEATURES)


def failure(error: Any) -> CallError:
    """Return an error of grpcio as a CallError."""
    if isinstance(error, grpc.FutureCancelledError):
        return CallError(CANCELLED, CLOSED)
    if not isinstance(error, grpc.Call):
        return CallError(INTERNAL, str(error))
    details = next((value for key, value in error.trailing_metadata() or () if key == "grpc-status-details-bin"), b"")
    return CallError(error.code().value[0], error.details() or "", _retry_after_s(details))


def _retry_after_s(status: bytes) -> float:
    """Return the pause of the RetryInfo in a google.rpc.Status, 0 if there is none."""
    for field, _, detail in fields(status):
        parts = {number: data for number, _, data in fields(detail)} if field == 3 else {}
        if parts.get(1, b"").endswith(RETRY_INFO):
            for of, _, delay in fields(parts.get(2, b"")):
                if of == 1:
                    numbers = {number: value for number, value, _ in fields(delay)}
                    return numbers.get(1, 0) + numbers.get(2, 0) / 1e9
    return 0.0
