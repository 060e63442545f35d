"""Tables that are made again while a daemon runs on them."""

from contextlib import closing
from pathlib import Path

import happybase  # noqa: TID251 (the judge must not be the code it judges)
import pytest

from tests.e2e.command import Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tests.peers.tables import FAMILIES

pytestmark = pytest.mark.slow
T = 1356998400


def test_points_have_new_names_after_tables_were_made_again(hbase: RunningHbase, tmp_path: Path) -> None:
    """Regression: for ten minutes points were written under UIDs of the old table."""
    tables = hbase.new_tables()
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables))
    with tsd.serve() as daemon:
        daemon.send_lines(b"put old %d 1 host=a\nput m %d 1 host=b\n" % (T, T))
        daemon.flush()
        with closing(happybase.Connection(hbase.host, hbase.thrift_port)) as judge:
            for name in (tables.data, tables.uid):
                judge.delete_table(name, disable=True)
        hbase.tables.create(tables.data, FAMILIES["data"])
        hbase.tables.create(tables.uid, FAMILIES["uid"])
        assert daemon.await_event("uids.table_replaced")["level"] == "error"
        daemon.send_lines(b"put m %d 3 host=b\n" % (T + 2))
        daemon.flush()
        assert tsd.lines("m") == [f"m {T + 2} 3 host=b"]
        assert tsd.run("uid", "fsck").status == 0
        assert tsd.run("fsck", "--full-scan").status == 0
