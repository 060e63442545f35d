"""`tsd uid` and OpenTSDB's tool on equal tables: the same output, the same tables, no complaint."""

from collections.abc import Callable
from pathlib import Path

import pytest

from tests.broken_rows import lay_uids
from tests.e2e.command import Tsd, on_hbase
from tests.e2e.test_uid_maintenance import BROKEN
from tests.peers.hbase import RunningHbase
from tests.peers.opentsdb import Opentsdb

# Except errors that no tool can repair (lengths), and a column that OpenTSDB warns of.
NAMES = [put for put in BROKEN if put.row != b"short" and put.value not in (b"short", b"x")]


@pytest.fixture
def sides(hbase: RunningHbase, opentsdb: Callable[..., Opentsdb], tmp_path: Path) -> tuple[Tsd, Tsd, Opentsdb]:
    """The `tsd` command on its own tables, and both tools on shared ones."""
    peer = opentsdb(hbase.new_tables())
    ours = Tsd(tmp_path / "ours", on_hbase(hbase, hbase.new_tables()))
    theirs = Tsd(tmp_path / "theirs", on_hbase(hbase, peer.tables))
    return ours, theirs, peer


def uid_rows(hbase: RunningHbase, tsd: Tsd) -> dict[bytes, dict[bytes, bytes]]:
    return hbase.tables.rows(tsd.settings["tsd.storage.hbase.uid_table"])


def test_uid_rename_and_delete_as_in_opentsdb(sides: tuple[Tsd, Tsd, Opentsdb], hbase: RunningHbase) -> None:
    ours, theirs, peer = sides
    for tsd in (ours, theirs):
        tsd.run("mkmetric", "sys.cpu", "sys.mem")
    renamed = peer.tool("UidManager", "rename", "metrics", "sys.cpu", "cpu").decode()
    assert ours.run("uid", "rename", "metrics", "sys.cpu", "cpu").out == renamed
    assert uid_rows(hbase, ours) == uid_rows(hbase, theirs)
    assert (
        ours.run("uid", "grep", "metrics", "[a-z]").out == peer.tool("UidManager", "grep", "metrics", "[a-z]").decode()
    )
    peer.tool("UidManager", "delete", "metrics", "cpu")
    assert ours.run("uid", "delete", "metrics", "cpu").status == 0
    assert uid_rows(hbase, ours) == uid_rows(hbase, theirs)


def test_opentsdb_accepts_repaired_uid_table(sides: tuple[Tsd, Tsd, Opentsdb], hbase: RunningHbase) -> None:
    _, theirs, peer = sides
    lay_uids(theirs, NAMES)
    assert theirs.run("uid", "fsck", "fix").status > 0
    rows = uid_rows(hbase, theirs)
    output = peer.tool("UidManager", "-v", "fsck", "fix").decode()  # exit status 0: no errors
    assert "ERROR" not in output
    assert uid_rows(hbase, theirs) == rows
