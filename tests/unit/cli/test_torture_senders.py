"""Clients of `tsd torture`: one that loses its connection is told of."""

from functools import partial

import pytest
import trio

from tsd.torture.lines import Lines
from tsd.torture.senders import HOST, HttpSender, Sender, Unexpected


@pytest.mark.parametrize("kind", [Sender, HttpSender])
async def test_a_client_that_is_hung_up_on_did_not_stay(kind: type[Sender]) -> None:
    """A round of bad clients waited for ever for good ones that the kernel had reset."""
    sender = kind(Lines("torture.x", 0), seed=1)
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, trio.SocketStream.aclose, 0, host=HOST))
        sender.begin()
        nursery.start_soon(sender.run, listener.socket.getsockname()[1])
        with pytest.raises(Unexpected, match=r"torture\.x: a client that did nothing wrong lost its connection"):
            await sender.stay()
        nursery.cancel_scope.cancel()


async def test_nor_did_one_that_nobody_let_in() -> None:
    sender = Sender(Lines("torture.x", 0), seed=1)
    [listener] = await trio.open_tcp_listeners(0, host=HOST)
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    sender.begin()
    await sender.run(port)
    with pytest.raises(Unexpected):
        await sender.stay()


async def test_one_that_has_finished_may_go() -> None:
    async def confirm(stream: trio.SocketStream) -> None:
        async for _ in stream:
            await stream.send_all(b"synced 0\n")

    sender = Sender(Lines("torture.x", 0), seed=1)
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, confirm, 0, host=HOST))
        sender.begin()
        sender.finish()
        await sender.run(listener.socket.getsockname()[1])
        await sender.stay()
        nursery.cancel_scope.cancel()
