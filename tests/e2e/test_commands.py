"""Output and exit status of the commands."""

import errno
import json
import os
import re
import signal
import socket
from pathlib import Path

import pytest

from tests.e2e.command import HOST, Done, Tsd, on_hbase
from tests.peers.hbase import RunningHbase
from tsd.config.loader import keys
from tsd.config.state_dir import lock_state
from tsd.store import Put

pytestmark = pytest.mark.slow
VERSION = re.compile(
    r"net\.opentsdb\.tools \d+[.+]\S+ built at revision ([0-9a-f]{40}|unknown) \(MINT\)\n"
    r"Built on \d{4}/\d\d/\d\d \d\d:\d\d:\d\d \+0000 by .+\n"
)

# In the form of the file in OpenTSDB's packages, with an operator's changes.
OPENTSDB_CONF = """\
# --------- NETWORK ----------
# where agents and dashboards connect to
tsd.network.port = 4242

# all addresses, unless one is given
# tsd.network.bind = 0.0.0.0
#tsd.network.tcpnodelay = true
tsd.network.async_io true
tsd.network.worker_threads: 8

# ----------- HTTP -----------
tsd.http.staticroot = /usr/share/opentsdb/static/
tsd.http.cachedir = /tmp/opentsdb
tsd.http.request.enable_chunked = true
tsd.http.request.max_chunk = 65536

# --------- CORE ----------
tsd.core.auto_create_metrics = true
tsd.core.plugin_path = /usr/share/opentsdb/plugins
tsd.core.meta.enable_tsuid_tracking = false
tsd.core.tag.allow_specialchars = :@

# --------- STORAGE ----------
tsd.storage.enable_compaction = false
# tsd.storage.flush_interval = 1000
tsd.storage.hbase.data_table = tsdb
tsd.storage.hbase.uid_table = tsdb-uid
tsd.storage.hbase.zk_basedir = /hbase
tsd.storage.hbase.zk_quorum = zk1.example,\\
                              zk2.example
hbase.rpcs.buffered_flush_interval = 500
tsd.storage.fix_duplicates = true
"""
IGNORED = """\
hbase.rpcs.buffered_flush_interval tsd.core.plugin_path tsd.http.cachedir tsd.network.async_io
tsd.network.worker_threads tsd.storage.hbase.zk_basedir tsd.storage.hbase.zk_quorum
"""

WRONG = """\
tsd.network.port = 99999
tsd.network.bnd = 0.0.0.0
tsd.mode = readonly
tsd.storage.salt.width = two
tsd.storage.join_points = maybe
tsd.journal.max_bytes = 1K
tsd.storage.use_otsdb_timestamp = true
tsd.log.level = loud
tsd.storage.hbase.data_table = same
tsd.storage.hbase.uid_table = same
"""


def test_mkmetric_and_uid_list_names(engine: Tsd) -> None:
    made = engine.run("mkmetric", "sys.cpu", "sys.mem", "Net.in")
    assert made.status == 0
    assert made.out == "metrics sys.cpu: [0, 0, 1]\nmetrics sys.mem: [0, 0, 2]\nmetrics Net.in: [0, 0, 3]\n"
    assert engine.run("mkmetric", "sys.mem").out == "metrics sys.mem: [0, 0, 2]\n"
    assert (
        engine.run("uid", "assign", "tagk", "host", "sys.cpu").out == "tagk host: [0, 0, 1]\ntagk sys.cpu: [0, 0, 2]\n"
    )
    both = "metrics sys.cpu: [0, 0, 1]\ntagk sys.cpu: [0, 0, 2]\n"
    assert engine.run("uid", "sys.cpu") == Done(0, both, "")
    assert engine.run("uid", "metrics", "sys.mem", "1") == Done(
        0, "metrics sys.mem: [0, 0, 2]\nmetrics sys.cpu: [0, 0, 1]\n", ""
    )
    assert engine.run("uid", "Net.in", "nosuch", "sys.mem", "0") == Done(
        1,
        "metrics Net.in: [0, 0, 3]\nmetrics sys.mem: [0, 0, 2]\n",
        "tsd: No such name or UID for metrics, tagk, tagv: 'nosuch', '0'\n",
    )
    assert engine.run("uid", "1") == Done(0, "metrics sys.cpu: [0, 0, 1]\ntagk host: [0, 0, 1]\n", "")
    assert engine.run("uid", "tagk", "2") == Done(0, "tagk sys.cpu: [0, 0, 2]\n", "")
    assert sorted(engine.run("uid", "grep", "cpu").out.splitlines()) == both.splitlines()
    assert engine.run("uid", "grep", "metrics", "^net", "-i") == Done(0, "metrics Net.in: [0, 0, 3]\n", "")
    assert engine.run("uid", "grep", "metrics", "^net") == Done(1, "", "")
    unknown = "tsd: No such name or UID for metrics, tagk, tagv: 'nosuch'\n"
    assert engine.run("uid", "nosuch") == Done(1, "", unknown)
    assert engine.run("uid", "metrics", "1" * 5000) == Done(
        1, "", f"tsd: {'1' * 5000} is too large to fit on 3 bytes\n"
    )
    assert engine.run("uid", "tagv", "1") == Done(1, "", "tsd: No such name or UID for tagv: '1'\n")


