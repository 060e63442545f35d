"""grpcio: channels, calls, and its errors as CallErrors. Only this module imports it.

Calls with one answer are futures that wake their task; a stream is read in one of trio's threads. A cancelled task
cancels its call.
"""

import itertools
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Protocol

import grpc
import trio

from tsd.store.bigtable.session import INTERNAL, CallError, Contact
from tsd.store.bigtable.wire import fields

DATA_HOST, ADMIN_HOST = "bigtable.googleapis.com:443", "bigtableadmin.googleapis.com:443"
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
RETRY_INFO = b"google.rpc.RetryInfo"


class Credentials(Protocol):
    """What logs in."""

    @property
    def plugin(self) -> Any:
        """What adds a token to each call."""
        ...

    def renew(self) -> None:
        """Get a new token with the next call."""
        ...


class GrpcSession:
    """Channels to an instance. See Session."""

    def __init__(self, contact: Contact, credentials: Credentials | None) -> None:
        """Open the channels, without waiting for the server. `credentials` are None for an emulator."""
        self._credentials = credentials
        if credentials is None:
            self._channels = [grpc.insecure_channel(contact.emulator, OPTIONS) for _ in range(contact.channels)]
            self._admin = self._channels[0]
        else:
            plugin = grpc.metadata_call_credentials(credentials.plugin)
            secured = grpc.composite_channel_credentials(grpc.ssl_channel_credentials(), plugin)
            self._channels = [grpc.secure_channel(DATA_HOST, secured, OPTIONS) for _ in range(contact.channels)]
            self._admin = grpc.secure_channel(ADMIN_HOST, secured, OPTIONS)
        self._next = itertools.cycle(range(contact.channels))
        self._calls: dict[tuple[int, str, bool], Any] = {}
        self._slots = trio.Semaphore(CALLS * contact.channels)
        self._threads = trio.CapacityLimiter(STREAMS)

    def _method(self, method: str, *, streams: bool) -> Any:
        """Return a callable on the next channel."""
        number = -1 if method.startswith(ADMIN_PATH) else next(self._next)
        key = number, method, streams
        if key not in self._calls:
            channel = self._admin if number < 0 else self._channels[number]
            self._calls[key] = channel.unary_stream(method) if streams else channel.unary_unary(method)
        return self._calls[key]

    async def unary(self, method: str, request: bytes, params: str, timeout_s: float) -> bytes:
        """See Session."""
        async with self._slots:
            token = trio.lowlevel.current_trio_token()
            answered = trio.Event()

            def done(_: object) -> None:
                with suppress(trio.RunFinishedError):  # the caller is gone
                    token.run_sync_soon(answered.set)

            call = self._method(method, streams=False)
            future = call.future(request, timeout=timeout_s, metadata=_metadata(params))
            future.add_done_callback(done)
            try:
                await answered.wait()
            finally:
                if not future.done():
                    future.cancel()
            try:
                answer: bytes = future.result()
            except (grpc.RpcError, grpc.FutureCancelledError) as exc:
                raise failure(exc) from None
            return answer

    async def stream(
        self, method: str, request: bytes, params: str, timeout_s: float, take: Callable[[bytes], bool]
    ) -> None:
        """See Session."""
        calls: list[Any] = []
        cancelled = False

        def run() -> None:
            call = self._method(method, streams=True)(request, timeout=timeout_s, metadata=_metadata(params))
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

    def renew(self) -> None:
        """See Session."""
        if self._credentials is not None:
            self._credentials.renew()

    def close(self) -> None:
        """See Session."""
        for channel in self._channels:
            channel.close()
        self._admin.close()


def _metadata(params: str) -> tuple[tuple[str, str], ...]:
    return (("x-goog-request-params", params),)


def failure(error: Any) -> CallError:
    """Return an error of grpcio as a CallError."""
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
