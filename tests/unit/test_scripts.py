"""The scripts' own promises: what they start ends, what they lack they name, and imports go down only."""

import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.imports import names, problems
from scripts.peers.ports import HOST, http_answers, pick, thrift_answers
from scripts.peers.process import PeerError, await_ready, died, end, kill_all, log_of, pid_of, send, spawn, watch
from scripts.words import coined
from tests.conftest import pytest_xdist_auto_num_workers

ROOT = Path(__file__).parents[2]
SLEEP = ["sleep", "600"]
STUBBORN = ["sh", "-c", "trap '' TERM; echo deaf; while :; do sleep 600; done"]


@pytest.fixture
def home(tmp_path):
    """A folder of processes; what still runs in it after the test is killed."""
    yield tmp_path
    kill_all(tmp_path)


def write_package(root: Path, **files: str) -> None:
    for name, text in {"__init__": "", **files}.items():
        file = root / "tsd" / f"{name}.py"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)


def test_a_process_is_known_by_its_name_until_it_ends(home):
    pid = spawn(home, "sleeper", SLEEP)
    assert pid_of(home, "sleeper") == pid
    assert not died([pid], within_s=0)
    assert end(home, "sleeper", orderly_s=60)
    assert pid_of(home, "sleeper") is None
    assert end(home, "sleeper")


def test_process_that_ignores_sigterm_is_killed(home):
    spawn(home, "deaf", STUBBORN)
    await_ready(home, ["deaf"], lambda: b"deaf" in log_of(home, "deaf").read_bytes(), within_s=60)
    assert not end(home, "deaf", orderly_s=0.1)
    assert pid_of(home, "deaf") is None


def test_stopped_process_is_ended(home):
    spawn(home, "sleeper", SLEEP)
    send(home, "sleeper", signal.SIGSTOP)
    assert end(home, "sleeper", orderly_s=60)


def test_reused_process_id_is_not_recognized(home):
    spawn(home, "sleeper", SLEEP)
    file = home / "run" / "sleeper.pid"
    ours = file.read_text()
    file.write_text(f"{os.getpid()} {ours.split()[1]}\n")
    assert pid_of(home, "sleeper") is None
    with pytest.raises(PeerError, match="sleeper"):
        send(home, "sleeper", signal.SIGTERM)
    file.write_text(ours)


def test_failed_start_shows_the_end_of_its_log(home):
    spawn(home, "broken", ["sh", "-c", "echo no such port >&2; exit 1"])
    with pytest.raises(PeerError, match=r"broken\b[\s\S]*\bbroken\.log\b[\s\S]*\bno such port\b"):
        await_ready(home, ["broken"], lambda: False, within_s=60)
    spawn(home, "slow", SLEEP)
    with pytest.raises(PeerError, match=r"\b0 s\b"):
        await_ready(home, ["slow"], lambda: False, within_s=0)


def test_log_of_the_last_run_is_kept(home):
    for word in ("first", "second"):
        died([spawn(home, "speaker", ["echo", word])], within_s=60)
    assert log_of(home, "speaker").read_text() == "second\n"
    assert log_of(home, "speaker").with_suffix(".log.1").read_text() == "first\n"


def test_child_processes_end_with_their_process(home):
    with subprocess.Popen(SLEEP) as owner:
        watch(home, owner.pid)
        watcher, ward = pid_of(home, "watch"), spawn(home, "ward", SLEEP)
        assert watcher
        owner.kill()
    assert died([ward], within_s=60)
    assert died([watcher], within_s=60)
    assert pid_of(home, "ward") is None


def test_port_in_use_is_reported():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PeerError, match=rf"\b{port}\b"):
            pick(port)
    free = pick(0)
    assert not thrift_answers(free)
    assert not http_answers(free, "/")


def bare_path(folder: Path, *programs: str) -> str:
    """A PATH with nothing on it but `programs`."""
    folder.mkdir()
    for program in programs:
        (folder / program).symlink_to(shutil.which(program) or program)
    return str(folder)


