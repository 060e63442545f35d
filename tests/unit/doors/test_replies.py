"""What a client is told when it reads, when it does not, and when it comes back."""

import pytest
import trio
from trio.testing import lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from tsd.doors.replies import Replies
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, BadLine

BAD = BadLine(ILLEGAL_ARGUMENT, "illegal argument: invalid tag: x")
WORSE = BadLine(INVALID_VALUE, "invalid value: Empty string")


class Journal:
    """Something that is synced when the test says so."""

    def __init__(self) -> None:
        self.position = 0
        self.moved = trio.Event()

    async def synced(self, position: int) -> None:
        while self.position < position:
            await self.moved.wait()

    def move(self, position: int) -> None:
        self.position = position
        self.moved.set()
        self.moved = trio.Event()


async def test_replies_come_in_order_and_sync_waits_for_the_disk() -> None:
    journal = Journal()
    replies = Replies(1000, journal.synced)
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.pump, ours)
        replies.refused(b"put", BAD)
        await replies.say(b"one\n")
        await replies.say_when_synced(7, b"synced 7\n")
        replies.refused(b"put", WORSE)
        await wait_all_tasks_blocked()
        assert await theirs.receive_some() == b"put: illegal argument: invalid tag: x\none\n"
        journal.move(7)
        await wait_all_tasks_blocked()
        assert await theirs.receive_some() == b"synced 7\nput: invalid value: Empty string\n"
        replies.close()


async def test_refusals_beyond_the_bound_are_summed_up_once_there_is_room() -> None:
    replies = Replies(100, Journal().synced)
    ours, theirs = memory_stream_pair()
    told = sum(replies.refused(b"put", error) for _ in range(50) for error in (BAD, WORSE))
    assert told == 3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.pump, ours)
        await wait_all_tasks_blocked()
        text = await theirs.receive_some()
        lines = text.decode().splitlines()
        assert len(lines) == told + 1
        assert lines[-1] == (
            "put: 97 more lines were refused while this connection did not read: "
            "48 illegal_arguments, 49 invalid_values"
        )
        replies.refused(b"put", BAD)
        await wait_all_tasks_blocked()
        assert await theirs.receive_some() == b"put: illegal argument: invalid tag: x\n"
        replies.close()


async def test_a_command_waits_for_room_and_nothing_of_it_is_lost() -> None:
    replies = Replies(10, Journal().synced)
    ours, theirs = memory_stream_pair()
    said: list[int] = []

    async def talk() -> None:
        for number in range(5):
            await replies.say(b"answer number %d\n" % number)
            said.append(number)
        replies.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk)
        await wait_all_tasks_blocked()
        assert said == [0]
        nursery.start_soon(replies.pump, ours)
        await wait_all_tasks_blocked()
    await ours.aclose()
    text = b""
    while data := await theirs.receive_some():
        text += data
    assert text == b"".join(b"answer number %d\n" % number for number in range(5))


async def test_a_client_that_has_hung_up_holds_nobody_up() -> None:
    replies = Replies(10, Journal().synced)
    ours, theirs = memory_stream_pair()
    await theirs.aclose()

    async def pump() -> None:
        with pytest.raises(trio.BrokenResourceError):
            await replies.pump(ours)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump)
        for _ in range(5):
            assert replies.refused(b"put", BAD)
            await replies.say(b"more than there is room for\n")
            await replies.say_when_synced(7, b"synced 7\n")
            await wait_all_tasks_blocked()
        replies.close()


async def test_no_later_answer_overtakes_the_sum() -> None:
    """The answer to `sync` once did: who reads no further than that believed that no line had been refused."""
    replies = Replies(10, Journal().synced)
    ours, theirs = lockstep_stream_pair()
    one = b"put: illegal argument: invalid tag: x\n"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.pump, ours)
        assert replies.refused(b"put", BAD)
        await wait_all_tasks_blocked()  # it is on its way
        assert replies.refused(b"put", BAD)
        assert not replies.refused(b"put", BAD)
        assert await theirs.receive_some() == one
        await wait_all_tasks_blocked()  # there is room again while the second is on its way
        await replies.say_when_synced(0, b"synced 0\n")
        replies.close()
        text = b""
        while not text.endswith(b"synced 0\n"):
            text += await theirs.receive_some()
    told = b"put: 1 more lines were refused while this connection did not read: 1 illegal_arguments\n"
    assert text == one + told + b"synced 0\n"
