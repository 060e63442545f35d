"""OpenTSDB's bytes: row keys, qualifiers, cells, UIDs and the rows of its other tables. FORMATS.md has every format."""
