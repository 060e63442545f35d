"""The Debian package: built of this checkout, installed by dpkg in a folder, and run there."""

import os
import re
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
