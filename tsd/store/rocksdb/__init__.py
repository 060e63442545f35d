"""The embedded engine: cells in a local RocksDB."""
