"""RocksDB options of the embedded store's tables: compression, memory and write-ahead logs."""

import tempfile
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

import rocksdict

from tsd.errors import StoreError

OPEN_FILES = 512  # half of a usual process limit
# rocksdict has no setters for these. RocksDB keeps a block compressed only if this saves an eighth, by default. The
# last level has packed numbers, which do not shrink, and keys, which do: a twentieth of a block. It is read as fast.
_LOADED = """[Version]
  rocksdb_version=9.0.0
  options_file_version=1.1
[DBOptions]
  track_and_verify_wals_in_manifest=true
[CFOptions "default"]
  bottommost_compression_opts={enabled=true;max_compressed_bytes_per_kb=1004;}
[TableOptions/BlockBasedTable "default"]
"""  # all other options have RocksDB's defaults
_RAW = '{"raw_mode":true,"prefix_extractors":{}}'  # rocksdict's own options


class Settings(NamedTuple):
    """Options of a database, and of each of its tables."""

    database: rocksdict.Options
    table: rocksdict.Options


def _loaded() -> Settings:
    """Return options that rocksdict has no setters for, but reads from option files. RocksDB records the sizes of
    closed, synced logs in its manifest: an opening then fails if such a log is missing or shorter. Raise StoreError."""
    for parent in (None, "/dev/shm"):  # noqa: S108 - also works with a full disk
        with suppress(OSError), tempfile.TemporaryDirectory(dir=parent) as folder:
            Path(folder, "OPTIONS-000001").write_text(_LOADED)
            Path(folder, "rocksdict-config.json").write_text(_RAW)
            database, tables = rocksdict.Options.load_latest(folder)
            return Settings(database, tables["default"])
    raise StoreError("cannot write a temporary file of 200 bytes, which opening the embedded store needs")


def options(cache_bytes: int, memtable_bytes: int) -> Settings:
    """Return the options of a database. All tables together use `cache_bytes` for blocks that were read, and up to
    four times `memtable_bytes` for writes."""
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(cache_bytes))
    blocks.set_block_size(16 << 10)  # rows are read whole; larger blocks compress better
    blocks.set_bloom_filter(10, False)  # only 1 in 100 lookups of an unknown name reads a block
    blocks.set_cache_index_and_filter_blocks(True)  # bounds their memory for any amount of data
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    result = _loaded()
    for each in result:  # a table's are those of the database, but for the loaded ones
        _fill(each, blocks, memtable_bytes)
    return result


def _fill(result: rocksdict.Options, blocks: rocksdict.BlockBasedOptions, memtable_bytes: int) -> None:
    result.create_if_missing(True)
    result.create_missing_column_families(True)
    result.set_block_based_table_factory(blocks)
    # Cells are rewritten a few times until they reach the last level: cheap compression first, the best one there.
    result.set_compression_type(rocksdict.DBCompressionType.lz4())
    result.set_bottommost_compression_type(rocksdict.DBCompressionType.zstd())
    result.set_compaction_style(rocksdict.DBCompactionStyle.level())
    result.set_level_compaction_dynamic_level_bytes(True)  # replaced cells take at most a ninth of the space
    result.set_write_buffer_size(memtable_bytes)
    result.set_max_write_buffer_number(4)  # absorbs a burst while earlier writes are flushed
    result.set_db_write_buffer_size(4 * memtable_bytes)
    result.set_max_total_wal_size(8 * memtable_bytes)  # flushes rarely written tables, so that old logs can be deleted
    result.set_max_background_jobs(2)  # a flush and a compaction; the event loop needs a core too
    result.set_bytes_per_sync(1 << 20)  # syncs new files in steps, so that no sync has to wait for a whole file
    result.set_avoid_unnecessary_blocking_io(True)  # background jobs remove old files
    result.set_max_open_files(OPEN_FILES)
    result.set_max_log_file_size(1 << 20)
    result.set_keep_log_file_num(2)
    result.set_stats_dump_period_sec(0)
    result.set_max_manifest_file_size(16 << 20)
