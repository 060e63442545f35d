"""The reply queue: readers, clients that do not read, and clients that read again."""

import tracemalloc

import pytest
import trio
from trio.testing import MockClock, lockstep_stream_pair, memory_stream_pair, wait_all_tasks_blocked

from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, BadLine
from tsd.server.replies import CHUNK_BYTES, CHUNK_OVERHEAD, ReplyBudget, ReplyQueue, SlowConsumer

PLENTY = 1 << 30
BAD = BadLine(ILLEGAL_ARGUMENT, "illegal argument: invalid tag: x")
WORSE = BadLine(INVALID_VALUE, "invalid value: Empty string")


class Journal:
    """A journal that is synced when the test says so."""

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


@pytest.mark.difference(
    "sync-command",
    topic="connections",
    theirs="A client cannot find out when a line is safe",
    ours="The command `sync` is answered when all earlier lines of its connection are on disk",
)
async def test_replies_keep_order_and_sync_waits_for_disk() -> None:
    journal = Journal()
    replies = ReplyQueue(1000, ReplyBudget(PLENTY), journal.synced)
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.pump, ours)
        replies.refuse(b"put", BAD)
        await replies.send(b"one\n")
        await replies.send_when_synced(7, b"synced 7\n")
        replies.refuse(b"put", WORSE)
        await wait_all_tasks_blocked()
        assert await theirs.receive_some() == b"put: illegal argument: invalid tag: x\none\n"
        journal.move(7)
        await wait_all_tasks_blocked()
        assert await theirs.receive_some() == b"synced 7\nput: invalid value: Empty string\n"
        replies.close()


@pytest.mark.difference(
    "unread-errors",
    topic="connections",
    theirs="Error lines are dropped if the client does not read them",
    ours="They are kept up to a bound for each client and a bound for all, and then summed up in one line",
)
async def test_refusals_over_the_bound_are_summarized() -> None:
    replies = ReplyQueue(CHUNK_OVERHEAD + 100, ReplyBudget(PLENTY), Journal().synced)
    ours, theirs = memory_stream_pair()
    listed = sum(replies.refuse(b"put", error) for _ in range(50) for error in (BAD, WORSE))
    assert listed == 3
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.pump, ours)
        await wait_all_tasks_blocked()
        text = await theirs.receive_some()
        lines = text.decode().splitlines()
        assert len(lines) == listed + 1
        assert lines[-1] == (
            "put: 97 more lines were refused while this connection did not read: "
            "48 illegal_arguments, 49 invalid_values"
        )
        replies.refuse(b"put", BAD)
        await wait_all_tasks_blocked()
        assert await theirs.receive_some() == b"put: illegal argument: invalid tag: x\n"
        replies.close()


async def test_command_waits_for_room_without_loss() -> None:
    replies = ReplyQueue(10, ReplyBudget(PLENTY), Journal().synced)
    ours, theirs = memory_stream_pair()
    sent: list[int] = []

    async def talk() -> None:
        for number in range(5):
            await replies.send(b"answer number %d\n" % number)
            sent.append(number)
        replies.close()

    async with trio.open_nursery() as nursery:
        nursery.start_soon(talk)
        await wait_all_tasks_blocked()
        assert sent == [0]
        nursery.start_soon(replies.pump, ours)
        await wait_all_tasks_blocked()
    await ours.aclose()
    text = b""
    while data := await theirs.receive_some():
        text += data
    assert text == b"".join(b"answer number %d\n" % number for number in range(5))


async def test_disconnected_client_delays_no_caller() -> None:
    replies = ReplyQueue(10, ReplyBudget(PLENTY), Journal().synced)
    ours, theirs = memory_stream_pair()
    await theirs.aclose()

    async def pump() -> None:
        with pytest.raises(trio.BrokenResourceError):
            await replies.pump(ours)

    async with trio.open_nursery() as nursery:
        nursery.start_soon(pump)
        for _ in range(5):
            assert replies.refuse(b"put", BAD)
            await replies.send(b"more than there is room for\n")
            await replies.send_when_synced(7, b"synced 7\n")
            await wait_all_tasks_blocked()
        replies.close()


