"""The journal's folder between daemons, and a daemon's end while it cannot be written: no line that was acknowledged is
lost or stored elsewhere, and who must act is told so."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from tests.faults.account import check_contents, embedded_contents
from tests.faults.load import PATIENCE_S, Lines, Sender
from tests.faults.process import Served, command, served
from tsd.torture.process import bound_files

LONG = {"tsd.storage.flush_interval": "3600000"}  # all of a life waits in the journal
UNWRITTEN = "journal cannot be written, reading from clients stops soon"
UNCONFIRMED = "lines could not be journaled before the end; no sync confirmed them"
LINES = 200


async def test_two_daemons_with_one_journal(tmp_path: Path) -> None:
    """The second one used to write over the segments of the first."""
    journal = tmp_path / "journal"
    settings = {**LONG, "tsd.journal.path": str(journal)}
    first, second = tmp_path / "first", tmp_path / "second"
    sender, other = Sender(Lines(0)), Sender(Lines(1))
    async with served(first, settings) as daemon, trio.open_nursery() as nursery:
        await daemon.ready()
        nursery.start_soon(sender.run, daemon.port)
        await sender.more_confirmed(LINES)
        told = await refused(second, settings, status=4)
        assert told == f"journal folder {journal}: process {daemon.pid} uses it"
        await daemon.kill()
    assert await refused(second, settings) == (
        f"journal folder {journal}: it belongs to state folder {first}, not to {second}; give another with "
        f"tsd.journal.path, or, to have its lines stored here, rename {journal}/owner to owner.was"
    )
    await one_more_life(second, LONG, other)
    await one_more_life(first, settings, sender)
    check_contents(await embedded_contents(first), [sender])
    check_contents(await embedded_contents(second), [other])


async def test_the_journal_is_elsewhere_after_a_crash(tmp_path: Path) -> None:
    state, journal, other = (tmp_path / name for name in ("state", "journal", "other"))
    sender = Sender(Lines(0))
    async with served(state, {**LONG, "tsd.journal.path": str(journal)}) as daemon, trio.open_nursery() as nursery:
        await daemon.ready()
        nursery.start_soon(sender.run, daemon.port)
        await sender.more_confirmed(LINES)
        await daemon.kill()
    assert await refused(state, {"tsd.journal.path": str(other)}) == (
        f"journal folder {journal}: accepted lines wait in it, and tsd.journal.path is {other} now; start once with "
        f"tsd.journal.path={journal}"
    )
    assert await refused(state, {}) == (
        f"journal folder {journal}: accepted lines wait in it, and tsd.journal.path is {state}/journal now; start once "
        f"with tsd.journal.path={journal}"
    )
    await one_more_life(state, {"tsd.journal.path": str(journal)}, sender)
    await one_more_life(state, {"tsd.journal.path": str(other)}, sender)
    check_contents(await embedded_contents(state), [sender])


async def test_a_segment_that_was_copied_out_of_another_journal(tmp_path: Path) -> None:
    """It used to be stored as if it were the daemon's own."""
    first, second = tmp_path / "first", tmp_path / "second"
    sender, other = Sender(Lines(0)), Sender(Lines(1))
    for folder, who in ((first, sender), (second, other)):
        async with served(folder, LONG) as daemon, trio.open_nursery() as nursery:
            await daemon.ready()
            nursery.start_soon(who.run, daemon.port)
            await who.more_confirmed(LINES)
            await daemon.kill()
    [segment] = (first / "journal").glob("*.journal")
    copy = second / "journal" / "0000000000000009.journal"
    copy.write_bytes(segment.read_bytes())
    async with served(second, LONG) as daemon:
        await daemon.ready()
        told = await daemon.logged("journal segment of another daemon, nothing of it is stored")
        await daemon.terminate()
    assert (told["level"], told["of"]) == ("error", (first / "id").read_text().strip())
    assert Path(told["kept_in"]).read_bytes() == segment.read_bytes()
    check_contents(await embedded_contents(second), [other])


