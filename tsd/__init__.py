"""An OpenTSDB-compatible time-series daemon. This module has its version and commit, in OpenTSDB's formats.

`tsd._build`, which only installed packages have, is written by setup.py. A checkout asks Git.
"""

import importlib
import os
import time
from collections.abc import Mapping
from functools import cache
from pathlib import Path

try:
    from tsd import _build
except ImportError:
    BUILT: tuple[str, str] | None = None
else:
    BUILT = (_build.VERSION, _build.REVISION)

DISTRIBUTION = "tsd-daemon"  # the name on PyPI, where `tsd` is another program
UNKNOWN = "unknown"


@cache
def version() -> str:
    """Return the version. In a checkout it is the one of the last `scripts/setup`."""
    if BUILT is not None:
        return BUILT[0]
    metadata = importlib.import_module("importlib.metadata")  # takes 40 ms, which installed commands are spared
    try:
        return str(metadata.version(DISTRIBUTION))
    except metadata.PackageNotFoundError:
        return f"0+{UNKNOWN}"


@cache
def revision() -> str:
    """Return the commit in hexadecimal, `unknown` for a tree without Git."""
    if BUILT is not None:
        return BUILT[1]
    root = Path(__file__).parents[1]
    if not os.path.exists(root / ".git"):
        return UNKNOWN
    subprocess = importlib.import_module("subprocess")  # takes 6 ms
    try:
        command = ["git", "-C", str(root), "rev-parse", "HEAD"]
        return str(subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip())
    except (OSError, subprocess.CalledProcessError):
        return UNKNOWN


@cache
def build_data() -> Mapping[str, str]:
    """Return the fields of /api/version."""
    built_s = int(os.stat(__file__).st_mtime)
    return {
        "short_revision": revision()[:12],
        "repo": "OpenTSDB's protocols in Python",
        "host": "tsd",
        "version": version(),
        "full_revision": revision(),
        "repo_status": "MINT",
        "user": "tsd",
        "branch": "",
        "timestamp": str(built_s),
    }


@cache
def version_reply(*, compiled: bool) -> bytes:
    """Return the two lines of the command `version`, in OpenTSDB's format, which scripts parse.

    `compiled`: put lines are parsed by the compiled parser.
    """
    rows = "a compiled loop" if compiled else "plain Python"
    built = time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(os.stat(__file__).st_mtime))
    return (
        f"net.opentsdb.tools {version()} built at revision {revision()} (MINT)\n"
        f"Built on {built} +0000 by tsd: OpenTSDB's protocols in Python, rows in {rows}\n"
    ).encode()