async def test_summary_keeps_its_place_in_order() -> None:
    """If the reply to `sync` came first, the client would believe that no line had been refused."""
    replies = ReplyQueue(CHUNK_OVERHEAD + 150, ReplyBudget(PLENTY), Journal().synced)
    ours, theirs = lockstep_stream_pair()
    one = b"put: illegal argument: invalid tag: x\n"
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.pump, ours)
        assert replies.refuse(b"put", BAD)
        await wait_all_tasks_blocked()  # it is being sent
        assert replies.refuse(b"put", BAD)
        assert not replies.refuse(b"put", BAD)
        assert await theirs.receive_some() == one
        await wait_all_tasks_blocked()  # there is room again while the second is being sent
        await replies.send_when_synced(0, b"synced 0\n")
        replies.close()
        text = b""
        while not text.endswith(b"synced 0\n"):
            text += await theirs.receive_some()
    listed = b"put: 1 more lines were refused while this connection did not read: 1 illegal_arguments\n"
    assert text == one + listed + b"synced 0\n"


@pytest.mark.slow
async def test_queued_replies_stay_near_the_bound() -> None:
    """The chunk that is being sent, and the overhead of small objects, count."""
    limit = 1 << 20
    replies = ReplyQueue(limit, ReplyBudget(PLENTY), Journal().synced)
    ours, theirs = lockstep_stream_pair()  # takes data only when it is read
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.pump, ours)
        tracemalloc.start()
        try:
            while replies.refuse(b"put", BAD):
                await trio.lowlevel.checkpoint()
            replies.refuse(b"put", BAD)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        replies.close()
        text = b""
        while b"more lines" not in text:
            text += await theirs.receive_some()
    assert 0.9 * limit < len(text) < limit + CHUNK_BYTES
    assert peak < 1.3 * limit


@pytest.mark.parametrize("answers", [1, 100])
async def test_sync_replies_count_their_overhead(answers: int) -> None:
    budget = ReplyBudget(PLENTY)
    replies = ReplyQueue(PLENTY, budget, Journal().synced)
    for position in range(1, answers + 1):
        await replies.send_when_synced(position, b"synced 1\n")
    assert budget.used == answers * (CHUNK_OVERHEAD + len(b"synced 1\n"))
    replies.discard()
    assert budget.used == 0


@pytest.mark.difference("unread-errors")
async def test_over_the_budget_readers_get_replies_and_others_sums() -> None:
    budget = ReplyBudget(10_000)
    mute = [ReplyQueue(1 << 20, budget, Journal().synced) for _ in range(20)]
    listed = [sum(replies.refuse(b"put", BAD) for _ in range(1000)) for replies in mute]
    assert listed[-1] == 1  # one for each connection
    assert budget.used < budget.limit + len(mute) * (CHUNK_OVERHEAD + 100)
    reader = ReplyQueue(1 << 20, budget, Journal().synced)
    ours, theirs = memory_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(reader.pump, ours)
        assert reader.refuse(b"put", BAD)
        assert not reader.refuse(b"put", WORSE)
        await reader.send(b"one\n")
        await reader.send(b"two\n")
        reader.close()
    assert await theirs.receive_some() == (
        b"put: illegal argument: invalid tag: x\n"
        b"put: 1 more lines were refused while this connection did not read: 1 invalid_values\none\ntwo\n"
    )
    for replies, count in zip(mute, listed, strict=True):
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


async def test_disconnect_releases_the_reservation() -> None:
    budget = ReplyBudget(10_000)
    replies = ReplyQueue(1 << 20, budget, Journal().synced)
    ours, _ = lockstep_stream_pair()
    with trio.CancelScope() as scope:
        async with trio.open_nursery() as nursery:
            nursery.start_soon(replies.pump, ours)
            for _ in range(10):
                replies.refuse(b"put", BAD)
                await wait_all_tasks_blocked()
            assert budget.used > 300
            scope.cancel()
    assert budget.used == 0


async def test_command_of_slow_consumer_raises(autojump_clock: MockClock) -> None:
    replies = ReplyQueue(10, ReplyBudget(PLENTY), Journal().synced, timeout_s=60)
    ours, _ = lockstep_stream_pair()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(replies.pump, ours)
        await replies.send(b"the first\n")
        with trio.fail_after(200):
            with pytest.raises(SlowConsumer):
                await replies.send(b"the second\n")
            with pytest.raises(SlowConsumer):
                await replies.send_when_synced(1, b"the third\n")
        for _ in range(10):
            await trio.sleep(100)
            replies.refuse(b"put", BAD)  # a client that only sends lines may leave replies unread
        nursery.cancel_scope.cancel()


async def test_sync_reply_waits_for_journal_and_slow_reader(autojump_clock: MockClock) -> None:
    journal = Journal()
    replies = ReplyQueue(10, ReplyBudget(PLENTY), journal.synced, timeout_s=60)
    ours, theirs = lockstep_stream_pair()
    answers = [b"answer number %d\n" % number for number in range(10)]

    async def talk() -> None:
        await replies.send_when_synced(7, b"synced 7\n")
        for answer in answers:
            await replies.send(answer)
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
