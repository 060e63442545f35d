"""The replay of refused lines: what it stored is never sent again, and what is refused again stays."""

import resource
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
import trio
import trio.testing

from tests.unit.api.put_parts import handler_of
from tests.unit.ingest.parts import BASE, SERIES, Parts, going, make_store
from tsd.api.kairosdb.put import DatapointsEndpoint
from tsd.daemon.replay import Replay
from tsd.errors import BadLine, Refused, StoreDown
from tsd.ingest.limits import RefusedLine
from tsd.ingest.rejected.files import Entry, Outcome, read_entries
from tsd.ingest.rejected.log import RejectedLog
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.server.peer import local_peer

MANY = 1 << 30
LINE = b"put m %d %d host=a"


class Kept:
    """A log of refused lines, and what sends them again."""

    def __init__(self, folder: Path, parts: Parts) -> None:
        self.folder = folder
        self.parts = parts
        self.unstored = folder / "unstored"
        self.log = RejectedLog(folder / "rejected", self.unstored, max_bytes=MANY, per_second=MANY, now_ms=lambda: 1)
        kairosdb = DatapointsEndpoint(handler_of(parts), has_ttl=False, has_texts=False)
        self.endpoints: dict[str, Endpoint] = {"api/datapoints": kairosdb.answer}

    async def keep(self, *lines: bytes) -> None:
        """Keep lines as refused."""
        self.log.add(local_peer(), [RefusedLine(line, BadLine("r", "as the test wants")) for line in lines])
        await self.log.flush()

    def left(self) -> list[Entry]:
        """Return the lines that a replay sends."""
        entries = read_entries(self.folder / "rejected", self.unstored)
        return [one for one in entries if not one.taken]

    def sender(self) -> Replay:
        """Return what sends lines again."""
        return Replay(self.parts.intake, self.log, self.endpoints.get, None)

    async def replay(self) -> list[bool]:
        """Send the lines again, and return which were accepted."""
        return [one.taken for one in await self.sender()([(one.name, one.refused.bytes, False) for one in self.left()])]

    async def value_at(self, offset: int) -> int | float:
        """Return the stored value of a time."""
        await self.parts.writer.flush(patient=True)
        return (await self.parts.stored())[SERIES, (BASE + offset) * 1000]


@asynccontextmanager
async def keeping(folder: Path) -> AsyncIterator[Kept]:
    async with going(Parts(folder, await make_store())) as parts, trio.open_nursery() as nursery:
        kept = Kept(folder, parts)
        nursery.start_soon(kept.log.run)
        yield kept
        nursery.cancel_scope.cancel()


def metric(*points: tuple[int, object]) -> bytes:
    listed = ",".join(f"[{time},{value}]" for time, value in points)
    return b'api/datapoints {"name":"m","tags":{"host":"a"},"datapoints":[%b]}' % listed.encode()


async def test_stored_points_of_a_text_are_not_written_again(tmp_path: Path) -> None:
    """Regression: the text stayed as a whole, and the next replay undid corrections of its good points."""
    async with keeping(tmp_path) as kept:
        await kept.keep(metric((BASE * 1000, 1), (BASE * 1000 + 1, '"x"'), (BASE * 1000 + 2, "null")))
        assert await kept.replay() == [False]
        first = kept.left()
        assert [b'"x"' in one.refused.bytes for one in first] == [True, False]
        assert [b"null" in one.refused.bytes for one in first] == [False, True]
        assert first[0].refused.peer == "local:0"
        await kept.parts.take(LINE % (BASE, 5))
        assert await kept.replay() == [False, False]
        assert [one.refused.bytes for one in kept.left()] == [one.refused.bytes for one in first]
        assert await kept.value_at(0) == 5


