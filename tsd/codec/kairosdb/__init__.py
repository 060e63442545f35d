"""KairosDB's bytes: row keys, columns, values and rows of its indexes. FORMATS.md in this folder has every format."""
