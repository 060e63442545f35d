"""What systemd's watchdog is fed by, and what systemd is told: as systemd reads it, from a socket of the test's."""

import socket
from pathlib import Path

import trio
from trio.testing import MockClock

from tests.unit.hearing import messages
from tests.unit.ingest.parts import Parts, line, make_store
from tsd.canary import Canary, Home, Stage
from tsd.codec.rowkey import Layout
from tsd.watchdog import Limits, Watchdog

WATCHDOG_S = 40.0
STORE_S = 100.0


async def make_parts(folder: Path) -> Parts:
    """The way in, with a journal that can be run and is not yet."""
    parts = Parts(folder, await make_store())
    parts.journal.recover()
    return parts


def watchdog_of(
    parts: Parts, canary: Canary | None = None, stop: trio.Event | None = None, watchdog_s: float | None = WATCHDOG_S
) -> Watchdog:
    stop = trio.Event() if stop is None else stop
    limits = Limits(watchdog_s, STORE_S)
    return Watchdog(parts.journal, parts.writer, parts.gate, canary, lambda: parts.ledger.received, limits, stop.is_set)


async def test_it_is_fed_while_nothing_is_wrong(
    tmp_path: Path, systemd: socket.socket, autojump_clock: MockClock
) -> None:
    parts = await make_parts(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog_of(parts).run, "serving port 4242")
        await trio.sleep(WATCHDOG_S + 1)
        came = messages(systemd)
        nursery.cancel_scope.cancel()
    assert came.count("WATCHDOG=1") == 5
    assert came.count("STATUS=serving port 4242: 0 lines/s") == 4


async def test_without_a_watchdog_only_words_are_sent(
    tmp_path: Path, systemd: socket.socket, autojump_clock: MockClock
) -> None:
    parts = await make_parts(tmp_path)
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog_of(parts, watchdog_s=None).run, "serving port 4242")
        await trio.sleep(11)
        nursery.cancel_scope.cancel()
    assert messages(systemd) == ["STATUS=serving port 4242: 0 lines/s"]


async def test_a_journal_that_stands_still_is_let_down(
    tmp_path: Path, systemd: socket.socket, autojump_clock: MockClock
) -> None:
    parts = await make_parts(tmp_path)
    await parts.take(line(0, 1))  # nobody writes the journal
    stop = trio.Event()
    async with trio.open_nursery() as nursery:
        nursery.start_soon(watchdog_of(parts, stop=stop).run, "serving port 4242")
        await trio.sleep(WATCHDOG_S)
        messages(systemd)
        await trio.sleep(10 * WATCHDOG_S)
        assert "WATCHDOG=1" not in messages(systemd)
        parts.journal.trouble = "No space left on device"  # which no restart mends
        await trio.sleep(WATCHDOG_S)
        came = messages(systemd)
        assert "WATCHDOG=1" in came
        assert (
            "STATUS=serving port 4242: 0 lines/s; 1 points wait; the journal cannot be written: No space left on device"
        ) in came
        parts.journal.trouble = None
        stop.set()
        await trio.sleep(10 * WATCHDOG_S)
        assert set(messages(systemd)) == {"WATCHDOG=1"}  # an end takes its time
        nursery.cancel_scope.cancel()


class Lost:
    """Ways to read one's own writes that come to nothing."""

    def __init__(self) -> None:
        self.hangs = False

    async def show(self, _: bytes) -> bool:
        if self.hangs:
            await trio.sleep_forever()
        return True


def canary_of(parts: Parts, lost: Lost) -> Canary:
    home = Home(parts.store, "tsdb", Layout(), parts.uids, lost.show)
    return Canary(parts.intake, home, "web01", "0", lambda: 1356998400000)


async def test_a_round_that_never_ends_is_let_down(tmp_path: Path, mock_clock: MockClock) -> None:
    parts, lost = await make_parts(tmp_path), Lost()
    canary = canary_of(parts, lost)
    watchdog = watchdog_of(parts, canary)
    lost.hangs = True
    async with trio.open_nursery() as nursery:
        nursery.start_soon(parts.journal.run)
        nursery.start_soon(canary.go_around)
        while canary.stage is not Stage.WRITTEN:
            mock_clock.jump(0.01)  # the journal has an interval to wait for
            await trio.lowlevel.checkpoint()
        assert watchdog.trouble() is None
        mock_clock.jump(WATCHDOG_S / 2 + STORE_S - 1)
        assert watchdog.trouble() is None
        parts.writer.retries += 1  # the store says why not: it goes on, for as long again
        assert watchdog.trouble() is None
        mock_clock.jump(WATCHDOG_S / 2 + STORE_S - 1)
        assert watchdog.trouble() is None
        mock_clock.jump(2)
        assert watchdog.trouble() == "the canary has waited for its window to be written for 121 s"
        nursery.cancel_scope.cancel()


async def test_points_that_are_missed_again_and_again_are_let_down(tmp_path: Path) -> None:
    parts = await make_parts(tmp_path)
    canary = canary_of(parts, Lost())
    watchdog = watchdog_of(parts, canary)
    for missed in range(3):
        assert (canary.missing, watchdog.trouble()) == (missed, None)
        async with trio.open_nursery() as nursery:
            nursery.start_soon(parts.journal.run)
            await canary.go_around()
            nursery.cancel_scope.cancel()
    assert watchdog.trouble() == "3 points of our own were not in the store, one after the other"


async def test_the_status_says_what_goes_on(tmp_path: Path) -> None:
    parts = await make_parts(tmp_path)
    watchdog = watchdog_of(parts)
    assert watchdog.status("serving port 4242", 12345.6) == "serving port 4242: 12,346 lines/s"
    await parts.take(line(0, 1))
    parts.gate.hold("the journal is full")
    parts.writer.trouble = "no gateway answers\nat all"
    assert watchdog.status("serving port 4242", 0) == (
        "serving port 4242: 0 lines/s; 1 points wait; not reading from clients: the journal is full; "
        "the store takes no cells: no gateway answers at all"
    )
