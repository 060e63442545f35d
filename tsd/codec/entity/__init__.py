"""Bytes of the entity tables: columns, values and times. FORMATS.md in this folder has every format."""
