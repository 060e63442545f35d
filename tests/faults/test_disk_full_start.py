"""A start on a full disk fails with the reason or serves. It loses nothing, and works once there is space."""

import os
from pathlib import Path

import pytest
import trio

from tests.faults.load import Lines, Sender
from tests.faults.process import served
from tests.faults.test_disk_full import fill, small_disk
from tests.faults.verification import check_contents, embedded_contents

LONG = {"tsd.storage.flush_interval": "3600000"}  # all lines stay in the journal
LINES = 200

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="only root can mount a file system")


@pytest.mark.parametrize("new", [True, False], ids=["a new folder", "a journal to replay"])
async def test_start_on_full_disk(tmp_path: Path, new: bool) -> None:
    sender = Sender(Lines(0))
    with small_disk(tmp_path) as disk:
        folder = disk / "state"
        if not new:
            async with served(folder, LONG) as daemon, trio.open_nursery() as nursery:
                await daemon.ready()
                nursery.start_soon(sender.run, daemon.port)
                await sender.more_confirmed(LINES)
                await daemon.kill()
        ballast = fill(disk)
        for _ in range(2):
            async with served(folder) as daemon:
                with trio.fail_after(60):
                    assert await daemon.ended() in (1, 3)
            [line] = daemon.other_output
            assert line.startswith("tsd: ")
            assert "No space left on device" in line
            assert str(folder) in line
        ballast.unlink()
        async with served(folder) as daemon:
            await daemon.ready()
            await daemon.terminate()
        check_contents(await embedded_contents(folder), [sender])
