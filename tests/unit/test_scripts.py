"""The scripts' own promises: what they start ends, what they lack they name, and imports go down only."""

import os
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest

from scripts.imports import problems
from scripts.peers.ports import HOST, http_answers, pick, thrift_answers
from scripts.peers.process import PeerError, await_ready, died, end, kill_all, log_of, pid_of, send, spawn, watch
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


def test_one_that_will_not_hear_is_killed(home):
    spawn(home, "deaf", STUBBORN)
    await_ready(home, ["deaf"], lambda: b"deaf" in log_of(home, "deaf").read_bytes(), within_s=60)
    assert not end(home, "deaf", orderly_s=0.1)
    assert pid_of(home, "deaf") is None


def test_a_stalled_one_ends_too(home):
    spawn(home, "sleeper", SLEEP)
    send(home, "sleeper", signal.SIGSTOP)
    assert end(home, "sleeper", orderly_s=60)


def test_a_process_id_that_was_given_to_somebody_else_is_not_ours(home):
    spawn(home, "sleeper", SLEEP)
    file = home / "run" / "sleeper.pid"
    ours = file.read_text()
    file.write_text(f"{os.getpid()} {ours.split()[1]}\n")
    assert pid_of(home, "sleeper") is None
    with pytest.raises(PeerError, match="sleeper does not run"):
        send(home, "sleeper", signal.SIGTERM)
    file.write_text(ours)


def test_a_start_that_dies_shows_what_it_said_last(home):
    spawn(home, "broken", ["sh", "-c", "echo no such port >&2; exit 1"])
    with pytest.raises(PeerError, match=r"broken ended while starting\n.*broken\.log:\n  no such port"):
        await_ready(home, ["broken"], lambda: False, within_s=60)
    spawn(home, "slow", SLEEP)
    with pytest.raises(PeerError, match="no answer within 0 s"):
        await_ready(home, ["slow"], lambda: False, within_s=0)


def test_the_last_runs_log_is_kept(home):
    for word in ("first", "second"):
        died([spawn(home, "speaker", ["echo", word])], within_s=60)
    assert log_of(home, "speaker").read_text() == "second\n"
    assert log_of(home, "speaker").with_suffix(".log.1").read_text() == "first\n"


def test_what_was_started_for_a_process_dies_with_it(home):
    with subprocess.Popen(SLEEP) as owner:
        watch(home, owner.pid)
        watcher, ward = pid_of(home, "watch"), spawn(home, "ward", SLEEP)
        assert watcher
        owner.kill()
    assert died([ward], within_s=60)
    assert died([watcher], within_s=60)
    assert pid_of(home, "ward") is None


def test_a_taken_port_is_said_to_be():
    with socket.socket() as taken:
        taken.bind((HOST, 0))
        taken.listen()
        port = taken.getsockname()[1]
        with pytest.raises(PeerError, match=f"port {port} of 127.0.0.1 is taken"):
            pick(port)
    free = pick(0)
    assert not thrift_answers(free, 1)
    assert not http_answers(free, "/", 1)


def bare_path(folder: Path, *programs: str) -> str:
    """A PATH with nothing on it but `programs`."""
    folder.mkdir()
    for program in programs:
        (folder / program).symlink_to(shutil.which(program) or program)
    return str(folder)


def test_without_python_a_script_says_which_and_how(tmp_path):
    path = bare_path(tmp_path / "bin", "bash", "dirname")
    done = subprocess.run([ROOT / "scripts" / "hbase", "status", tmp_path], env={"PATH": path}, capture_output=True)
    assert done.returncode == 1
    assert b"needs Python 3.11 or newer" in done.stderr
    assert b"apt-get install python3" in done.stderr


def without_java(tmp_path: Path, **more: str) -> dict[str, str]:
    """An environment with no Maven and no jars: the next test's laptop. It may have a Java in /usr/lib/jvm."""
    path = bare_path(tmp_path / "bin", "bash", "dirname")
    return {"PATH": path, "PYTHON": sys.executable, "TSD_PEERS_CACHE": str(tmp_path / "cache"), **more}


