"""Reads all of a RocksDB folder without changing it, to verify a backup or a restored store."""

import shutil
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from itertools import islice
from pathlib import Path
from typing import NamedTuple, cast

from rocksdict import AccessType, DBRecoveryMode, Rdict, ReadOptions

from tsd.errors import StoreError
from tsd.store.rocksdb.database import NO_TABLE, SYSTEM
from tsd.store.rocksdb.options import options
from tsd.store.rocksdb.recovery import SyncedRecord
from tsd.store.rocksdb.view import READAHEAD_BYTES

CACHE_BYTES = 32 << 20
STEP_CELLS = 20_000
CONFIGURATION = "rocksdict-config.json"


class Contents(NamedTuple):
    """What a folder holds."""

    tables: int  # without those whose cells keep versions
    cells: int
    bytes: int  # of keys and values


def read_back(folder: Path) -> Iterator[Contents]:
    """Read every cell of a database that no process has open. RocksDB checks each block's checksum on the way.

    Yield what has been read so far, at least once. Raise StoreError for damage, and if writes that the record of the
    last sync covers are missing.
    """
    with _linked(folder) as place:
        try:
            yield from _read(place)
        except Exception as exc:
            if type(exc) not in (Exception, StoreError):  # rocksdict raises plain Exception
                raise
            raise StoreError(f"{folder}: {exc}".replace(str(place), str(folder))) from exc


@contextmanager
def _linked(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder with links to the files of a database, and a copy of its configuration: rocksdict writes
    this also where it only reads, and a backup may be on a read-only file system. Without a place for temporary files,
    for example on a full disk, yield the database's own folder."""
    with ExitStack() as stack:
        try:
            made = stack.enter_context(tempfile.TemporaryDirectory(prefix="tsd-"))
            for path in folder.absolute().iterdir():
                if path.name == CONFIGURATION:
                    shutil.copyfile(path, Path(made, path.name))
                else:
                    Path(made, path.name).symlink_to(path)
        except OSError:
            yield folder
        else:
            yield Path(made)


def _read(folder: Path) -> Iterator[Contents]:
    settings, table_settings = options(CACHE_BYTES, CACHE_BYTES)
    settings.set_wal_recovery_mode(DBRecoveryMode.absolute_consistency())
    names = [name for name in Rdict.list_cf(str(folder), settings) if name != SYSTEM]
    opened = Rdict(str(folder), settings, dict.fromkeys(names, table_settings), access_type=AccessType.read_only())
    try:
        synced, found = SyncedRecord(folder).number, opened.latest_sequence_number()
        if synced is not None and found < synced:
            raise StoreError(f"{synced} writes were on disk, {found} can be read")
        tables = sum(not name.endswith(NO_TABLE) for name in names)
        contents = Contents(tables, 0, 0)
        yield contents
        for name in names:
            for cells, size in _steps(opened.get_column_family(name)):
                contents = Contents(tables, contents.cells + cells, contents.bytes + size)
                yield contents
    finally:
        opened.close()


def _steps(rows: Rdict) -> Iterator[tuple[int, int]]:
    """Yield the number of cells and their bytes, step by step."""
    reading = ReadOptions()
    reading.set_readahead_size(READAHEAD_BYTES)
    reading.fill_cache(False)  # type: ignore[call-arg] # the stub lacks the argument
    items = cast(Iterator[tuple[bytes, bytes]], rows.items(read_opt=reading))
    last = b""
    while part := list(islice(items, STEP_CELLS)):
        last = part[-1][0]
        yield len(part), sum(len(key) + len(value) for key, value in part)
    at = rows.iter(reading)  # `items` ends without an error at a damaged block
    at.seek(last)
    if at.valid():
        at.next()
    at.status()
    if at.valid():
        raise StoreError(f"cells after {last.hex()} cannot be read")
    rows.close()
