"""The units: results of systemd's own tools, and the daemon inside their sandbox."""

import errno
import os
import re
import shlex
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.command import ROOT, Tsd
from tests.e2e.sandbox import SandboxedDaemon
from tsd.config.settings import Config
from tsd.daemon.settings import load_config

pytestmark = pytest.mark.slow
FOLDER = ROOT / "conf" / "systemd"
UNITS = sorted(path.name for path in FOLDER.iterdir())
SERVICES = [name for name in UNITS if name.endswith(".service")]
EXPOSURE = 15  # maximum, in tenths
T = 1356998400


@pytest.fixture
def copies(tmp_path: Path) -> Path:
    """Copies of the units that run an existing command."""
    command = tmp_path / "tsd"
    command.write_text("#!/bin/sh\n")
    command.chmod(0o755)
    for name in UNITS:
        (tmp_path / name).write_text((FOLDER / name).read_text().replace("/usr/bin/tsd", str(command)))
    return tmp_path


def options(unit: str) -> Iterator[tuple[str, str]]:
    """Yield the lines of a unit."""
    for line in (FOLDER / unit).read_text().splitlines():
        if re.match(r"\w+=", line):
            name, _, value = line.partition("=")
            yield name, value


def test_systemd_analyze_verify_passes(copies: Path, program: Callable[[str], Path]) -> None:
    command: list[str | Path] = [program("systemd-analyze"), "verify", *(copies / name for name in UNITS)]
    done = subprocess.run(command, check=False, capture_output=True, text=True)
    others = re.compile(r"(/usr)?/lib/systemd/")  # installed units are checked, too
    ours = [line for line in done.stderr.splitlines() if not others.match(line)]
    assert (done.returncode, done.stdout, ours) == (0, "", [])


@pytest.mark.parametrize("unit", SERVICES)
def test_unit_runs_only_programs_that_every_machine_has(unit: str) -> None:
    """Regression: a minimal Debian has no /bin/kill, so that `systemctl reload tsd` failed."""
    programs = {value.split()[0] for name, value in options(unit) if name.startswith("Exec")}
    assert programs <= {"/usr/bin/tsd", "/bin/sh"}


@pytest.mark.parametrize("unit", SERVICES)
def test_unit_exposure_score_is_low(copies: Path, program: Callable[[str], Path], unit: str) -> None:
    """The score of systemd-analyze security is between 0 and 10."""
    command: list[str | Path] = [program("systemd-analyze"), "security", "--offline=true", "--no-pager"]
    done = subprocess.run(
        [*command, f"--threshold={EXPOSURE}", unit], check=False, capture_output=True, text=True, cwd=copies
    )
    assert done.returncode == 0, done.stdout + done.stderr
    found = re.search(r"Overall exposure level for \S+: ([0-9.]+)", done.stdout)
    assert found
    assert float(found[1]) * 10 <= EXPOSURE


def test_all_services_have_the_same_sandbox() -> None:
    walls = [[line for line in options(unit) if line[0] in WALLS] for unit in SERVICES]
    assert len(walls) == 3
    assert all(wall == walls[0] for wall in walls)
    assert {name for name, _ in walls[0]} == WALLS


WALLS = {
    *"NoNewPrivileges CapabilityBoundingSet AmbientCapabilities LockPersonality MemoryDenyWriteExecute".split(),
    *"PrivateDevices PrivateTmp PrivateUsers ProcSubset ProtectClock ProtectControlGroups ProtectHome".split(),
    *"ProtectHostname ProtectKernelLogs ProtectKernelModules ProtectKernelTunables ProtectProc ProtectSystem".split(),
    *"RemoveIPC RestrictAddressFamilies RestrictNamespaces RestrictRealtime RestrictSUIDSGID".split(),
    *"SystemCallArchitectures SystemCallErrorNumber SystemCallFilter UMask".split(),
}


def test_daemon_works_inside_the_sandbox(tmp_path: Path, program: Callable[[str], Path]) -> None:
    """The kernel allows only the unit's system calls, and no executable memory."""
    rules = [value for name, value in options("tsd.service") if name == "SystemCallFilter"]
    with SandboxedDaemon(tmp_path / "state", program("systemd-analyze"), rules) as daemon:
        assert daemon.send_lines(b"put sys.cpu %d 42 host=web01\nsync\n" % T, until=b"synced 1\n")
        found = daemon.get(f"/api/query?start={T - 1}&end={T + 1}&m=sum:sys.cpu")
        assert b'"%d":42' % T in found
        if SandboxedDaemon.can_draw():
            assert b"PNG" in daemon.get(f"/q?start={T - 1}&end={T + 1}&m=sum:sys.cpu&png")
        assert daemon.stop() == 0


