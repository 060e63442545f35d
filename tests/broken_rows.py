"""Malformed rows, and functions that write them into the stores on which commands run."""

from collections.abc import Sequence
from typing import Any

import trio

from tests.e2e.command import Tsd
from tests.unit.codec.codec_rows import cells
from tsd.cli.context import Access, access
from tsd.codec.names import Kind
from tsd.codec.opentsdb.cell import COLUMN
from tsd.codec.opentsdb.uid import COUNTER_ROW, encode_counter, id_column, name_column
from tsd.config.loader import Given
from tsd.config.settings import Config
from tsd.daemon.settings import read_config
from tsd.store import Put, Row, scan

BASE = 1356998400
SERIES = bytes.fromhex("000001000001")  # tagk and tagv 1

# Cells of one row each, in the format of `codec_rows.cells`, with old write times.
ROWS = """
    0000=2a@1 | 0007=2a@1 | 0000=000000000000002a@1 | 0000=2a00@1 | 000f=42280000@1 | 000b=ffffffff42280000@1
    000b=0000000042280000@1 | 000b=1234567842280000@1 | 0002=010203@1 | 0003=@1 | 000a=4228@1 | 0000=@1
    0017=000000000000002a@1 | 0010=2b@1 00000010=2a2c00@2 | 0000=2a@1 0001=002a@2 | 0000=2a@1 0001=002b@2
    00000010=2a2b@1 | 00000010=2a2b01@1 | 00000010=2a2b02@1 | 00000010=2a2bff@1 | 00000010=2a@1 | 00000010=@1
    00000010=2a2b2c2d00@1 | 00100000=2b2a00@1 | 00000000=2a2b00@1 | 000000=2a@1 | 00=2a@1 | =2a@1 | 0000000000=2a@1
    00000000000000=2a@1 | 010000=6f6f7073@1 0000=2a@1 | 010000=@1 0000=2a@1 | 010000=7b7d@1 0000=2a@1 0010=2b@1
    0100000000=6f6f7073@1 0010=2a@1 | 050000=00@1 0010=2a@1 | 050000=00002a0010@1 | 050000=@1 0000=2a@1
    0500=2a@1 0010=2a@1 | 05=2a@1 0010=2a@1 | 0500000000=00002a@1 0010=2a@1 | 050001=00002a@1 | 050000=00102b00002a@1
    060000=2a@1 0000=2a@1 | 060003=2a0001c0a0000040a000008001810100@1 | 070000=2a@1 0000=2a@1
    0700000000=2a@1 0000=2a@1 | 000b=7f80000000@1 | 0000000b=2a7f80000000@1 | 0000=2a@1 000b0010=ff8000002a00@2
    ff=2a@1 0000=2a@1 | ffffff=2a@1 0000=2a@1 | fff0=2a@1 | f000=2a@1 | f00000=2a@1 | f0000000=2a@1 | f0000007=2a@1
    f0007d0000=2a@1 | e1000010=2a2b00@1 | e100=2a@1 | efff=2a@1 | fdbba00000=2a@1 | fdbba000=2a@1 | ffffffff=2a@1
    0000f0007d00=2a2b00@1 | 0000f0007d00=2a2b01@1 | f0007d000000=2b2a01@1 | 00000010f0007d00=2a2b2c00@1 0020=07@2
    000b=7fc00000@1 | 000b=7f800000@1 | 000f=7ff8000000000000@1 | 0004=2a2a2a2a2a@1 | 000c=2a2a2a2a2a@1 | 0008=2a@1
    0000=2a@1 0010=2b@2 0020=2c@3 | 00000017=017fffffffffffffff00@1 0020=05@2 | 000000100020=2a2b00@1 0010=2c@2
"""

_POINT = "0000=2a@1"
KEYS = {  # rows with a malformed key, or with a series without names
    bytes.fromhex(key): row
    for key, row in {
        "00": _POINT,
        "000001": _POINT,
        "00000150e2": _POINT,
        "00000158000000": _POINT,  # without tags
        "0000015800000000000100": _POINT,
        "00000158001000000001000009": _POINT,
        "00000958001000000001000001": _POINT,
        "000001596841c0000001000001000001000001": _POINT,  # duplicate tag
        "00000159684fd7000001000001": _POINT,  # not the start of an hour
        "00000059685dd8": "010000=6f6f7073@1",  # global annotations
    }.items()
}
NAMES = [  # UIDs of the series that have names
    put
    for kind, name in {Kind.METRIC: b"broken", Kind.TAGK: b"host", Kind.TAGV: b"a"}.items()
    for put in (Put(name, id_column(kind), b"\0\0\1"), Put(b"\0\0\1", name_column(kind), name))
] + [Put(COUNTER_ROW, id_column(kind), encode_counter(1)) for kind in Kind]


def keyed(text: str = ROWS, metric: int = 1) -> dict[bytes, str]:
    """Give each row of cells its own row key: every second hour of one series, as some points exceed their hour."""
    words = [" ".join(row.split()) for row in text.replace("\n", " | ").split("|")]
    rows = [row for row in words if row]
    return {
        metric.to_bytes(3, "big") + (BASE + 7200 * number).to_bytes(4, "big") + SERIES: row
        for number, row in enumerate(rows)
    }


def config_of(tsd: Tsd) -> Config:
    """Return the configuration that a command reads."""
    given = {**tsd.settings, "tsd.storage.path": str(tsd.folder)}
    return read_config(Given("test", key, value) for key, value in given.items())[0]


async def put_row(ways: Access, table: str, key: bytes, text: str) -> None:
    """Write a row's cells, each with its time."""
    for cell in cells(text):
        await ways.store.put(table, [Put(key, COLUMN + cell.qualifier, cell.value)], time_ms=cell.time_ms)


def lay(tsd: Tsd, rows: dict[bytes, str]) -> None:
    """Write rows into the data table, through the daemon if one runs."""

    async def run() -> None:
        config = config_of(tsd)
        async with access(config) as ways:
            for key, text in rows.items():
                await put_row(ways, config.data_table, key, text)

    trio.run(run)


def lay_uids(tsd: Tsd, puts: Sequence[Put]) -> None:
    """Write cells into the UID table."""

    async def run() -> None:
        config = config_of(tsd)
        async with access(config) as ways:
            await ways.store.put(config.uid_table, sorted(puts), time_ms=1)

    trio.run(run)


def stored(tsd: Tsd, table: str = "data_table") -> dict[bytes, Row]:
    """Return the rows of a table."""
    found: dict[bytes, Row] = {}

    async def run() -> None:
        config: Any = config_of(tsd)
        async with access(config) as ways:
            async for rows in scan(ways.store, getattr(config, table)):
                found.update((row.key, row) for row in rows)

    trio.run(run)
    return found


def shown(row: Row) -> str:
    """Format a row's cells as in `ROWS`, without times."""
    skip = len(COLUMN)
    return " ".join(f"{cell.column[skip:].hex()}={cell.value.hex()}" for cell in row.cells)
