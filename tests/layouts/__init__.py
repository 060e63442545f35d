"""Table layouts that tests run on. The fixture `layout` chooses one; tests without it run on OpenTSDB's."""

import pytest

OPENTSDB, READABLE = "opentsdb", "readable"
chosen = OPENTSDB
on_all = pytest.mark.usefixtures("layout")  # of a test module: its tests run on each layout
opentsdb_only = pytest.mark.parametrize("layout", [OPENTSDB], indirect=True)  # of a test of what only OpenTSDB's has


def is_readable() -> bool:
    """Return whether the running test has chosen the layout of `tests.layouts.readable`."""
    return chosen == READABLE
