"""The Debian package: built of this checkout, installed by dpkg on a copy of this system, and run there."""

import os
import re
import subprocess
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.e2e.command import HOST, PATIENCE_S, ROOT

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        not os.environ.get("TSD_TEST_PACKAGE"), reason="building it takes minutes: TSD_TEST_PACKAGE=1 has it tested"
    ),
]
T = 1356998400
# In a mount namespace of its own: this system below, a file system in memory above, and dpkg in it. Nothing outside is
# touched, and nothing of it is left when the shell ends.
INSTALL = """
set -e
mount -t tmpfs -o size=1g tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" overlay "$1/root"
mount --bind /proc "$1/root/proc"
mount --bind /dev "$1/root/dev"
mount -t tmpfs tmpfs "$1/root/run"
mount -t tmpfs tmpfs "$1/root/tmp"
cp "$2" "$1/root/run/tsd.deb"
chroot "$1/root" dpkg -i /run/tsd.deb >&2
install -d -o 0 "$1/root/run/state"
chroot "$1/root" chown tsd:tsd /run/state
exec chroot "$1/root" /bin/sh -c "$3"
"""
USE = f"""
set -e
cd /
getent passwd tsd
as_user="setpriv --reuid tsd --regid tsd --clear-groups"
$as_user tsd version
tsd check-config --config /etc/tsd/tsd.conf
$as_user tsd serve --config /etc/tsd/tsd.conf --data /run/state --port 0 2>/run/log &
daemon=$!
until $as_user tsd --data /run/state health ready >&2; do kill -0 $daemon; done
port=$(grep -o 'port=[0-9]*' /run/log | cut -d= -f2)
tsd send --host {HOST} --port "$port" 'put sys.cpu {T} 42 host=web01'
kill $daemon
wait $daemon
$as_user tsd --data /run/state scan --import 1 sum sys.cpu
dpkg -r tsd >&2
test ! -e /usr/lib/tsd
test -e /etc/tsd/tsd.conf
test -e /run/state/store
"""


@pytest.fixture(scope="module")
def package(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The package, built in a hurry."""
    hurry = {"DEB_COMPRESSION": "none", "DEB_EXTRAS": "", "DEB_BYTECODE": "no"}
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


def test_nothing_in_it_names_the_folder_it_was_built_in(package: Path, tmp_path: Path) -> None:
    subprocess.run(["dpkg-deb", "-x", package, tmp_path / "tree"], check=True)
    for path in (
        *(tmp_path / "tree" / "usr" / "bin").iterdir(),
        tmp_path / "tree" / "usr" / "lib" / "tsd" / "pyvenv.cfg",
    ):
        assert "/tmp/" not in path.read_text(), path
        assert str(ROOT) not in path.read_text(), path


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can install a package, even on a copy of the system")
def test_it_is_installed_and_works_and_leaves_the_data(package: Path, tmp_path: Path) -> None:
    command = ["unshare", "--mount", "--propagation", "private", "/bin/sh", "-c", INSTALL, "sh"]
    done = subprocess.run(
        [*command, tmp_path, package, USE], check=False, capture_output=True, text=True, timeout=5 * PATIENCE_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    assert done.stdout.startswith("tsd:x:")
    assert f"\nsys.cpu {T} 42 host=web01\n" in done.stdout
    assert not Path("/usr/lib/tsd").exists()
