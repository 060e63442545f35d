"""Every byte of the stored formats and of put lines: pure functions, without a clock, I/O or tasks.

Each table layout has a package with a FORMATS page, and so have the entity tables. `packing` and `blocks` are forms of
cells in the embedded store."""
