"""An orderly stop takes what agents have already sent: most of them never ask whether it arrived."""

from contextlib import suppress
from pathlib import Path

import trio

from tests.running import running
from tsd.codec.rowkey import BASE_BYTES
from tsd.store import scan

LINES = 1500  # few enough for the receiving kernel to have them all at once


async def test_what_the_kernel_already_has_is_taken_in(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        async with daemon.client() as client, daemon.client() as idle:
            await idle.ask(b"")
            await client.ask(b"put m 1500000000 1 a=b\n")
            text = b"".join(b"put m %d 1 a=b\n" % (1_500_000_001 + n) for n in range(LINES))
            daemon.daemon.gate.hold("the test")  # so that bytes pile up in the kernel
            await client.send_whole(text)
            daemon.daemon.gate.release("the test")
            daemon.stop.set()
            assert await client.read_to_end() == b""
            assert await idle.read_to_end() == b""
        ledger = daemon.daemon.ledger
        assert ledger.received == 1 + LINES
    assert ledger.stored == ledger.received
    async with running(tmp_path) as daemon:
        count = 0
        async for rows in scan(daemon.daemon.store, "tsdb"):
            for row in rows:
                assert len(row.key) == 3 + BASE_BYTES + 6
                count += sum((len(cell.column) - 2) // 2 for cell in row.cells)
        assert count == ledger.stored


async def test_a_stopping_daemon_is_not_held_up_by_a_client_that_goes_on_sending(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon, daemon.client() as client, trio.open_nursery() as nursery:

        async def go_on() -> None:
            number = 0
            with suppress(trio.BrokenResourceError):
                while True:
                    number += 1
                    await client.send(b"put m %d 1 a=b\n" % (1_500_000_000 + number))

        await client.ask(b"put m 1500000000 1 a=b\n")
        nursery.start_soon(go_on)
        daemon.stop.set()
        await daemon.daemon.listener.ended.wait()
        nursery.cancel_scope.cancel()


async def test_no_control_socket_is_left(tmp_path: Path) -> None:
    async with running(tmp_path):
        assert (tmp_path / "control.sock").exists()
    assert not (tmp_path / "control.sock").exists()