def test_missing_python_is_reported_with_remedy(tmp_path):
    path = bare_path(tmp_path / "bin", "bash", "dirname")
    done = subprocess.run([ROOT / "scripts" / "hbase", "status", tmp_path], env={"PATH": path}, capture_output=True)
    assert done.returncode == 1
    assert b"needs Python 3.11 or newer" in done.stderr
    assert b"apt-get install python3" in done.stderr


def test_environment_behind_a_link_is_not_emptied(tmp_path):
    """It may be that of another checkout."""
    checkout, other = tmp_path / "checkout", tmp_path / "other"
    for folder in (checkout / "scripts", other):
        folder.mkdir(parents=True)
    for name in ("scripts/setup", "scripts/python.sh", "setup.cfg", "pyproject.toml"):
        shutil.copy(ROOT / name, checkout / name)
    (checkout / ".venv").symlink_to(other)
    (other / ".tsd-setup").write_text(f"root {other}\n")
    done = subprocess.run(
        [checkout / "scripts" / "setup"], env=os.environ | {"PYTHON": sys.executable}, capture_output=True, text=True
    )
    assert (done.returncode, (other / ".tsd-setup").exists()) == (1, True)
    assert ".venv is a link" in done.stderr


def without_java(tmp_path: Path, **more: str) -> dict[str, str]:
    """An environment with no Maven and no jars: the next test's laptop. It may have a Java in /usr/lib/jvm."""
    path = bare_path(tmp_path / "bin", "bash", "dirname")
    return {"PATH": path, "PYTHON": sys.executable, "TSD_PEERS_CACHE": str(tmp_path / "cache"), **more}


def test_missing_java_or_maven_is_reported_with_remedy(tmp_path):
    command = [ROOT / "scripts" / "hbase", "start", tmp_path / "hbase"]
    done = subprocess.run(command, env=without_java(tmp_path), capture_output=True, text=True)
    assert done.returncode == 1
    assert "apt-get install openjdk-17-jdk-headless maven" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "outcome"), [({}, "1 skipped"), ({"CI": "true"}, "1 error"), ({"CI": "false"}, "1 skipped")]
)
def test_missing_peer_skips_locally_and_fails_a_full_run(tmp_path, more, outcome):
    test = "tests/conformance/test_peers.py::test_new_tables_are_unused"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", test]
    done = subprocess.run(command, env=without_java(tmp_path, **more), cwd=ROOT, capture_output=True, text=True)
    assert outcome in done.stdout.splitlines()[-1]
    assert "apt-get install openjdk-17-jdk-headless maven" in done.stdout


@pytest.mark.slow
def test_fast_run_excludes_tests_with_peer_fixtures():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q"]
    chosen = ["-m", "not (hbase or opentsdb)", "tests/conformance/test_peers.py"]
    done = subprocess.run([*command, *chosen], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "no tests collected (" in done.stdout


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (["tests/unit/test_scripts.py"], 0),
        (
            ["tests/unit/test_scripts.py::test_import_cycle_is_found", "tests/unit/test_scripts.py::test_a_taken_port"],
            0,
        ),
        (["tests/unit/test_scripts.py", "tests/unit/config/test_log.py"], 1),
        (["tests/unit"], 1),
    ],
)
def test_a_single_file_needs_no_workers(monkeypatch, words, workers):
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0})
    monkeypatch.delenv("PYTEST_XDIST_AUTO_NUM_WORKERS", raising=False)
    config = SimpleNamespace(args=words, invocation_params=SimpleNamespace(dir=ROOT))
    assert pytest_xdist_auto_num_workers(config) == workers


def test_imports_that_go_down_pass(tmp_path):
    write_package(
        tmp_path,
        errors="",
        **{"store/__init__": "from tsd.errors import StoreError", "store/memory": "from tsd.store import Cell"},
        daemon="from tsd import errors, store\nimport trio",
    )
    assert problems(tmp_path) == []


def test_imports_that_go_up_or_sideways_are_named(tmp_path):
    write_package(
        tmp_path, auth="import os\nfrom tsd.daemon import serve", daemon="", query="", ingest="import tsd.query"
    )
    assert problems(tmp_path) == [
        "tsd/auth.py:2: tsd.auth imports tsd.daemon: imports go down only",
        "tsd/ingest.py:1: tsd.ingest imports tsd.query: imports go down only",
    ]


