"""What engines remember of the families of tables whose cells keep versions."""

from collections.abc import Sequence
from typing import Any

import pytest
import trio
import trio.testing

from tsd.store import Table
from tsd.store.bigtable.versions import BigtableVersions
from tsd.store.hbase.versions import HBaseVersions
from tsd.store.versions import VersionedCells, columns_of


async def families_later() -> dict[bytes, int]:
    """Return the families of a table once all tasks have run."""
    await trio.testing.wait_all_tasks_blocked()
    return {b"t": 1}


class BigtableCalls:
    """An empty table."""

    async def family_limits(self, _: str) -> dict[bytes, int]:
        return await families_later()

    async def read_rows(self, *_: Any) -> dict[bytes, Any]:
        await trio.lowlevel.checkpoint()
        return {}


class GatewayCalls:
    """An empty table."""

    async def call(self, method: Any, *_: Any) -> Any:
        return await families_later() if method.__name__ == "family_versions" else columns_of([])


async def no_tables(_: Sequence[Table]) -> list[str]:
    return []


ENGINES: dict[str, Any] = {
    "bigtable": lambda: BigtableVersions(BigtableCalls()),  # type: ignore[arg-type]
    "hbase": lambda: HBaseVersions(GatewayCalls(), no_tables),  # type: ignore[arg-type]
}


@pytest.mark.parametrize("engine", ENGINES)
async def test_reads_do_not_fail_while_families_are_read_again(engine: str) -> None:
    cells: VersionedCells = ENGINES[engine]()
    await cells.families("table")
    async with trio.open_nursery() as nursery:
        nursery.start_soon(cells.families, "table")
        for _ in range(50):  # tasks run in any order
            nursery.start_soon(cells.get, "table", [b"row"])
