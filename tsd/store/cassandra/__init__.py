"""Cassandra as an engine: cells in tables of its own, whose partitions are listed in order."""
