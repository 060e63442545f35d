"""A server of Bigtable's protocol that gives scripted answers, for what the emulator never does."""

import struct
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from tsd.store.bigtable.wire import chunk, number

grpc = pytest.importorskip("grpc")
CODES = {code.value[0]: code for code in grpc.StatusCode}
RETRY_INFO = b"type.googleapis.com/google.rpc.RetryInfo"


@dataclass(frozen=True)
class Failing:
    """An error, at the end of a stream if there are messages. `code` is gRPC's."""

    code: int
    message: str = "scripted"
    retry_after_ms: int = 0

    def abort(self, context: Any) -> None:
        if self.retry_after_ms:
            delay = chunk(1, number(2, self.retry_after_ms * 1_000_000))
            detail = chunk(3, chunk(1, RETRY_INFO) + chunk(2, delay))
            context.set_trailing_metadata([("grpc-status-details-bin", detail)])
        context.abort(CODES[self.code], self.message)


Answer = list[bytes | Failing]


class ScriptedServer:
    """Answers requests in turn; the last answer is repeated."""

    def __init__(self, answers: list[Answer]) -> None:
        self.port = 0
        self.methods: list[str] = []
        self.requests: list[bytes] = []
        self._answers = answers

    def take(self, method: str, request: bytes, context: Any) -> Iterator[bytes]:
        self.methods.append(method.rpartition("/")[2])
        self.requests.append(request)
        answer = self._answers.pop(0) if len(self._answers) > 1 else self._answers[0]
        for part in answer:
            if isinstance(part, Failing):
                part.abort(context)
            else:
                yield part


class _Handlers(grpc.GenericRpcHandler):
    def __init__(self, server: ScriptedServer) -> None:
        self._server = server

    def service(self, details: Any) -> Any:
        method = details.method
        if method.endswith(("Rows", "SampleRowKeys")):
            return grpc.unary_stream_rpc_method_handler(lambda request, context: self._take(method, request, context))
        return grpc.unary_unary_rpc_method_handler(
            lambda request, context: next(iter(self._take(method, request, context)), b"")
        )

    @property
    def _take(self) -> Callable[[str, bytes, Any], Iterator[bytes]]:
        return self._server.take


@contextmanager
def scripted(*answers: Answer) -> Iterator[ScriptedServer]:
    """Run a server on a free port for the block."""
    scripted_ = ScriptedServer(list(answers))
    server = grpc.server(ThreadPoolExecutor(4), handlers=[_Handlers(scripted_)])
    scripted_.port = server.add_insecure_port("127.0.0.1:0")
    server.start()
    try:
        yield scripted_
    finally:
        server.stop(0).wait()


def cell_chunk(
    key: bytes = b"",
    column: bytes | None = None,
    value: bytes = b"",
    *,
    size: int = 0,
    commit: bool = False,
    reset: bool = False,
) -> bytes:
    """A chunk as a field of ReadRowsResponse."""
    parts = [chunk(1, key)] if key else []
    if column is not None:
        family, _, qualifier = column.partition(b":")
        parts += [chunk(2, chunk(1, family)), chunk(3, chunk(1, qualifier)), number(4, 1000)]
    parts.append(chunk(6, value))
    if size:
        parts.append(number(7, size))
    if reset:
        parts.append(number(8, 1))
    if commit:
        parts.append(number(9, 1))
    return chunk(1, b"".join(parts))


def verdict(index: int, code: int = 0, message: str = "") -> bytes:
    """An entry as a field of MutateRowsResponse."""
    return chunk(1, number(1, index) + chunk(2, number(1, code) + chunk(2, message.encode())))


def rate_limit(factor: float) -> bytes:
    """A RateLimitInfo as a field of MutateRowsResponse."""
    return chunk(3, chunk(1, number(1, 0)) + b"\x11" + struct.pack("<d", factor))