def test_import_of_another_table_layout_is_named(tmp_path):
    texts = {
        "codec/heroic/keys": "",
        "tables/opentsdb/retention": "",
        "tables/heroic/writer": "import tsd.codec.heroic.keys\nimport tsd.tables.opentsdb.retention\n",
    }
    write_package(tmp_path, **texts)
    assert problems(tmp_path) == [
        "tsd/tables/heroic/writer.py:2: tsd.tables.heroic.writer imports tsd.tables.opentsdb.retention: "
        "table layouts do not import each other"
    ]


def test_only_the_main_module_imports_the_top_layer(tmp_path):
    write_package(tmp_path, cli="", __main__="from tsd.cli import main", errors="import tsd.cli")
    assert problems(tmp_path) == ["tsd/errors.py:1: tsd.errors imports tsd.cli: imports go down only"]


def test_lazy_impure_and_unlayered_imports_are_reported(tmp_path):
    codec = {"codec/__init__": "", "codec/cell": "import time\nasync def f():\n    import json"}
    write_package(tmp_path, managers="from tsd import codec", **codec)
    assert problems(tmp_path) == [
        "tsd/codec/cell.py:1: tsd.codec.cell is pure: it cannot import time",
        "tsd/codec/cell.py:3: json is imported within a function",
        "tsd/managers.py:1: tsd.managers has no layer (scripts/imports.py)",
    ]


def test_an_import_of_a_compiled_module_counts(tmp_path):
    write_package(tmp_path, **{"store/__init__": "from tsd.query import _loops", "query/__init__": ""})
    (tmp_path / "tsd" / "query" / "_loops.pyx").write_text("")
    assert problems(tmp_path) == ["tsd/store/__init__.py:1: tsd.store imports tsd.query._loops: imports go down only"]


@pytest.mark.parametrize("part", ["ingest", "query", "api", "server"])
def test_points_and_queries_name_no_table_layout(tmp_path, part):
    root = tmp_path / "tsd" / part
    root.mkdir(parents=True)
    (root / "_loops.pyx").write_text("from tsd.codec.opentsdb cimport _x\n")
    (root / "mod.py").write_text("# see tsd.tables.opentsdb.scan\n")
    found = [line.split(": ")[0] for line in names(tmp_path)]
    assert found == [f"tsd/{part}/_loops.pyx:1", f"tsd/{part}/mod.py:1"]


def test_only_configuration_and_wiring_name_an_engine(tmp_path):
    text = "rest = config.backend is Backend.HBASE\n"
    for path in ("config/loader.py", "daemon/wiring.py", "daemon/daemon.py", "cli/copy.py"):
        file = tmp_path / "tsd" / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    found = [line.split(": ")[0] for line in names(tmp_path)]
    assert found == ["tsd/cli/copy.py:1", "tsd/daemon/daemon.py:1"]


def test_import_cycle_is_found(tmp_path):
    write_package(tmp_path, **{"store/__init__": "from tsd.store import hbase", "store/hbase": "import tsd.store"})
    assert problems(tmp_path) == ["imports in a circle: tsd.store < tsd.store.hbase < tsd.store"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("class DoorkeeperLimits: pass", ["Doorkeeper"]),
        ("self._let_strangers_in = 1  # and Nobody else", ["strangers", "Nobody"]),
        ("def test_untold(): ...", ["untold"]),
        ("an outdoor sensor, besides the growth of badgers", []),
    ],
)
def test_coined_words_are_found_in_names_and_prose(line: str, words: list[str]) -> None:
    assert [word for word, _ in coined(line)] == words


def run_script(folder: Path, words: list[str]) -> list[str]:
    """Return what `scripts/run` prints with a daemon that prints its arguments."""
    shutil.copytree(ROOT / "scripts", folder / "scripts")
    (folder / "scripts" / "setup").write_text("#!/bin/sh\n")
    daemon = folder / ".venv" / "bin" / "tsd"
    daemon.parent.mkdir(parents=True)
    daemon.write_text('#!/bin/sh\necho "$@"\n')
    daemon.chmod(0o755)
    daemon.with_name("python").symlink_to(sys.executable)
    command = [folder / "scripts" / "run", *words]
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True, cwd=folder).stdout.splitlines()


