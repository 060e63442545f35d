"""Tables whose cells keep versions, in the embedded store of a running daemon.

`tsd.server.control` is the other side.
"""

from collections.abc import Collection, Sequence
from typing import Protocol

from tsd.store.cells import Cell, Page, Row, Table
from tsd.store.versions import ALL, END_MS, CellwiseColumns, VersionPut, Wanted

PUT_CELLS = 5000  # per request


class Caller(Protocol):
    """Sends requests to the daemon."""

    async def call(self, verb: str, **arguments: object) -> object:
        """Return the daemon's answer. Raise TsdError."""
        ...


class RemoteVersions(CellwiseColumns):
    """VersionedCells through the control socket."""

    def __init__(self, client: Caller) -> None:
        self._client = client

    async def create_tables(self, tables: Sequence[Table]) -> list[str]:
        """See VersionedCells."""
        wanted = [[table.name, [list(family) for family in table.families]] for table in tables]
        made = await self._client.call("versions_create_tables", tables=wanted)
        assert isinstance(made, list)
        return made

    async def families(self, table: str) -> dict[bytes, int]:
        """See VersionedCells."""
        answer = await self._client.call("versions_families", table=table)
        assert isinstance(answer, list)
        return dict(answer)

    async def put(self, table: str, cells: Sequence[VersionPut]) -> None:
        """See VersionedCells."""
        for at in range(0, len(cells), PUT_CELLS):
            await self._client.call("versions_put", table=table, puts=cells[at : at + PUT_CELLS])

    async def get(self, table: str, rows: Collection[bytes], wanted: Wanted = ALL) -> dict[bytes, list[Cell]]:
        """See VersionedCells."""
        answer = await self._client.call("versions_get", table=table, rows=list(rows), wanted=_listed(wanted))
        assert isinstance(answer, list)
        return {row: [Cell(*cell) for cell in cells] for row, cells in answer}

    async def page(self, table: str, start: bytes, stop: bytes | None, *, limit: int, wanted: Wanted = ALL) -> Page:
        """See VersionedCells."""
        answer = await self._client.call(
            "versions_page", table=table, start=start, stop=stop, limit=limit, wanted=_listed(wanted)
        )
        assert isinstance(answer, list)
        rows, next_start = answer
        return Page([Row(key, [Cell(*cell) for cell in cells]) for key, cells in rows], next_start)

    async def delete(
        self, table: str, row: bytes, columns: Collection[bytes], *, since_ms: int = 0, until_ms: int = END_MS
    ) -> None:
        """See VersionedCells."""
        span = {"since_ms": since_ms, "until_ms": until_ms}
        await self._client.call("versions_delete", table=table, row=row, columns=list(columns), **span)


def _listed(wanted: Wanted) -> list[object]:
    columns = None if wanted.columns is None else list(wanted.columns)
    return [wanted.since_ms, wanted.until_ms, wanted.versions, columns]
