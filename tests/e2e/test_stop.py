"""A clean stop processes what agents have already sent: most agents never request an acknowledgement."""

from contextlib import suppress
from pathlib import Path

import trio

from tests.running import running
from tsd.codec.opentsdb.rowkey import BASE_BYTES
from tsd.store import scan

LINES = 1500  # few enough to fit into the receiving kernel's buffer


async def test_stop_processes_data_in_kernel_buffers(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon:
        async with daemon.client() as client, daemon.client() as idle:
            await idle.send_lines(b"")
            await client.send_lines(b"put m 1500000000 1 a=b\n")
            text = b"".join(b"put m %d 1 a=b\n" % (1_500_000_001 + n) for n in range(LINES))
            daemon.daemon.ingest.backpressure.hold("the test")  # data stays in the kernel
            await client.send_whole(text)
            daemon.daemon.ingest.backpressure.release("the test")
            daemon.stop.set()
            assert await client.read_to_end() == b""
            assert await idle.read_to_end() == b""
        ledger = daemon.daemon.ingest.ledger
        assert ledger.received == 1 + LINES
    assert ledger.stored == ledger.received
    async with running(tmp_path) as daemon:
        count = 0
        async for rows in scan(daemon.daemon.store, "tsdb"):
            for row in rows:
                assert len(row.key) == 3 + BASE_BYTES + 6
                count += sum((len(cell.column) - 2) // 2 for cell in row.cells)
        assert count == ledger.stored


async def test_sending_client_does_not_delay_stop(tmp_path: Path) -> None:
    async with running(tmp_path) as daemon, daemon.client() as client, trio.open_nursery() as nursery:

        async def go_on() -> None:
            number = 0
            with suppress(trio.BrokenResourceError):
                while True:
                    number += 1
                    await client.send(b"put m %d 1 a=b\n" % (1_500_000_000 + number))

        await client.send_lines(b"put m 1500000000 1 a=b\n")
        nursery.start_soon(go_on)
        daemon.stop.set()
        await daemon.daemon.server.listener.closed.wait()
        nursery.cancel_scope.cancel()


async def test_stop_removes_control_socket(tmp_path: Path) -> None:
    async with running(tmp_path):
        assert (tmp_path / "control.sock").exists()
    assert not (tmp_path / "control.sock").exists()