def test_without_java_or_maven_a_start_says_how_to_get_them(tmp_path):
    command = [ROOT / "scripts" / "hbase", "start", tmp_path / "hbase"]
    done = subprocess.run(command, env=without_java(tmp_path), capture_output=True, text=True)
    assert done.returncode == 1
    assert "apt-get install openjdk-17-jdk-headless maven" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    ("more", "outcome"), [({}, "1 skipped"), ({"CI": "true"}, "1 error"), ({"CI": "false"}, "1 skipped")]
)
def test_what_is_missing_skips_on_a_laptop_and_fails_in_a_full_run(tmp_path, more, outcome):
    test = "tests/conformance/test_peers.py::test_new_tables_are_nobody_elses"
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-W", "ignore", test]
    done = subprocess.run(command, env=without_java(tmp_path, **more), cwd=ROOT, capture_output=True, text=True)
    assert outcome in done.stdout.splitlines()[-1]
    assert "apt-get install openjdk-17-jdk-headless maven" in done.stdout


def test_the_fast_run_leaves_out_what_uses_a_peer_by_its_fixtures():
    command = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "--collect-only", "-q"]
    chosen = ["-m", "not (hbase or opentsdb)", "tests/conformance/test_peers.py"]
    done = subprocess.run([*command, *chosen], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == pytest.ExitCode.NO_TESTS_COLLECTED
    assert "no tests collected (" in done.stdout


@pytest.mark.parametrize(
    ("words", "workers"),
    [
        (["tests/unit/test_scripts.py"], 0),
        (["tests/unit/test_scripts.py::test_a_circle_is_found", "tests/unit/test_scripts.py::test_a_taken_port"], 0),
        (["tests/unit/test_scripts.py", "tests/unit/test_log.py"], 1),
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
        tmp_path, uids="import os\nfrom tsd.daemon import serve", daemon="", query="", ingest="import tsd.query"
    )
    assert problems(tmp_path) == [
        "tsd/ingest.py:1: tsd.ingest imports tsd.query: imports go down only",
        "tsd/uids.py:2: tsd.uids imports tsd.daemon: imports go down only",
    ]


def test_imports_in_functions_impure_codecs_and_strangers_are_named(tmp_path):
    codec = {"codec/__init__": "", "codec/cell": "import time\nasync def f():\n    import json"}
    write_package(tmp_path, managers="from tsd import codec", **codec)
    assert problems(tmp_path) == [
        "tsd/codec/cell.py:1: tsd.codec.cell is pure: it cannot import time",
        "tsd/codec/cell.py:3: json is imported within a function",
        "tsd/managers.py:1: tsd.managers has no place in the order of parts (scripts/imports.py)",
    ]


def test_a_circle_is_found(tmp_path):
    write_package(tmp_path, **{"store/__init__": "from tsd.store import hbase", "store/hbase": "import tsd.store"})
    assert problems(tmp_path) == ["imports in a circle: tsd.store < tsd.store.hbase < tsd.store"]


@pytest.mark.parametrize(
    ("words", "port"),
    [
        ([], 4242),
        (["--port", "4299"], 4299),
        (["--port=4299"], 4299),
        (["--set", "tsd.network.port=4299"], 4299),
        (["--set=tsd.network.port=4299"], 4299),
        (["--set", "tsd.network.bind=::1"], 4242),
    ],
)
def test_run_hands_all_its_options_to_the_daemon_and_nothing_that_overrides_them(
    tmp_path: Path, words: list[str], port: int
) -> None:
    shutil.copytree(ROOT / "scripts", tmp_path / "scripts")
    (tmp_path / "scripts" / "setup").write_text("#!/bin/sh\n")
    daemon = tmp_path / ".venv" / "bin" / "tsd"
    daemon.parent.mkdir(parents=True)
    daemon.write_text('#!/bin/sh\necho "$@"\n')
    daemon.chmod(0o755)
    hint, got = subprocess.run(
        [tmp_path / "scripts" / "run", *words], check=True, stdout=subprocess.PIPE, text=True, cwd=tmp_path
    ).stdout.splitlines()
    assert got.split() == ["--data", str(tmp_path / "var"), "serve", *words]
    assert f" {port} " in hint
