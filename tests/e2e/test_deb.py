"""The Debian package: built from this checkout, installed by dpkg into a folder, and run there."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

import tsd
from tests.e2e.command import HOST, PATIENCE_S, ROOT

pytestmark = pytest.mark.slow
T = 1356998400
# Install into a folder with a copy of this machine's list of packages: dependencies must be installed here, and nothing
# outside the folder is changed.
INSTALL = """
set -e
export PATH="$PATH:/usr/sbin:/sbin"
mkdir -p "$1/var/lib/dpkg/updates" "$1/var/lib/dpkg/info" "$1/var/log" "$1/etc"
cp /var/lib/dpkg/status "$1/var/lib/dpkg/"
as_here="--root=$1 --force-script-chrootless --force-not-root --log=$1/var/log/dpkg.log"
dpkg $as_here --install "$2" >&2
"""
NAMELESS = f"""
if grep -e /tmp/ -e {ROOT} "$1"/usr/bin/* "$1/usr/lib/tsd/pyvenv.cfg" >&2; then exit 1; fi
"""
USE = f"""
cd /
grep ^tsd: "$1/etc/passwd"
head -n 1 "$1/usr/bin/tsd"
python="$1/usr/lib/tsd/bin/python -I"
$python -c 'import tsd; print(tsd.__file__); print(tsd.revision())'
tsd="$python $1/usr/bin/tsd"
$tsd check-config --config "$1/etc/tsd/tsd.conf" --data "$1/state"
$tsd serve --config "$1/etc/tsd/tsd.conf" --data "$1/state" --port 0 2>"$1/log" &
daemon=$!
until $tsd --data "$1/state" health ready >&2; do kill -0 $daemon; done
port=$(grep -o 'port=[0-9]*' "$1/log" | cut -d= -f2)
$tsd send --host {HOST} --port "$port" 'put sys.cpu {T} 42 host=web01'
kill $daemon
wait $daemon
$tsd --data "$1/state" scan --import 1 sum sys.cpu
dpkg $as_here --remove tsd >&2
test ! -e "$1/usr/lib/tsd"
test -e "$1/etc/tsd/tsd.conf"
test -e "$1/state/store"
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """Build the package with the fastest options."""
    hurry = {"DEB_COMPRESSION": "none", "DEB_EXTRAS": "", "DEB_BYTECODE": "no", "DEB_LOOPS": "kept"}
    folder = tmp_path_factory.mktemp("deb")
    command = [ROOT / "scripts" / "deb", folder]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | hurry)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    yield path
    path.unlink()


def test_package_has_all_files(package: Path, program: Callable[[str], Path]) -> None:
    command: list[str | Path] = [program("dpkg-deb"), "--contents", package]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {line.split()[5].removeprefix(".") for line in listed.splitlines()}
    units = {f"/usr/lib/systemd/system/{path.name}" for path in (ROOT / "conf" / "systemd").iterdir()}
    assert units | {"/usr/bin/tsd", "/etc/tsd/tsd.conf", "/usr/lib/sysusers.d/tsd.conf"} <= found
    completions = {
        "bash-completion/completions/tsd",
        "zsh/vendor-completions/_tsd",
        "fish/vendor_completions.d/tsd.fish",
    }
    assert {f"/usr/share/{name}" for name in (*completions, "man/man1/tsd-query.1.gz")} <= found
    assert not [line for line in listed.splitlines() if not re.match(r"\S+ root/root ", line)]
    assert not [path for path in found if path.startswith("/var")]
    assert {"/usr/share/doc/tsd/copyright", "/usr/share/doc/tsd/changelog.gz"} <= found
    for name in ("tsd.conf", "prometheus/tsd.rules.yml", "grafana/tsd-dashboard.json"):
        assert f"../conf/{name}" in (ROOT / "docs" / "operations.md").read_text()
        assert f"/usr/share/doc/tsd/examples/{name}" in found
    assert re.search(r" \./usr/share/doc/tsd/conf -> examples$", listed, re.MULTILINE)
    info = subprocess.run([program("dpkg-deb"), "--info", package], check=True, capture_output=True, text=True).stdout
    assert re.search(r"^ Depends: python3 \(>= 3\.\d+\), python3 \(<< 3\.\d+\), ", info, re.MULTILINE)


def test_install_works_and_removal_keeps_data(package: Path, tmp_path: Path, program: Callable[[str], Path]) -> None:
    program("systemd-sysusers")
    root = tmp_path / "root"
    root.mkdir()
    script = INSTALL + NAMELESS + USE
    command: list[str | Path] = ["/bin/sh", "-c", script, "sh", root, package]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=5 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    user, first, module, commit, *output = done.stdout.splitlines()
    assert user.startswith("tsd:x:")
    assert first == "#!/usr/lib/tsd/bin/python -I"
    assert Path(module).is_relative_to(root / "usr" / "lib" / "tsd")
    assert commit == tsd.revision()
    assert f"sys.cpu {T} 42 host=web01" in output
    assert not Path("/usr/lib/tsd").exists()


class Machine:
    """A folder that dpkg treats as a machine with systemd. Calls of `systemctl` are recorded and not executed."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self._folder = folder
        self._calls = folder / "calls"
        for place in ("var/lib/dpkg/updates", "var/lib/dpkg/info", "var/log", "etc", "run/systemd/system"):
            (self.root / place).mkdir(parents=True)
        (self.root / "var/lib/dpkg/status").touch()
        (folder / "bin").mkdir()
        systemctl = folder / "bin" / "systemctl"
        systemctl.write_text(f'#!/bin/sh\necho "$*" >>{self._calls}\nexit 1\n')  # dpkg ignores its exit status
        systemctl.chmod(0o755)

    def package(self, version: str) -> Path:
        """Build a small package with the real maintainer scripts."""
        tree = self._folder / version
        for file in ("etc/tsd/tsd.conf", "usr/lib/tsd/lib/tsd.py"):
            (tree / file).parent.mkdir(parents=True)
            (tree / file).write_text("# as it comes\n")
        ours = ROOT / "packaging" / "deb"
        (tree / "usr/lib/sysusers.d").mkdir()
        shutil.copy(ours / "tsd.conf", tree / "usr/lib/sysusers.d")
        (tree / "DEBIAN").mkdir()
        for script in ("postinst", "prerm", "postrm"):
            shutil.copy(ours / script, tree / "DEBIAN")
            (tree / "DEBIAN" / script).chmod(0o755)
        (tree / "DEBIAN" / "conffiles").write_text("/etc/tsd/tsd.conf\n")
        control = (ours / "control").read_text().replace("@VERSION@", version).replace("@ARCHITECTURE@", "all")
        control = re.sub("^(Depends|Suggests|Installed-Size):.*\n", "", control, flags=re.MULTILINE)
        (tree / "DEBIAN" / "control").write_text(control)
        built = self._folder / f"{version}.deb"
        self._run("dpkg-deb", "--root-owner-group", "-Znone", "--build", tree, built)
        return built

    def dpkg(self, *words: str | Path) -> tuple[str, list[str]]:
        """Run dpkg. Return its output and the calls of systemctl."""
        self._calls.write_text("")
        as_here = (f"--root={self.root}", "--force-script-chrootless", "--force-not-root", "--force-bad-path")
        output = self._run("dpkg", *as_here, f"--log={self.root}/var/log/dpkg.log", *words)
        root = f"--root={self.root} "
        return output, [line.removeprefix(root) for line in self._calls.read_text().splitlines()]

    def _run(self, *words: str | Path) -> str:
        path = f"{self._folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=os.environ | {"PATH": path})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def test_upgrade_restarts_and_removal_stops_the_service(tmp_path: Path, program: Callable[[str], Path]) -> None:
    program("dpkg-deb")
    program("systemd-sysusers")
    machine = Machine(tmp_path)
    output, calls = machine.dpkg("--install", machine.package("1"))
    assert calls == ["daemon-reload"]
    assert "then: systemctl enable --now tsd" in output

    # Files at this time: a changed configuration, data, Python's caches, and one of several daemons.
    config, data = machine.root / "etc/tsd/tsd.conf", machine.root / "var/lib/tsd/journal/1.journal"
    cache = machine.root / "usr/lib/tsd/lib/__pycache__/tsd.pyc"
    wants = machine.root / "etc/systemd/system/multi-user.target.wants"
    for path in (data, cache, config.with_name("accounts")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("ours")
    config.write_text("tsd.mode = ro\n")
    wants.mkdir(parents=True)
    (wants / "tsd@1.service").symlink_to("/usr/lib/systemd/system/tsd@.service")

    _, calls = machine.dpkg("--install", machine.package("2"))
    assert calls == [
        "daemon-reload",
        "daemon-reload",
        "try-restart tsd.service tsd@*.service",
    ]  # first the old package's, then the new one's
    assert config.read_text() == "tsd.mode = ro\n"
    assert not cache.exists()

    cache.parent.mkdir()
    cache.write_text("ours")
    _, calls = machine.dpkg("--remove", "tsd")
    assert calls == [
        "disable --now tsd.socket tsd.service tsd-compact.timer tsd@1.service",
        "stop tsd@*.service tsd-compact.service",
        "daemon-reload",
    ]
    assert not (machine.root / "usr/lib/tsd").exists()
    assert config.read_text() == "tsd.mode = ro\n"

    output, calls = machine.dpkg("--purge", "tsd")
    assert calls == ["daemon-reload"]
    assert "the data in /var/lib/tsd stays" in output
    assert not config.exists()
    assert {data.read_text(), config.with_name("accounts").read_text()} == {"ours"}


def test_install_in_image_starts_no_service(tmp_path: Path, program: Callable[[str], Path]) -> None:
    program("dpkg-deb")
    program("systemd-sysusers")
    machine = Machine(tmp_path)
    (machine.root / "run/systemd/system").rmdir()
    for words in (("--install", machine.package("1")), ("--install", machine.package("2")), ("--purge", "tsd")):
        assert machine.dpkg(*words)[1] == []
