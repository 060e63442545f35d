"""The error of a refused line keeps no reference to its block, neither by a traceback nor by another error.

Regression: under load each refused line kept its block in memory until the garbage collector ran.
"""

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests import layouts
from tests.unit.ingest.parts import Parts, line, make_store
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.putline import NameRules
from tsd.ingest import series
from tsd.ingest.intake import absorb_whole
from tsd.ingest.open_window import OpenWindow
from tsd.ingest.put_lines import Reject
from tsd.ingest.series import SeriesTable
from tsd.tables.opentsdb.resolver import AutoCreate, UidResolver

pytestmark = layouts.on_all

REFUSED = (
    b"put m 1500000000 1x host=a",  # no number
    b"put m x 1 host=a",  # no time
    b"put m 1500000000 1",  # no tags
    b"put m 1500000000 1 host",  # no tag
    b"put m! 1500000000 1 host=a",  # no name
)


@pytest.mark.parametrize("compiled", [False, True] if series.HAS_LOOP else [False])
async def test_refused_lines_reference_no_block(tmp_path: Path, compiled: bool) -> None:
    parts = Parts(tmp_path, await make_store())
    open_window = OpenWindow(SeriesTable(compiled=compiled), NameRules())
    names = UidResolver(parts.uids, KeyLayout(), AutoCreate(True, True, True))
    absorbed = await absorb_whole(open_window, names, b"".join(text + b"\n" for text in (line(0, 1), *REFUSED)))
    check_bare(absorbed.rejects)
    rollups = await absorb_whole(open_window, names, b"rollup bad\n", parts.summaries)
    check_bare(rollups.rejects, [0])


def check_bare(rejects: Sequence[Reject], lines: Sequence[int] = (1, 2, 3, 4, 5)) -> None:
    assert [reject.line for reject in rejects] == list(lines)
    for reject in rejects:
        assert (reject.error.__traceback__, reject.error.__cause__, reject.error.__context__) == (None, None, None)
