"""What a client is told when it reads, when it does not, and when it comes back."""

import tracemalloc

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from tsd.doors.replies import PIECE_BYTES, PIECE_COST, Budget, Replies, Unread
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, BadLine

PLENTY = 1 << 30
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
    replies = Replies(1000, Budget(PLENTY), journal.synced)
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
    replies = Replies(PIECE_COST + 100, Budget(PLENTY), Journal().synced)
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
    replies = Replies(10, Budget(PLENTY), Journal().synced)
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
    replies = Replies(10, Budget(PLENTY), Journal().synced)
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
    replies = Replies(PIECE_COST + 150, Budget(PLENTY), Journal().synced)
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


async def test_what_waits_takes_no_more_memory_than_the_bound_and_its_like() -> None:
    """What was being sent once did not count, and small objects took more than their bytes: 2.6 MiB for 1."""
    limit = 1 << 20
    replies = Replies(limit, Budget(PLENTY), Journal().synced)
    ours, theirs = lockstep_stream_pair()  # nothing is taken before it is asked for
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.pump, ours)
        tracemalloc.start()
        try:
            while replies.refused(b"put", BAD):
                await trio.lowlevel.checkpoint()
            replies.refused(b"put", BAD)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        replies.close()
        text = b""
        while b"more lines" not in text:
            text += await theirs.receive_some()
    assert 0.9 * limit < len(text) < limit + PIECE_BYTES
    assert peak < 1.3 * limit


@pytest.mark.parametrize("answers", [1, 100])
async def test_answers_to_sync_count_with_the_memory_that_each_takes(answers: int) -> None:
    budget = Budget(PLENTY)
    replies = Replies(PLENTY, budget, Journal().synced)
    for position in range(1, answers + 1):
        await replies.say_when_synced(position, b"synced 1\n")
    assert budget.used == answers * (PIECE_COST + len(b"synced 1\n"))
    replies.drop()
    assert budget.used == 0


async def test_past_the_budget_of_all_who_reads_is_answered_and_the_others_get_sums() -> None:
    budget = Budget(10_000)
    mute = [Replies(1 << 20, budget, Journal().synced) for _ in range(20)]
    told = [sum(replies.refused(b"put", BAD) for _ in range(1000)) for replies in mute]
    assert told[-1] == 1  # one for each, whoever took the rest
    assert budget.used < budget.limit + len(mute) * (PIECE_COST + 100)
    reader = Replies(1 << 20, budget, Journal().synced)
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.pump, ours)
        assert reader.refused(b"put", BAD)
        assert not reader.refused(b"put", WORSE)
        await reader.say(b"one\n")
        await reader.say(b"two\n")
        reader.close()
    assert await theirs.receive_some() == (
        b"put: illegal argument: invalid tag: x\n"
        b"put: 1 more lines were refused while this connection did not read: 1 invalid_values\none\ntwo\n"
    )
    for replies, count in zip(mute, told, strict=True):
        ours, theirs = memory_stream_pair()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replies.pump, ours)
            replies.close()
        await ours.aclose()
        text = b""
        while data := await theirs.receive_some():
            text += data
        lines = text.decode().splitlines()
        assert lines[:-1] == ["put: illegal argument: invalid tag: x"] * count
        assert lines[-1].startswith(f"put: {1000 - count} more lines")
    assert budget.used == 0


async def test_who_hangs_up_gives_the_memory_back() -> None:
    budget = Budget(10_000)
    replies = Replies(1 << 20, budget, Journal().synced)
    ours, _ = lockstep_stream_pair()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replies.pump, ours)
            for _ in range(10):
                replies.refused(b"put", BAD)
                await wait_all_tasks_blocked()
            assert budget.used > 300
            scope.cancel()
    assert budget.used == 0


async def test_a_command_does_not_wait_for_ever_on_who_reads_nothing(autojump_clock: MockClock) -> None:
    replies = Replies(10, Budget(PLENTY), Journal().synced, patience_s=60)
    ours, _ = lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.pump, ours)
        await replies.say(b"the first\n")
        with trio.fail_after(200):
            with pytest.raises(Unread):
                await replies.say(b"the second\n")
            with pytest.raises(Unread):
                await replies.say_when_synced(1, b"the third\n")
        for _ in range(10):
            await trio.sleep(100)
            replies.refused(b"put", BAD)  # who only sends lines may leave their answers unread
        nursery.cancel_scope.cancel()


async def test_it_waits_while_the_journal_is_not_synced_and_for_who_reads_slowly(autojump_clock: MockClock) -> None:
    journal = Journal()
    replies = Replies(10, Budget(PLENTY), journal.synced, patience_s=60)
    ours, theirs = lockstep_stream_pair()
    answers = [b"answer number %d\n" % number for number in range(10)]

    async def talk() -> None:
        await replies.say_when_synced(7, b"synced 7\n")
        for answer in answers:
            await replies.say(answer)
        replies.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.pump, ours)
        nursery.start_soon(talk)
        await trio.sleep(1000)
        journal.move(7)
        text = b""
        for _ in range(20):
            await trio.sleep(30)
            with trio.move_on_after(1):
                text += await theirs.receive_some()
    assert text == b"synced 7\n" + b"".join(answers)
