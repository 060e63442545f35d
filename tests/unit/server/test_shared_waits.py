"""Clients that may wait are served together, and others at once."""

from contextlib import AsyncExitStack

import trio
import trio.testing
from trio.testing import MockClock

from tests.running import Client
from tests.unit.server.web_parts import post, read_response, serving
from tsd.server.http.messages import Request, Response
from tsd.server.shared_waits import SharedWaits

INTERVAL_S = 10.0
PAUSE_S = 30.0  # of an agent


async def nothing(_: Request) -> Response:
    return Response(204, b"", None)


async def test_tasks_are_woken_together_while_input_keeps_coming(autojump_clock: MockClock) -> None:
    waits, woken = SharedWaits(INTERVAL_S), list[float]()

    async def wait(stream: trio.SocketStream) -> None:
        await waits.wait_readable(stream)
        woken.append(trio.current_time())

    async with AsyncExitStack() as stack, trio.open_nursery() as nursery:
        nursery.start_soon(waits.run)
        for _ in range(4):
            one, other = map(trio.SocketStream, trio.socket.socketpair())
            ours, theirs = await stack.enter_async_context(one), await stack.enter_async_context(other)
            nursery.start_soon(wait, ours)
            await trio.testing.wait_all_tasks_blocked()
            await theirs.send_all(b"x")
            await trio.sleep(INTERVAL_S / 10)
        await trio.sleep(10 * INTERVAL_S)
        nursery.cancel_scope.cancel()
    first, second, third, fourth = woken
    assert first < second < third == fourth


async def test_a_cancelled_task_waits_no_more(autojump_clock: MockClock) -> None:
    waits = SharedWaits(INTERVAL_S)
    one, other = map(trio.SocketStream, trio.socket.socketpair())
    async with one, other, trio.open_nursery() as nursery:
        nursery.start_soon(waits.run)
        with trio.move_on_after(1) as scope:
            await waits.wait_readable(one)
        assert scope.cancelled_caught
        assert not len(waits)
        await other.send_all(b"x")
        await waits.wait_readable(one)
        nursery.cancel_scope.cancel()


async def test_requests_of_agents_are_answered_together(autojump_clock: MockClock) -> None:
    """The second packet of a request does not wait once more."""
    request = post("/api/put", b"abc")
    answered: list[float] = []

    async def send(client: Client, late_s: float) -> None:
        await trio.sleep(late_s)
        await client.send_whole(request[:-1])
        await client.send(request[-1:])
        assert (await read_response(client)).status == 204
        answered.append(trio.current_time())

    async with serving({"api/put": nothing}) as served, AsyncExitStack() as stack:
        clients = [await stack.enter_async_context(served.client()) for _ in range(4)]
        for together in (False, True, True):
            await trio.sleep(PAUSE_S)
            answered.clear()
            async with trio.open_nursery() as nursery:
                for number, client in enumerate(clients):
                    nursery.start_soon(send, client, number / 1000)
            assert (len(set(answered)) < len(clients)) is together


async def test_a_client_that_sends_one_request_after_the_other_does_not_wait(autojump_clock: MockClock) -> None:
    async with serving({"api/put": nothing}) as served, served.client() as client:
        for _ in range(2):
            await trio.sleep(PAUSE_S)
            await client.send(post("/api/put", b"abc"))
            assert (await read_response(client)).status == 204
        await client.send(post("/api/put", b"abc"))
        assert (await read_response(client)).status == 204
        begun_s = trio.current_time()
        for _ in range(10):
            await client.send(post("/api/put", b"abc"))
            assert (await read_response(client)).status == 204
        assert trio.current_time() == begun_s
