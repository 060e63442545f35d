"""The journal's folder between daemons, and a stop while it cannot be written: acknowledged lines are neither lost nor
stored elsewhere, and the operator gets a message."""

from collections.abc import Mapping
from pathlib import Path

import pytest
import trio

from tests.faults.load import PATIENCE_S, Lines, Sender
from tests.faults.process import Served, command, served
from tests.faults.verification import check_contents, embedded_contents
from tsd.cli.torture.process import limit_file_size

LONG = {"tsd.storage.flush_interval": "3600000"}  # all lines stay in the journal
UNWRITTEN = "journal.write_failed"
UNCONFIRMED = "journal.lines_lost"
LINES = 200


async def test_second_daemon_on_same_journal_refused(tmp_path: Path) -> None:
    """Regression: the second daemon overwrote the segments of the first."""
    journal = tmp_path / "journal"
    settings = {**LONG, "tsd.journal.path": str(journal)}
    first, second = tmp_path / "first", tmp_path / "second"
    sender, other = Sender(Lines(0)), Sender(Lines(1))
    async with served(first, settings) as daemon, trio.open_nursery() as nursery:
        await daemon.ready()
        nursery.start_soon(sender.run, daemon.port)
        await sender.more_confirmed(LINES)
        event = await refused(second, settings, status=4)
        assert str(journal) in event
        assert str(daemon.pid) in event
        await daemon.kill()
    message = await refused(second, settings)
    assert all(str(path) in message for path in (first, second, journal / "owner"))
    await run_once(second, LONG, other)
    await run_once(first, settings, sender)
    check_contents(await embedded_contents(first), [sender])
    check_contents(await embedded_contents(second), [other])


async def test_changed_journal_path_after_crash_refused(tmp_path: Path) -> None:
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
    await run_once(state, {"tsd.journal.path": str(journal)}, sender)
    await run_once(state, {"tsd.journal.path": str(other)}, sender)
    check_contents(await embedded_contents(state), [sender])


async def test_segment_of_another_journal_not_stored(tmp_path: Path) -> None:
    """Regression: the segment was stored as if it were the daemon's own."""
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
        event = await daemon.logged("journal.foreign_segment")
        await daemon.terminate()
    assert (event["level"], event["of"]) == ("error", (first / "id").read_text().strip())
    assert Path(event["kept_in"]).read_bytes() == segment.read_bytes()
    check_contents(await embedded_contents(second), [other])


async def test_empty_segment_is_reported(tmp_path: Path) -> None:
    """Regression: the segment was removed silently."""
    async with served(tmp_path, LONG) as daemon:
        await daemon.ready()
        async with daemon.client() as client:
            assert await client.send_lines(b"put m 1500000000 1 a=b\n") == b"synced 1\n"
        await daemon.kill()
    [segment] = (tmp_path / "journal").glob("*.journal")
    segment.write_bytes(b"")
    async with served(tmp_path) as daemon:
        await daemon.ready()
        event = await daemon.logged("journal.segment_damaged")
        await daemon.terminate()
    assert event["level"] == "error"
    assert (event["path"], event["offset"]) == (str(segment), 0)
    assert Path(event["kept_in"]).exists()


@pytest.mark.parametrize("drain_ms", ["0", "1500"])
async def test_stop_while_journal_cannot_be_written(tmp_path: Path, drain_ms: str) -> None:
    """Regression: the daemon retried until it was killed."""
    sender = Sender(Lines(0))
    async with served(tmp_path, {**LONG, "tsd.core.drain_timeout": drain_ms}) as daemon:
        async with trio.open_nursery() as nursery:
            await daemon.ready()
            nursery.start_soon(sender.run, daemon.port)
            await sender.more_confirmed(LINES)
            limit_file_size(daemon.pid, 0)
            await daemon.logged(UNWRITTEN)
            assert await ended_by_signal(daemon) in (
                1,
                3,
            )  # 3: the embedded store has no space for its last writes either
            nursery.cancel_scope.cancel()
        event = await daemon.logged(UNCONFIRMED)
        assert (event["level"], event["lines"] > 0) == ("error", True)
        assert not daemon.has_logged("daemon.stopped")
    assert not (tmp_path / "control.sock").exists()
    async with served(tmp_path) as daemon:
        await daemon.ready()
        await daemon.terminate()
    check_contents(await embedded_contents(tmp_path), [sender])


async def test_commands_do_not_wait_for_unwritable_journal(tmp_path: Path) -> None:
    sender = Sender(Lines(0))
    async with served(tmp_path, LONG) as daemon, trio.open_nursery() as nursery:
        await daemon.ready()
        nursery.start_soon(sender.run, daemon.port)
        await sender.more_confirmed(LINES)
        limit_file_size(daemon.pid, 0)
        await daemon.logged(UNWRITTEN)
        with trio.fail_after(PATIENCE_S):
            done = await command("scan", "--data", tmp_path, "1", "sum", "load.0.0")
        assert done.returncode == 0
        assert done.stderr.startswith(b"tsd: the daemon cannot write ")
        limit_file_size(daemon.pid, None)
        await sender.more_confirmed(LINES)
        sender.finish()
    async with served(tmp_path) as daemon:
        await daemon.ready()
        await daemon.terminate()
    check_contents(await embedded_contents(tmp_path), [sender])


async def refused(folder: Path, settings: Mapping[str, str], status: int = 1) -> str:
    """Return the error message of a daemon that does not start."""
    async with served(folder, settings) as daemon:
        with trio.fail_after(PATIENCE_S):
            assert await daemon.ended() == status
    [line] = daemon.other_output
    return line.removeprefix("tsd: ")


async def run_once(folder: Path, settings: Mapping[str, str], sender: Sender) -> None:
    """Run a daemon that accepts some lines, and stop it cleanly."""
    async with served(folder, settings) as daemon:
        await daemon.ready()
        async with trio.open_nursery() as nursery:
            nursery.start_soon(sender.run, daemon.port)
            await sender.more_confirmed(LINES)
            sender.finish()
        await daemon.terminate()


async def ended_by_signal(daemon: Served) -> int:
    """Return the exit status after SIGTERM."""
    daemon.process.terminate()
    with trio.fail_after(PATIENCE_S):
        return await daemon.ended()
