"""Blocks in the files of a closed embedded store, and damage to them."""

from pathlib import Path

import rocksdict  # noqa: TID251 - reads and damages the files

from tsd.store.rocksdb.database import BLOCKS, SYSTEM
from tsd.store.rocksdb.options import options


def stored_blocks(folder: Path, table: str, *damages: tuple[bytes, int]) -> dict[bytes, bytes]:
    """The blocks of a table of a closed store. `damages`: keys, each with the index of a byte to change."""
    settings, table_settings = options(1 << 20, 1 << 20)
    names = [name for name in rocksdict.Rdict.list_cf(str(folder), settings) if name != SYSTEM]
    opened = rocksdict.Rdict(str(folder), settings, dict.fromkeys(names, table_settings))
    family = opened.get_column_family(table + BLOCKS)
    for key, at in damages:
        damaged = bytearray(family[key])
        damaged[at] ^= 0xFF
        family[key] = bytes(damaged)
    found = dict(family.items())
    family.close()
    opened.close()
    return found
