"""How RocksDB keeps the tables of an embedded store: what it compresses, what it holds in memory, when it writes."""

import tempfile
from contextlib import suppress
from pathlib import Path

import rocksdict

from tsd.errors import StoreError

OPEN_FILES = 512  # half of what a process may usually have
_TRACKED = """[Version]
  rocksdb_version=9.0.0
  options_file_version=1.1
[DBOptions]
  track_and_verify_wals_in_manifest=true
[CFOptions "default"]
[TableOptions/BlockBasedTable "default"]
"""  # all else has RocksDB's defaults
_RAW = '{"raw_mode":true,"prefix_extractors":{}}'  # rocksdict's own


def _tracked() -> rocksdict.Options:
    """Options by which RocksDB's manifest keeps the sizes of the logs that were synced and are written no more, and an
    opening refuses one that is missing or shorter. rocksdict has no setter for it, but reads files of options.
    Raises StoreError."""
    for parent in (None, "/dev/shm"):  # noqa: S108 - a full disk is no reason
        with suppress(OSError), tempfile.TemporaryDirectory(dir=parent) as folder:
            Path(folder, "OPTIONS-000001").write_text(_TRACKED)
            Path(folder, "rocksdict-config.json").write_text(_RAW)
            return rocksdict.Options.load_latest(folder)[0]
    raise StoreError("no folder takes a temporary file of 200 bytes, which opening the embedded store needs")


def options(cache_bytes: int, memtable_bytes: int) -> rocksdict.Options:
    """How RocksDB keeps every table. Over all of them it takes `cache_bytes` for blocks that were read, and up to four
    times `memtable_bytes` for what was written."""
    blocks = rocksdict.BlockBasedOptions()
    blocks.set_block_cache(rocksdict.Cache(cache_bytes))
    blocks.set_block_size(16 << 10)  # rows are read whole; larger blocks compress better
    blocks.set_bloom_filter(10, False)  # a name without UID is asked for by its key: 1 in 100 costs a read
    blocks.set_cache_index_and_filter_blocks(True)  # memory stays within the cache, however much is stored
    blocks.set_pin_l0_filter_and_index_blocks_in_cache(True)
    result = _tracked()
    result.create_if_missing(True)
    result.create_missing_column_families(True)
    result.set_block_based_table_factory(blocks)
    # Cells are rewritten a few times while they sink, and then stay: the cheap compression first, the best one last.
    result.set_compression_type(rocksdict.DBCompressionType.lz4())
    result.set_bottommost_compression_type(rocksdict.DBCompressionType.zstd())
    result.set_compaction_style(rocksdict.DBCompactionStyle.level())
    result.set_level_compaction_dynamic_level_bytes(True)  # no more than a ninth of the space for what was replaced
    result.set_write_buffer_size(memtable_bytes)
    result.set_max_write_buffer_number(4)  # room for a window to be put at once while earlier ones are flushed
    result.set_db_write_buffer_size(4 * memtable_bytes)
    result.set_max_total_wal_size(8 * memtable_bytes)  # a table that is seldom written keeps no log for ever
    result.set_max_background_jobs(2)  # a flush and a compaction; the event loop wants a core too
    result.set_bytes_per_sync(1 << 20)  # the disk gets new files bit by bit: no sync waits for all of one
    result.set_avoid_unnecessary_blocking_io(True)  # background jobs remove old files
    result.set_max_open_files(OPEN_FILES)
    result.set_max_log_file_size(1 << 20)
    result.set_keep_log_file_num(2)
    result.set_stats_dump_period_sec(0)
    result.set_max_manifest_file_size(16 << 20)
    return result
