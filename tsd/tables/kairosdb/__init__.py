"""KairosDB's tables on Cassandra, byte for byte as KairosDB reads and writes them (tsd/codec/kairosdb/FORMATS.md)."""