async def test_a_segment_of_which_nothing_is_left(tmp_path: Path) -> None:
    """It used to be removed without a word."""
    async with served(tmp_path, LONG) as daemon:
        await daemon.ready()
        async with daemon.client() as client:
            assert await client.ask(b"put m 1500000000 1 a=b\n") == b"synced 1\n"
        await daemon.kill()
    [segment] = (tmp_path / "journal").glob("*.journal")
    segment.write_bytes(b"")
    async with served(tmp_path) as daemon:
        await daemon.ready()
        told = await daemon.logged("journal segment damaged")
        await daemon.terminate()
    assert told["level"] == "error"
    assert told["what"] == f"{segment}: at byte 0: the segment ends before its header does"
    assert Path(told["kept_in"]).exists()


@pytest.mark.parametrize("drain_ms", ["0", "1500"])
async def test_stopped_while_the_journal_cannot_be_written(tmp_path: Path, drain_ms: str) -> None:
    """It used to try for ever, until it was killed."""
    sender = Sender(Lines(0))
    async with served(tmp_path, {**LONG, "tsd.core.drain_timeout": drain_ms}) as daemon:
        async with trio.open_nursery() as nursery:
            await daemon.ready()
            nursery.start_soon(sender.run, daemon.port)
            await sender.more_confirmed(LINES)
            bound_files(daemon.pid, 0)
            await daemon.logged(UNWRITTEN)
            assert await ended_by_signal(daemon) in (
                1,
                3,
            )  # 3: the embedded store has no room for its last words either
            nursery.cancel_scope.cancel()
        told = await daemon.logged(UNCONFIRMED)
        assert (told["level"], told["lines"] > 0) == ("error", True)
        assert not daemon.has_logged("ended")
    assert not (tmp_path / "control.sock").exists()
    async with served(tmp_path) as daemon:
        await daemon.ready()
        await daemon.terminate()
    check_contents(await embedded_contents(tmp_path), [sender])


async def test_commands_do_not_wait_for_a_journal_that_cannot_be_written(tmp_path: Path) -> None:
    sender = Sender(Lines(0))
    async with served(tmp_path, LONG) as daemon, trio.open_nursery() as nursery:
        await daemon.ready()
        nursery.start_soon(sender.run, daemon.port)
        await sender.more_confirmed(LINES)
        bound_files(daemon.pid, 0)
        await daemon.logged(UNWRITTEN)
        with trio.fail_after(PATIENCE_S):
            done = await command("scan", "--data", tmp_path, "1", "sum", "load.0.0")
        assert (done.returncode, done.stderr.decode()) == (
            0, "tsd: the daemon cannot write the points that it holds now. They are missing here\n",
        )  # fmt: skip
        bound_files(daemon.pid, None)
        await sender.more_confirmed(LINES)
        sender.finish()
    async with served(tmp_path) as daemon:
        await daemon.ready()
        await daemon.terminate()
    check_contents(await embedded_contents(tmp_path), [sender])


async def refused(folder: Path, settings: Mapping[str, str], status: int = 1) -> str:
    """What a daemon says that does not start."""
    async with served(folder, settings) as daemon:
        with trio.fail_after(PATIENCE_S):
            assert await daemon.ended() == status
    [line] = daemon.noise
    return line.removeprefix("tsd: ")


async def one_more_life(folder: Path, settings: Mapping[str, str], sender: Sender) -> None:
    """A daemon that takes some lines, and ends in peace."""
    async with served(folder, settings) as daemon:
        await daemon.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.run, daemon.port)
            await sender.more_confirmed(LINES)
            sender.finish()
        await daemon.terminate()


async def ended_by_signal(daemon: Served) -> int:
    """Its exit status after SIGTERM."""
    daemon.process.terminate()
    with trio.fail_after(PATIENCE_S):
        return await daemon.ended()
