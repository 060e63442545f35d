"""Rows under keys of tags and times, as the schema guide of Bigtable has them (FORMATS.md)."""
