"""Clients of `tsd torture`: a lost connection is an error."""

from functools import partial

import pytest
import trio

from tsd.cli.torture.senders import HOST, HttpSender, Lines, Sender, UnexpectedAnswer


@pytest.mark.parametrize("kind", [Sender, HttpSender])
async def test_disconnected_client_is_an_error(kind: type[Sender]) -> None:
    """Regression: a round of bad clients waited without end for good ones whose connections were reset."""
    sender = kind(Lines("torture.x", 0), seed=1)
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, trio.SocketStream.aclose, 0, host=HOST))
        sender.begin()
        nursery.start_soon(sender.run, listener.socket.getsockname()[1])
        with pytest.raises(UnexpectedAnswer, match=r"torture\.x: the connection of a correct client was closed"):
            await sender.check_connected()
        nursery.cancel_scope.cancel()


async def test_unaccepted_client_is_an_error() -> None:
    sender = Sender(Lines("torture.x", 0), seed=1)
    [listener] = await trio.open_tcp_listeners(0, host=HOST)
    port = listener.socket.getsockname()[1]
    await listener.aclose()
    sender.begin()
    await sender.run(port)
    with pytest.raises(UnexpectedAnswer):
        await sender.check_connected()


async def test_finished_client_may_disconnect() -> None:
    async def confirm(stream: trio.SocketStream) -> None:
        async for _ in stream:
            await stream.send_all(b"synced 0\n")

    sender = Sender(Lines("torture.x", 0), seed=1)
    async with trio.open_nursery() as nursery:
        [listener] = await nursery.start(partial(trio.serve_tcp, confirm, 0, host=HOST))
        sender.begin()
        sender.finish()
        await sender.run(listener.socket.getsockname()[1])
        await sender.check_connected()
        nursery.cancel_scope.cancel()