async def test_text_that_is_wholly_refused_stays_with_its_reason(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        await kept.keep(metric((BASE * 1000, '"x"'), (BASE * 1000 + 1, '"y"')))
        before = kept.left()[0]
        assert await kept.replay() == [False]
        [after] = kept.left()
        assert (after.name, after.refused) == (before.name, before.refused)
        assert after.message != before.message


async def test_lines_on_disk_are_marked_when_the_daemon_stops(tmp_path: Path) -> None:
    """Regression: the outcomes of all lines of a request were lost with it."""
    async with keeping(tmp_path) as kept, trio.open_nursery() as nursery:

        async def stops(_: Request) -> Response:
            nursery.cancel_scope.cancel()
            await trio.sleep_forever()
            raise AssertionError

        kept.endpoints["write"] = stops
        await kept.keep(LINE % (BASE, 1), b"write {}", LINE % (BASE + 1, 2))
        await kept.replay()
    assert [one.refused.bytes for one in kept.left()] == [b"write {}", LINE % (BASE + 1, 2)]
    assert await kept.value_at(0) == 1


async def test_lines_before_a_failure_are_marked(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:

        async def fails(_: Request) -> Response:
            raise Refused(503, "as the test wants")

        kept.endpoints["write"] = fails
        await kept.keep(LINE % (BASE, 1), b"write {}", LINE % (BASE + 1, 2))
        with pytest.raises(StoreDown, match="as the test wants"):
            await kept.replay()
        assert [one.refused.bytes for one in kept.left()] == [b"write {}", LINE % (BASE + 1, 2)]


async def test_replay_waits_until_lines_of_a_killed_command_are_marked(tmp_path: Path) -> None:
    """Regression: the next command sent up to 500 lines again, over values that were corrected meanwhile."""
    async with keeping(tmp_path) as kept, trio.open_nursery() as nursery:
        began, go_on = trio.Event(), trio.Event()

        async def slow(_: Request) -> Response:
            began.set()
            await go_on.wait()
            return Response(204, b"")

        kept.endpoints["write"] = slow
        await kept.keep(LINE % (BASE, 1), b"write {}")
        send = kept.sender()
        nursery.start_soon(send, [(one.name, one.refused.bytes, False) for one in kept.left()])
        await began.wait()
        left: list[list[Entry]] = []

        async def begin_another() -> None:
            await send([])
            left.append(kept.left())

        nursery.start_soon(begin_another)
        await trio.testing.wait_all_tasks_blocked()
        assert not left
        go_on.set()
    assert left == [[]]


async def test_nothing_is_sent_if_its_outcome_cannot_be_recorded(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        await kept.keep(*(LINE % (BASE + at, 1) for at in range(100)))
        before = resource.getrlimit(resource.RLIMIT_FSIZE)
        handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        [log] = (tmp_path / "rejected").iterdir()
        resource.setrlimit(resource.RLIMIT_FSIZE, (log.stat().st_size, before[1]))
        try:
            with pytest.raises(StoreDown):
                await kept.replay()
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
            signal.signal(signal.SIGXFSZ, handler)
        assert kept.parts.ledger.received == 0
        assert await kept.replay() == [True] * 100


async def test_lines_that_the_writer_could_not_store_are_sent_alone(tmp_path: Path) -> None:
    """Regression: nothing was sent, as the log cannot allocate 0 bytes."""
    async with keeping(tmp_path) as kept:
        await kept.keep(LINE % (BASE, 1))
        await kept.replay()
        kept.unstored.mkdir()
        (kept.unstored / "00000001.lines").write_bytes(b"# as the test wants\n" + LINE % (BASE + 1, 2) + b"\n")
        assert await kept.replay() == [True]
        assert kept.left() == []
        assert await kept.value_at(1) == 2


async def test_error_of_the_log_reaches_the_sender(tmp_path: Path) -> None:
    async with keeping(tmp_path) as kept:
        await kept.keep(LINE % (BASE, 1))
        [line] = kept.left()
        (tmp_path / "rejected").rename(tmp_path / "moved")
        (tmp_path / "rejected").write_bytes(b"")
        full = RejectedLog(tmp_path / "rejected", tmp_path, max_bytes=MANY, per_second=MANY, now_ms=lambda: 1)
        with pytest.raises(StoreDown):
            await full.mark([(line.name, Outcome(True))])
