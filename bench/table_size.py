"""Size of a table on disk after its engine has merged its files."""

import subprocess
from collections.abc import Iterable
from pathlib import Path

import rocksdict  # noqa: TID251 (a benchmark's own order to RocksDB, not the daemon's store)

from bench.peers import Hbase
from scripts.peers.hbase import HBASE, OPENS
from scripts.peers.java import find_java, jars_of
from tsd.store.rocksdb.options import options

MERGE = Path(__file__).parent / "MergeFiles.java"


def hbase_bytes(hbase: Hbase, table: str) -> int:
    """Flush and major-compact a table of HBase. Return the size of its store files."""
    classes = f"{hbase.home / 'conf'}:{jars_of(HBASE)}/*"
    subprocess.run([find_java(), *OPENS, "-cp", classes, str(MERGE), table], check=True, stdout=subprocess.DEVNULL)
    files = _store_files(hbase.home / "data" / "data" / "default" / table)
    assert len(files) == 1, f"a major compaction of one region left {files}"
    return _sizes(files)


def _store_files(folder: Path) -> set[Path]:
    """Yield the files in use: data/NAMESPACE/TABLE/REGION/FAMILY/FILE."""
    return {path for path in folder.glob("*/t/*") if path.is_file() and not path.name.startswith(".")}


def embedded_bytes(home: Path) -> int:
    """Return the size of the embedded store's folder."""
    return _sizes(path for path in (home / "store").rglob("*") if path.is_file())


def table_bytes(home: Path) -> int:
    """Return the size of the embedded store's tables, without its log and manifest."""
    return _sizes((home / "store").glob("*.sst"))


def merge_embedded(home: Path, table: str) -> int:
    """Make RocksDB merge all files of a table and of its blocks, as it does gradually in the background. Return their
    size: no other table's. No process may have the store open."""
    folder = str(home / "store")
    settings, table_settings = options(64 << 20, 32 << 20)
    families = dict.fromkeys(rocksdict.Rdict.list_cf(folder, settings), table_settings)
    database = rocksdict.Rdict(folder, settings, column_families=families)
    try:
        merged = [database.get_column_family(name) for name in families if name in (table, f"{table}/blocks")]
        for family in merged:
            family.compact_range(None, None)
        return sum(family.property_int_value("rocksdb.live-sst-files-size") or 0 for family in merged)
    finally:
        database.close()


def _sizes(files: Iterable[Path]) -> int:
    return sum(path.stat().st_size for path in files)
