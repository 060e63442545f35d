"""A server between a daemon and Bigtable's emulator that answers some calls with errors: before, in the middle of, or
after them."""

import random
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import grpc  # noqa: TID251 - a server, which the engine has no use for

HOST = "127.0.0.1"
CODES = (grpc.StatusCode.UNAVAILABLE, grpc.StatusCode.DEADLINE_EXCEEDED, grpc.StatusCode.RESOURCE_EXHAUSTED)
THREADS = 32


class Relay:
    """Forwards calls to the emulator. `share` of them fail."""

    def __init__(self, upstream: str, seed: int | str) -> None:
        self.port = 0
        self.share = 0.0
        self.failed: Counter[tuple[str, str]] = Counter()  # by code, and whether the call was executed
        self._chance = random.Random(seed)  # noqa: S311 - reproducible
        self.channel = grpc.insecure_channel(upstream)

    def forward(self, method: str, request: bytes, context: Any) -> Iterator[bytes]:
        """Yield the answers to a call with a stream of them, or some and an error."""
        fails = self._chance.random() < self.share
        code, executed = self._chance.choice(CODES), self._chance.random() < 0.5
        if fails and not executed:
            self._fail(context, code, "not executed")
        try:
            answers = list(self.channel.unary_stream(method)(request, timeout=context.time_remaining()))
        except grpc.RpcError as exc:
            context.abort(exc.code(), exc.details())
        if fails:
            yield from answers[: self._chance.randint(0, max(len(answers) - 1, 0))]
            self._fail(context, code, "executed")
        yield from answers

    def forward_one(self, method: str, request: bytes, context: Any) -> bytes:
        """Return the answer to a call, or end it with an error."""
        fails = self._chance.random() < self.share
        code, executed = self._chance.choice(CODES), self._chance.random() < 0.5
        if fails and (not executed or code is grpc.StatusCode.RESOURCE_EXHAUSTED):
            self._fail(context, code, "not executed")
        try:
            answer: bytes = self.channel.unary_unary(method)(request, timeout=context.time_remaining())
        except grpc.RpcError as exc:
            context.abort(exc.code(), exc.details())
        if fails:
            self._fail(context, code, "executed")
        return answer

    def _fail(self, context: Any, code: Any, how: str) -> None:
        self.failed[code.name, how] += 1
        context.abort(code, "scripted")


class _Handlers(grpc.GenericRpcHandler):  # type: ignore[misc] # without types
    def __init__(self, relay: Relay) -> None:
        self._relay = relay

    def service(self, details: Any) -> Any:
        method, relay = details.method, self._relay
        if method.endswith("Rows"):
            return grpc.unary_stream_rpc_method_handler(
                lambda request, context: relay.forward(method, request, context)
            )
        return grpc.unary_unary_rpc_method_handler(lambda request, context: relay.forward_one(method, request, context))


@contextmanager
def relaying(upstream: str, seed: int | str) -> Iterator[Relay]:
    """Run a relay to `upstream`, HOST:PORT, on a free port for the block."""
    relay = Relay(upstream, seed)
    server = grpc.server(ThreadPoolExecutor(THREADS), handlers=[_Handlers(relay)])
    relay.port = server.add_insecure_port(f"{HOST}:0")
    server.start()
    try:
        yield relay
    finally:
        server.stop(0).wait()
        relay.channel.close()