def test_timer_runs_existing_command(tmp_path: Path) -> None:
    words = dict(options("tsd-compact.service"))["ExecStart"].split(" ")
    assert words[:6] == "/usr/bin/tsd compact --config /etc/tsd/tsd.conf --data /var/lib/tsd".split(" ")
    with Tsd(tmp_path / "state").serve():
        done = Tsd(tmp_path / "state").run("compact", *words[6:])
    assert (done.status, done.err) == (0, "")


def test_unit_runs_existing_command_and_waits_for_drain(tmp_path: Path) -> None:
    unit = dict(options("tsd.service"))
    assert unit["ExecStart"] == "/usr/bin/tsd serve --config /etc/tsd/tsd.conf --data /var/lib/tsd"
    assert (unit["Type"], unit["KillSignal"], unit["StateDirectory"]) == ("notify", "SIGTERM", "tsd")
    assert int(unit["TimeoutStopSec"]) * 1000 > Config().drain_ms
    assert unit["Restart"] == "always"
    assert load_config(ROOT / "conf" / "tsd.conf").config == Config()
    with Tsd(tmp_path / "state").spawn("--config", str(ROOT / "conf" / "tsd.conf"), "--port", "0") as daemon:
        assert daemon.send_lines(b"") == b"synced 0\n"


def test_template_instances_have_own_state_folders() -> None:
    unit = dict(options("tsd@.service"))
    assert unit["StateDirectory"] == "tsd-%i"
    assert unit["ExecStart"].startswith("/usr/bin/tsd serve --config /etc/tsd/tsd.conf --data /var/lib/tsd-%i ")
    assert unit["ExecStart"].endswith(" --set tsd.network.reuse_port=true")


@pytest.mark.parametrize("unit", ["tsd.service", "tsd@.service"])
def test_permanent_failure_is_not_restarted(tmp_path: Path, unit: str) -> None:
    """Unusable configuration, or a state folder of another process or of a newer version."""
    final = set(map(int, dict(options(unit))["RestartPreventExitStatus"].split(" ")))
    tsd = Tsd(tmp_path / "state")
    statuses = {tsd.run("serve", "--port", "no").status}
    with tsd.serve():
        statuses.add(tsd.run("serve", "--port", "0").status)
    (tmp_path / "state" / "format").write_text("99\n")
    statuses.add(tsd.run("serve", "--port", "0").status)
    assert statuses == final


@pytest.mark.parametrize("status", ["0", "1", "2", "3", "4", "KILL"])
def test_waiting_client_does_not_restart_failed_service(tmp_path: Path, status: str) -> None:
    """With tsd.socket, systemd restarts a permanently failed service at once while a client waits."""
    unit = dict(options("tsd.service"))
    command = unit["ExecStopPost"].replace("$$", "$")
    assert unit["StartLimitIntervalSec"] == "0"  # otherwise systemd closes the port for good
    (tmp_path / "sleep").write_text(f"#!/bin/sh\necho $1 >{tmp_path}/slept\n")
    (tmp_path / "sleep").chmod(0o755)
    environment = {"PATH": f"{tmp_path}:{os.environ['PATH']}", "EXIT_STATUS": status}
    subprocess.run(shlex.split(command), check=True, env=environment)
    slept = (tmp_path / "slept").read_text().strip() if (tmp_path / "slept").exists() else None
    assert slept == ("10" if status in unit["RestartPreventExitStatus"].split() else None)
    assert int(unit["TimeoutStopSec"]) > 10


def test_port_in_use_is_retried(tmp_path: Path) -> None:
    final = dict(options("tsd.service"))["RestartPreventExitStatus"].split(" ")
    with Tsd(tmp_path / "one").serve() as daemon:
        done = Tsd(tmp_path / "two").run("serve", "--port", str(daemon.port))
    assert f"127.0.0.1:{daemon.port}: {os.strerror(errno.EADDRINUSE)}" in done.err
    assert str(done.status) not in final
