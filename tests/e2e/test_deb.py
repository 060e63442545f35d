"""The Debian package: built of this checkout, installed by dpkg in a folder, and run there."""

import os
import re
import shutil
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.command import HOST, PATIENCE_S, ROOT

pytestmark = pytest.mark.slow
T = 1356998400
# Into a folder, with this machine's own list of packages in it: what it depends on must be there; nothing outside
# is touched.
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
$python -c 'import tsd; print(tsd.__file__)'
tsd="$python $1/usr/bin/tsd"
$tsd check-config --config "$1/etc/tsd/tsd.conf"
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
    """The package, built in a hurry."""
    hurry = {"DEB_COMPRESSION": "none", "DEB_EXTRAS": "", "DEB_BYTECODE": "no", "DEB_LOOPS": "kept"}
    folder = tmp_path_factory.mktemp("deb")
    command = [ROOT / "scripts" / "deb", folder]
    done = subprocess.run(command, check=False, capture_output=True, text=True, env=os.environ | hurry)
    assert done.returncode == 0, done.stderr
    path = Path(done.stdout.strip())
    yield path
    path.unlink()


def test_it_has_all_that_is_to_be_there(package: Path, program: Callable[[str], Path]) -> None:
    command: list[str | Path] = [program("dpkg-deb"), "--contents", package]
    listed = subprocess.run(command, check=True, capture_output=True, text=True).stdout
    found = {line.split()[5].removeprefix(".") for line in listed.splitlines()}
    units = {f"/usr/lib/systemd/system/{path.name}" for path in (ROOT / "conf" / "systemd").iterdir()}
    assert units | {"/usr/bin/tsd", "/etc/tsd/tsd.conf", "/usr/lib/sysusers.d/tsd.conf"} <= found
    assert not [line for line in listed.splitlines() if not re.match(r"\S+ root/root ", line)]
    assert not [path for path in found if path.startswith("/var")]
    told = subprocess.run([program("dpkg-deb"), "--info", package], check=True, capture_output=True, text=True).stdout
    assert re.search(r"^ Depends: python3 \(>= 3\.\d+\), python3 \(<< 3\.\d+\), ", told, re.MULTILINE)


def test_it_is_installed_names_no_folder_it_was_built_in_works_and_leaves_the_data(
    package: Path, tmp_path: Path
) -> None:
    root = tmp_path / "root"
    root.mkdir()
    script = INSTALL + NAMELESS + USE
    command: list[str | Path] = ["/bin/sh", "-c", script, "sh", root, package]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=5 * PATIENCE_S)
    assert done.returncode == 0, done.stdout + done.stderr
    user, first, module, *said = done.stdout.splitlines()
    assert user.startswith("tsd:x:")
    assert first == "#!/usr/lib/tsd/bin/python -I"
    assert Path(module).is_relative_to(root / "usr" / "lib" / "tsd")
    assert f"sys.cpu {T} 42 host=web01" in said
    assert not Path("/usr/lib/tsd").exists()


class Machine:
    """A folder that dpkg takes for a machine with systemd: what `systemctl` is told there is noted, and not done."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "root"
        self._folder = folder
        self._told = folder / "told"
        for place in ("var/lib/dpkg/updates", "var/lib/dpkg/info", "var/log", "etc", "run/systemd/system"):
            (self.root / place).mkdir(parents=True)
        (self.root / "var/lib/dpkg/status").touch()
        (folder / "bin").mkdir()
        systemctl = folder / "bin" / "systemctl"
        systemctl.write_text(f'#!/bin/sh\necho "$*" >>{self._told}\nexit 1\n')  # whatever it says, dpkg goes on
        systemctl.chmod(0o755)

    def package(self, version: str) -> Path:
        """One with our scripts, and little in it."""
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
        """What it says, and what systemctl was told."""
        self._told.write_text("")
        as_here = (f"--root={self.root}", "--force-script-chrootless", "--force-not-root", "--force-bad-path")
        said = self._run("dpkg", *as_here, f"--log={self.root}/var/log/dpkg.log", *words)
        root = f"--root={self.root} "
        return said, [line.removeprefix(root) for line in self._told.read_text().splitlines()]

    def _run(self, *words: str | Path) -> str:
        path = f"{self._folder}/bin:{os.environ['PATH']}:/usr/sbin:/sbin"
        done = subprocess.run(words, check=False, capture_output=True, text=True, env=os.environ | {"PATH": path})
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout


def test_an_upgrade_starts_it_again_and_a_removal_ends_it_and_the_data_stays(
    tmp_path: Path, program: Callable[[str], Path]
) -> None:
    program("dpkg-deb")
    machine = Machine(tmp_path)
    said, told = machine.dpkg("--install", machine.package("1"))
    assert told == ["daemon-reload"]
    assert "then: systemctl enable --now tsd" in said

    # What is there by then: a configuration that was changed, data, what Python keeps, and one of several daemons.
    config, data = machine.root / "etc/tsd/tsd.conf", machine.root / "var/lib/tsd/journal/1.journal"
    cache = machine.root / "usr/lib/tsd/lib/__pycache__/tsd.pyc"
    wants = machine.root / "etc/systemd/system/multi-user.target.wants"
    for path in (data, cache, config.with_name("accounts")):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("ours")
    config.write_text("tsd.mode = ro\n")
    wants.mkdir(parents=True)
    (wants / "tsd@1.service").symlink_to("/usr/lib/systemd/system/tsd@.service")

    _, told = machine.dpkg("--install", machine.package("2"))
    assert told == [
        "daemon-reload",
        "daemon-reload",
        "try-restart tsd.service tsd@*.service",
    ]  # the old one's, then ours
    assert config.read_text() == "tsd.mode = ro\n"
    assert not cache.exists()

    cache.parent.mkdir()
    cache.write_text("ours")
    _, told = machine.dpkg("--remove", "tsd")
    assert told == [
        "disable --now tsd.socket tsd.service tsd-compact.timer tsd@1.service",
        "stop tsd@*.service tsd-compact.service",
        "daemon-reload",
    ]
    assert not (machine.root / "usr/lib/tsd").exists()
    assert config.read_text() == "tsd.mode = ro\n"

    said, told = machine.dpkg("--purge", "tsd")
    assert told == ["daemon-reload"]
    assert "the data in /var/lib/tsd stays" in said
    assert not config.exists()
    assert {data.read_text(), config.with_name("accounts").read_text()} == {"ours"}


def test_in_an_image_that_is_being_made_nobody_is_told_anything(tmp_path: Path, program: Callable[[str], Path]) -> None:
    program("dpkg-deb")
    machine = Machine(tmp_path)
    (machine.root / "run/systemd/system").rmdir()
    for words in (("--install", machine.package("1")), ("--install", machine.package("2")), ("--purge", "tsd")):
        assert machine.dpkg(*words)[1] == []
