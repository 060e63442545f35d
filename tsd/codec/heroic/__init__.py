"""Heroic's bytes in Bigtable (FORMATS.md)."""