@pytest.mark.difference(
    "uid-assign",
    topic="points",
    theirs="`uid assign` accepts any name, and counts up to and beyond the last UID",
    ours=(
        "Names are checked like those of points. The counter never passes the last UID, and the log warns from 50 % on"
    ),
)
def test_invalid_names_get_no_uid(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    done = tsd.run("mkmetric", "sys.cpu", "bad:name")
    assert (done.status, done.out) == (2, "")
    assert 'Invalid metrics ("bad:name"): illegal character: :' in done.err
    done = tsd.run("uid", "assign", "metric", "sys.cpu")
    assert (done.status, done.out) == (2, "")
    assert "'metric' is not one of 'metrics', 'tagk', 'tagv'" in done.err
    assert tsd.run("uid", "grep", ".").status == 1
    assert "wanted a regular expression" in tsd.run("uid", "grep", "(").err
    assert "wanted one regular expression" in tsd.run("uid", "grep", "metrics", "a", "b").err


def test_daemon_knows_metric_made_by_mkmetric(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.core.auto_create_metrics": "false"})
    with tsd.serve() as daemon:
        refused = b"put: unknown metric: No such name for 'metrics': 'sys.cpu'\nsynced 0\n"
        assert daemon.send_lines(b"put sys.cpu 1356998400 1 host=web01\n") == refused
        assert tsd.run("mkmetric", "sys.cpu").status == 0
        assert daemon.send_lines(b"put sys.cpu 1356998400 1 host=web01\n") == b"synced 1\n"
    assert tsd.lines("sys.cpu") == ["sys.cpu 1356998400 1 host=web01"]


def test_create_tables_is_idempotent(hbase: RunningHbase, tmp_path: Path) -> None:
    tables = hbase.unused_tables()
    tsd = Tsd(tmp_path / "state", on_hbase(hbase, tables))
    lacking = tsd.run("uid", "sys.cpu")
    assert lacking.status == 3
    assert tables.uid in lacking.err
    made = tsd.run("create-tables")
    assert (made.status, made.err) == (0, "")
    assert made.out.splitlines()[:4] == [
        f"{name}: created" for name in (tables.data, tables.uid, tables.tree, tables.meta)
    ]
    assert f"alter '{tables.data}', {{NAME => 't', DATA_BLOCK_ENCODING => 'DIFF'}}" in made.out
    there = "".join(f"{name}: exists\n" for name in (tables.data, tables.uid, tables.tree, tables.meta))
    assert tsd.run("create-tables") == Done(0, there, "")
    assert set(tables) <= set(hbase.tables.tables())


def test_assignment_in_a_new_store_names_its_folder(tmp_path: Path) -> None:
    """Regression: with a wrong --data the daemon did not know the metrics, and the command had printed their UIDs."""
    tsd = Tsd(tmp_path / "state")
    for words in (["mkmetric", "a"], ["uid", "assign", "tagk", "host"]):
        other = Tsd(tmp_path / words[0])
        assert str(other.folder) in other.run(*words).err
        assert other.run(*words).err == ""
    with tsd.serve():
        assert tsd.run("mkmetric", "a").err == ""


def test_store_is_not_made_among_other_files(tmp_path: Path) -> None:
    """Regression: `tsd --data /etc serve` as root made its store there."""
    tsd = Tsd(tmp_path / "state")
    tsd.folder.mkdir()
    (tsd.folder / "passwd").touch()
    (tmp_path / "backups").mkdir()
    for words in (["serve"], ["mkmetric", "a"], ["import", "-"], ["create-tables"]):
        assert tsd.run(*words).status == 2
    assert tsd.run("backup", tmp_path / "backups").status == 1
    checked = tsd.run("check-config")
    assert (checked.status, "passwd" in checked.err) == (2, True)
    assert [path.name for path in tsd.folder.iterdir()] == ["passwd"]


def test_files_that_settings_name_may_be_in_a_new_state_folder(tmp_path: Path) -> None:
    folder = tmp_path / "state"
    tsd = Tsd(folder, {"tsd.auth.file": str(folder / "secrets" / "accounts"), "tsd.journal.path": str(folder / "wal")})
    (folder / "secrets").mkdir(parents=True)
    (folder / "wal").mkdir()
    (folder / "tsd.conf").touch()
    assert tsd.run("token", "add", "a", "--role", "read").status == 0
    assert tsd.run("check-config").status == 0
    with tsd.serve():
        pass


def test_accounts_without_authentication_are_reported(tmp_path: Path) -> None:
    """Regression: a daemon whose settings named an accounts file was open without a word."""
    tsd = Tsd(tmp_path / "state", {"tsd.auth.file": str(tmp_path / "accounts")})
    assert tsd.run("token", "add", "a", "--role", "read").status == 0
    assert "tsd.auth.file: " in tsd.run("check-config").err
    assert json.loads(tsd.run("check-config", "--json").out)["unused_accounts"]
    with tsd.serve() as daemon:
        assert daemon.await_event("access.accounts_unused")["level"] == "warning"
    enabled = tsd.but({"tsd.core.authentication.enable": "true"})
    assert "tsd.auth.file: " not in enabled.run("check-config").err
    with enabled.serve() as daemon:
        assert not daemon.events("access.accounts_unused")


def test_embedded_tables_always_exist(tmp_path: Path) -> None:
    names = ("tsdb", "tsdb-uid", "tsdb-tree", "tsdb-meta", "tsdb-series")
    there = "".join(f"{name}: exists\n" for name in names)
    tsd = Tsd(tmp_path / "state")
    assert tsd.run("create-tables").on_new_store(tsd.folder) == Done(0, there, "")
    assert tsd.run("create-tables") == Done(0, there, "")


def test_version_equals_the_daemons_answer(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    done = tsd.run("version")
    assert (done.status, done.err) == (0, "")
    assert VERSION.fullmatch(done.out)
    with tsd.serve() as daemon:
        assert daemon.send_lines(b"version\n").decode() == done.out + "synced 0\n"


@pytest.mark.difference(
    "unknown-keys",
    topic="commands",
    theirs="Unknown keys are ignored, and any unknown form of true is false",
    ours=(
        "They are errors that suggest the nearest key or name the expected form. Trailing blanks of values are removed"
    ),
)
def test_check_config_reports_all_errors(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    file = tmp_path / "wrong.conf"
    file.write_text(WRONG)
    done = tsd.run("check-config", "--config", file, "--set", "novalue", "--set", "tsd.storage.pth=x")
    assert (done.status, done.out) == (2, "")
    assert done.err.splitlines() == [
        f"tsd: {file}, line 1: tsd.network.port: got 99999, wanted 65535 or less",
        f"tsd: {file}, line 2: tsd.network.bnd: no such key; did you mean tsd.network.bind?",
        f"tsd: {file}, line 3: tsd.mode: got 'readonly', wanted rw or ro or wo",
        f"tsd: {file}, line 4: tsd.storage.salt.width: got 'two', wanted a whole number of bytes",
        f"tsd: {file}, line 5: tsd.storage.join_points: got 'maybe', wanted true or false",
        f"tsd: {file}, line 6: tsd.journal.max_bytes: got 1K, wanted 1048576 or more",
        f"tsd: {file}, line 7: tsd.storage.use_otsdb_timestamp: got 'true', but the store assigns the timestamps "
        "of cells, and a query bounded by cell time would miss points: remove the line",
        f"tsd: {file}, line 8: tsd.log.level: got 'loud', wanted debug or info or warning or error",
        "tsd: --set: tsd.storage.pth: no such key; did you mean tsd.storage.path?",
        "tsd: tsd.storage.hbase.*_table: got same, same, tsdb-tree, tsdb-meta, wanted four different names "
        f"({file}, line 9: tsd.storage.hbase.data_table, {file}, line 10: tsd.storage.hbase.uid_table)",
        "tsd: --set novalue: wanted KEY=VALUE",
    ]
    assert tsd.run("serve", "--config", file).status == 2
    assert tsd.run("check-config", "--set", "novalue") == Done(2, "", "tsd: --set novalue: wanted KEY=VALUE\n")
    nosuch = tmp_path / "nosuch.conf"
    missing = f"tsd: {nosuch}: cannot be read: No such file or directory\n"
    assert tsd.run("check-config", "--config", nosuch) == Done(2, "", missing)
    other = "tsd: --set: tsd.mode: got 'x', wanted rw or ro or wo\n"
    assert tsd.run("check-config", "--config", nosuch, "--set", "tsd.mode=x") == Done(2, "", missing + other)


def test_check_config_reads_the_files_that_are_named(tmp_path: Path) -> None:
    """Regression: it found no problem, and the daemon did not start."""
    tsd = Tsd(tmp_path / "state")
    nosuch, wrong = tmp_path / "nosuch.json", tmp_path / "wrong"
    wrong.write_text("what")
    wrong.chmod(0o600)
    given = {
        "tsd.rollups.enable": "true",
        "tsd.rollups.config": str(nosuch),
        "tsd.core.histograms.config": str(nosuch),
        "tsd.query.limits.overrides.config": str(wrong),
        "tsd.tls.certificate": str(wrong),
        "tsd.core.authentication.enable": "true",
        "tsd.auth.file": str(wrong),
        "tsd.network.bind": "999.1.1.1",
    }
    words = [word for key, value in given.items() for word in ("--set", f"{key}={value}")]
    done = tsd.run("check-config", *words)
    named = [line.split(": ")[1:3] for line in done.err.splitlines()]
    files = [key for key in given if "file" in key or "config" in key or "certificate" in key]
    assert (done.status, sorted(named)) == (2, [["--set", key] for key in sorted([*files, "tsd.network.bind"])])
    for key in ("tsd.tls.certificate", "tsd.query.limits.overrides.config"):
        (file := tmp_path / "tsd.conf").write_text(f"{key} = {wrong}\n")
        served = tsd.run("serve", "--config", file)
        assert (served.status, f"tsd: {file}, line 1: {key}: " in served.err) == (2, True), served
    wrong.write_text("[]")
    only = ["--set", f"tsd.query.limits.overrides.config={wrong}", "--set", "tsd.network.bind=::1"]
    assert tsd.run("check-config", *only).status == 0


def test_check_config_shows_the_values_in_use(tmp_path: Path) -> None:
    """Regression: those that depend on other settings were shown as None. The values are valid settings."""
    tsd = Tsd(tmp_path / "state")
    for given in ({}, {"tsd.query.series_index": "false", "tsd.storage.flush_interval": "20000"}):
        words = [f"--set={key}={value}" for key, value in given.items()]
        shown = tsd.run("check-config", "--show", *words).out
        (file := tmp_path / "shown.conf").write_text("".join(f"{x}\n" for x in shown.splitlines() if "unset" not in x))
        assert tsd.run("check-config", "--show", "--config", file).out == shown


def test_check_config_reports_files_in_place_of_folders(tmp_path: Path) -> None:
    """Regression: it found no problem, and the daemon did not start."""
    (file := tmp_path / "file").touch()
    for tsd in (
        Tsd(file),
        Tsd(tmp_path / "state", {"tsd.journal.path": f"{file}"}),
        Tsd(tmp_path / "state", {"tsd.journal.path": f"{file / 'below'}"}),
    ):
        checked, served = tsd.run("check-config"), tsd.run("serve")
        assert (checked.status, checked.out, checked.err.count("\n"), str(file) in checked.err) == (2, "", 1, True)
        assert checked.err in served.err


def test_check_config_as_json_checks_folders_and_store_too(tmp_path: Path) -> None:
    """Regression: it printed the settings and ended with status 0."""
    file = tmp_path / "file"
    file.touch()
    in_the_way = {"tsd.journal.path": str(file)}
    away = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": f"{HOST}:1"}
    for settings, status in ((in_the_way, 2), (away, 3), ({}, 0)):
        tsd = Tsd(tmp_path / "state", settings)
        done, plain = tsd.run("check-config", "--json"), tsd.run("check-config")
        report = json.loads(done.out)
        assert report["settings"]["tsd.storage.path"] == str(tsd.folder)
        assert (done.status, plain.status, report["error"] is None) == (status, status, status == 0)
        assert status == 0 or done.err == plain.err == f"tsd: {report['error']}\n"


def test_check_config_asks_hbase_for_its_tables(hbase: RunningHbase, tmp_path: Path) -> None:
    settings = on_hbase(hbase, hbase.new_tables()) | {"tsd.storage.hbase.tree_table": "never-made"}
    tsd = Tsd(tmp_path / "state", settings)
    missing = tsd.run("check-config")
    assert (missing.status, missing.out, "never-made" in missing.err) == (0, "", True), missing
    assert "never-made" in json.loads(tsd.run("check-config", "--json").out)["missing"]
    assert settings["tsd.storage.hbase.data_table"] not in missing.err
    present = Tsd(tmp_path / "state", on_hbase(hbase, hbase.new_tables())).run("check-config")
    assert (present.status, "no problem found" in present.err) == (0, True), present
    away = tsd.but({"tsd.storage.hbase.thrift": f"{HOST}:1"}).run("check-config")
    assert (away.status, away.out, away.err.count("\n")) == (3, "", 1), away


def test_existing_opentsdb_conf_is_accepted(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    file = tmp_path / "opentsdb.conf"
    static = tmp_path / "static"  # the folder is absent where OpenTSDB was never installed
    file.write_text(OPENTSDB_CONF.replace("/usr/share/opentsdb/static", str(static)))
    done = tsd.run("check-config", "--config", file, "--show")
    *ignored_lines, no_folder, result = done.err.splitlines()
    lines = [re.fullmatch(r"ignored: (.*) \(.+\)", line) for line in ignored_lines]  # each ends with the reason
    assert sorted(key for line in lines if line for key in line[1].split()) == IGNORED.split()
    assert all(lines)
    assert no_folder.startswith(f"tsd.http.staticroot: there is no folder {static}/")
    assert result == f"{file}: no problem found"
    shown = dict(line.split(" = ", 1) for line in done.out.splitlines())
    assert set(shown) == set(keys())
    assert (done.status, shown["tsd.core.tag.allow_specialchars"], shown["tsd.storage.path"]) == (
        0,
        ":@",
        str(tsd.folder),
    )
    with tsd.serve("--config", str(file), "--port", "0") as daemon:
        assert daemon.send_lines(b"put a:b 1356998400 1 user=me@home\n") == b"synced 1\n"
        ignored = daemon.await_event("settings.ignored")
        assert ignored["keys"] == " ".join(IGNORED.split())
        assert daemon.await_event("static_files.missing")["folder"] == f"{static}/"


def test_unsupported_opentsdb_features_are_reported(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.core.meta.enable_tsuid_incrementing": "True", "tsd.search.enable": "false"})
    key, consequence = (
        "tsd.core.meta.enable_tsuid_incrementing",
        "points are not counted in the meta table",
    )
    done = tsd.run("check-config")
    off, on = done.err.splitlines()[:2]
    assert done.status == 0
    assert off.startswith("ignored: tsd.search.enable (")
    assert on == f"{key} is not supported: {consequence}"
    with tsd.serve() as daemon:
        daemon.send_lines(b"version\n")
        event = daemon.await_event("setting.unsupported")
        assert (event["level"], event["key"], event["consequence"]) == ("warning", key, consequence)


def test_settings_repeated_in_a_file_are_reported(tmp_path: Path) -> None:
    """Regression: the second of two lines took effect, and nothing said so."""
    file = tmp_path / "tsd.conf"
    file.write_text("tsd.mode = ro\ntsd.network.backlog = 5\n\ntsd.mode = rw\n")
    tsd = Tsd(tmp_path / "state")
    repeated = {"key": "tsd.mode", "where": f"{file}, line 1", "instead": f"{file}, line 4"}
    done = tsd.run("check-config", "--config", file, "--set", "tsd.network.backlog=6")
    assert done == Done(
        0, "", f"{file}, line 1: tsd.mode: has no effect, as {file}, line 4 sets it again\n{file}: no problem found\n"
    )
    assert json.loads(tsd.run("check-config", "--config", file, "--json").out)["repeated"] == [repeated]
    with tsd.serve("--config", str(file)) as daemon:
        daemon.send_lines(b"version\n")
        assert daemon.await_event("setting.repeated").items() >= {"level": "warning", **repeated}.items()


def test_later_settings_override_earlier(tmp_path: Path) -> None:
    (tmp_path / "tsd.conf").write_text("tsd.network.port = 1\ntsd.mode = ro\n")  # found in the working folder
    tsd = Tsd(tmp_path / "state")
    done = tsd.run("--set", "tsd.network.port=2", "check-config", "--show", "--set", "tsd.network.port=3")
    assert (done.status, done.err) == (0, "tsd.conf: no problem found\n")
    assert {"tsd.network.port = 3", "tsd.mode = ro"} <= set(done.out.splitlines())
    with tsd.serve("--set", "tsd.network.port=4", "--port", "0") as daemon, daemon.connect() as connection:
        connection.sendall(b"help\n")
        assert b" put " not in connection.recv(1000)


def test_state_folder_has_one_owner(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    with tsd.serve() as daemon, tsd.spawn() as second:
        assert second.wait() == 4
        assert second.log_text() == f"tsd: state folder {tsd.folder}: process {daemon.pid} uses it\n"
        assert daemon.send_lines(b"put a.b 1356998400 1 host=web01\n") == b"synced 1\n"
    with lock_state(tsd.folder):  # as a starting daemon does
        busy = tsd.run("uid", "a.b")
    assert (busy.status, busy.out) == (4, "")
    assert re.fullmatch(
        rf"tsd: state folder {tsd.folder}: process \d+ uses it and does not answer at {tsd.folder}/control\.sock: "
        "wait until it has started or ended\n",
        busy.err,
    )
    assert tsd.run("uid", "metrics", "a.b").out == "metrics a.b: [0, 0, 1]\n"


def test_port_in_use_is_reported(tmp_path: Path) -> None:
    with socket.create_server((HOST, 0)) as taken:
        port = taken.getsockname()[1]
        with Tsd(tmp_path / "state").spawn("--port", str(port)) as daemon:
            assert daemon.wait() == 1
            assert f"{HOST}:{port}: {os.strerror(errno.EADDRINUSE)}" in daemon.log_text()


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_signal_stops_the_daemon_cleanly(tmp_path: Path, number: signal.Signals) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.storage.flush_interval": "3600000"})
    with tsd.serve() as daemon:
        assert daemon.send_lines(b"put a.b 1356998400 1 host=web01\n") == b"synced 1\n"
        daemon.signal(number)
        assert daemon.wait() == 0
        event = daemon.events("daemon.stopping")[0]
        assert (event["points_pending"], event["timeout_s"]) == (1, 65)  # 5 for what clients have sent, 60 to write it
    assert tsd.lines("a.b") == ["a.b 1356998400 1 host=web01"]


def test_send_prints_the_daemons_replies(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    with tsd.serve() as daemon:
        port = ("--port", str(daemon.port))
        good = "put a.b 1356998400 1 host=web01"
        assert tsd.run("send", good, "put a.b 1356998401 2 host=web01", *port) == Done(0, "synced 2\n", "")
        refused = "put: invalid value: Invalid character 'x' in x\nsynced 1\n"
        assert tsd.run("send", *port, stdin=f"{good}\nput a.b 1 x host=web01".encode()) == Done(1, refused, "")
        many = "".join(f"put a.b {1356998400 + n} {n} host=web01\n" for n in range(5000)).encode()
        assert tsd.run("send", *port, stdin=many.rstrip()) == Done(0, "synced 5000\n", "")
        assert VERSION.match(tsd.run("send", "version", *port).out)
    gone = tsd.run("send", good, *port)
    assert (gone.status, gone.out) == (1, "")
    assert gone.err.startswith(f"tsd: no daemon answers at {HOST}:{port[1]}: ")


def test_send_counts_every_line_that_sync_counts(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.entity.enabled": "true", "tsd.rollups.enable": "true"})
    with tsd.serve() as daemon:
        lines = ("put a.b 1356998400 1 host=web01", "rollup 1h-sum a.b 1356998400 5 host=web01", "meta web01 rack=r1")
        assert tsd.run("send", *lines, "--port", str(daemon.port)) == Done(0, "synced 3\n", "")
        refused = tsd.run("send", *lines, "meta web01 rack", "--port", str(daemon.port))
        assert (refused.status, refused.out.splitlines()[-1]) == (1, "synced 3")


def test_unreachable_address_is_reported(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    nowhere = f"tsd: no embedded store in {tsd.folder}: give the state folder of your daemon with --data or --config\n"
    assert tsd.run("scan", "1", "sum", "a.b") == Done(1, "", nowhere)
    assert not tsd.folder.exists()
    away = {"tsd.storage.backend": "hbase", "tsd.storage.hbase.thrift": f"{HOST}:1"}
    done = tsd.but(away).run("scan", "1", "sum", "a.b")
    assert (done.status, done.out) == (3, "")
    assert done.err.startswith(f"tsd: no gateway answers: {HOST}:1: ")
    assert tsd.run("nosuch").status == tsd.run("scan", "1").status == 2


def test_health_reports_the_daemons_state(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state", {"tsd.mode": "ro"})
    done = tsd.run("health")
    assert (done.status, done.out) == (1, "")
    assert done.err.startswith(f"tsd: no daemon runs on {tmp_path}/state: ")
    with tsd.serve():
        done = tsd.run("health")
        assert (done.status, done.out) == (0, "status: ok\nwrite: tsd.mode is ro\nread: ok\nstore: ok\n")
        done = tsd.run("health", "write")
        assert (done.status, done.out) == (1, "status: not ready\nwrite: tsd.mode is ro\n")


@pytest.mark.parametrize(
    "words", [["hot", "--since"], ["compact", "--since"], ["compact", "--until"], ["rollup", "build", "--start"]]
)
def test_wrong_time_is_reported_without_a_daemon_and_a_store(words: list[str], tmp_path: Path) -> None:
    done = Tsd(tmp_path / "state").run(*words, "yesterday")
    assert (done.status, "'yesterday'" in done.err) == (2, True), done


def test_import_of_no_readable_file_makes_no_store(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    nosuch = tmp_path / "nosuch"
    done = tsd.run("import", nosuch, tmp_path)
    assert (done.status, str(nosuch) in done.err, f"{tmp_path}: " in done.err) == (1, True, True), done
    assert not tsd.folder.exists()


def test_import_stores_the_files_that_can_be_read(tmp_path: Path) -> None:
    tsd = Tsd(tmp_path / "state")
    (file := tmp_path / "lines").write_text("m 1356998400 1 host=a\n")
    os.mkfifo(pipe := tmp_path / "pipe")
    with tsd.popen("import", "--json", tmp_path / "nosuch", file, pipe) as process:
        pipe.write_text("m 1356998401 1 host=a\n")  # read once only
        done = json.loads(process.communicate()[0])
    assert (process.wait(), done["points"], len(done["unreadable"])) == (1, 2, 1)


BAD_ROW = Put(b"\0\0\1" + bytes(10), b"t:\0\0", b"\1" * 3)


@pytest.mark.parametrize(
    "words",
    [
        ["import", "--json", "-"],
        ["fsck", "--full-scan"],
        ["fsck", "--full-scan", "--fix"],
        ["uid", "fsck"],
        ["backup", "--list", "--json", "."],
        ["retention", "--json", "--set", "tsd.retention.rules=*=9d"],
        ["check-config", "--json", "--set", f"tsd.journal.path={__file__}"],
    ],
)
def test_status_of_a_failure_does_not_depend_on_a_reader(words: list[str], tmp_path: Path) -> None:
    """Regression: the status was 0 where what read the output had ended, as if all was well."""
    tsd = Tsd(tmp_path / "state")
    assert tsd.run("create-tables").status == 0
    tsd.put_directly("tsdb", BAD_ROW)
    tsd.put_directly("tsdb-uid", Put(b"m", b"id:metrics", b"\0\0\1"))
    wanted = tsd.run(*words, stdin=b"malformed\n").status
    assert wanted
    with tsd.popen(*words) as process:
        process.stdout.close()
        process.stdin.write(b"malformed\n")
        process.stdin.close()
        assert process.wait() == wanted