@pytest.mark.parametrize(
    ("words", "port", "shown"),
    [
        ([], 4242, "var"),
        (["--port", "4299"], 4299, "var"),
        (["--port=4299"], 4299, "var"),
        (["--set", "tsd.network.port=4299"], 4299, "var"),
        (["--set=tsd.network.port=4299"], 4299, "var"),
        (["--set", "tsd.network.bind=::1"], 4242, "var"),
        (["--data", "/srv/tsd"], 4242, "/srv/tsd"),
        (["--data=/srv/tsd", "--port", "4299"], 4299, "/srv/tsd"),
    ],
)
def test_run_passes_exactly_its_options_to_the_daemon(tmp_path: Path, words: list[str], port: int, shown: str) -> None:
    hint, got = run_script(tmp_path, words)
    assert got.split() == ["--data", str(tmp_path / "var"), "serve", *words]
    assert f" {port} " in hint
    assert f" .venv/bin/tsd --data {shown} query " in hint
    assert f" query --url http://127.0.0.1:{port} " in hint  # the daemon, whatever its store and state folder


@pytest.mark.parametrize("words", [["--port", "0"], ["--set", "tsd.network.port=0"]])
def test_run_names_the_port_that_the_daemon_gets(tmp_path: Path, words: list[str]) -> None:
    """Regression: it named port 0."""
    hint, got = run_script(tmp_path, words)
    *given, option, port = got.split()
    assert (given[3:], option) == (words, "--port")  # the last one counts
    assert int(port)
    assert f" query --url http://127.0.0.1:{port} " in hint


@pytest.mark.parametrize("word", ["--help", "tests"])
def test_setup_refuses_an_unknown_extra_before_it_changes_anything(tmp_path: Path, word: str) -> None:
    """Regression: it made .venv and kept the word among its extras."""
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    shutil.copy(ROOT / "setup.cfg", tmp_path)
    done = subprocess.run([tmp_path / "scripts" / "setup", "check", word], capture_output=True, text=True, cwd=tmp_path)
    assert done.returncode == 1
    assert word in done.stderr
    assert "test" in done.stderr.split("wanted:")[1]
    assert not (tmp_path / ".venv").exists()


def test_release_gives_pypi_only_python_packages(tmp_path):
    """Regression: the archive of the container image was among them, and PyPI refuses it."""
    workflow = (ROOT / ".github" / "workflows" / "release.yml").read_text()
    command = re.search("run: (mkdir pypi .*)", workflow)[1]
    packages = {"tsd_daemon-1-cp311-cp311-manylinux_2_28_x86_64.whl", "tsd_daemon-1.tar.gz"}
    (tmp_path / "dist").mkdir()
    for name in (*packages, "tsd-1-image.tar.gz", "tsd_1_amd64.deb", "SHA256SUMS"):
        (tmp_path / "dist" / name).touch()
    subprocess.run(["bash", "-ec", command], cwd=tmp_path, check=True)
    assert {path.name for path in (tmp_path / "pypi").iterdir()} == packages


def test_debian_packages_are_ordered_as_their_versions(program):
    """Regression: a checkout before a release candidate was newer than it."""
    versions = ["0.2.0rc1.dev7+ga1b2c3d", "0.2.0rc1", "0.2.0rc2", "0.2.0", "0.2.1.dev1+gb1e9dev", "0.2.1", "0.10.0a1"]
    script = f'root={ROOT}; . "$root/scripts/python.sh"; for one; do debian_version "$one"; done'
    done = subprocess.run(["bash", "-ec", script, "bash", *versions], check=True, capture_output=True, text=True)
    ordered = done.stdout.split()
    assert len(ordered) == len(versions)
    for older, newer in pairwise(ordered):
        subprocess.run([program("dpkg"), "--compare-versions", older, "lt", newer], check=True)
