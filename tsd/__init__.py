"""An OpenTSDB-compatible time-series daemon. This module has its version, in OpenTSDB's formats."""

import os
import time
from collections.abc import Mapping
from functools import cache

__version__ = "0.1.0"


@cache
def build_data() -> Mapping[str, str]:
    """Return the fields of /api/version. There is no revision and no branch: a release has only a number."""
    built_s = int(os.stat(__file__).st_mtime)
    return {
        "short_revision": __version__,
        "repo": "OpenTSDB's protocols in Python",
        "host": "tsd",
        "version": __version__,
        "full_revision": __version__,
        "repo_status": "MINT",
        "user": "tsd",
        "branch": "",
        "timestamp": str(built_s),
    }


@cache
def version_reply(*, by_loop: bool) -> bytes:
    """Return the two lines of the command `version`, in OpenTSDB's format, which scripts parse.

    `by_loop`: put lines are parsed by the compiled parser.
    """
    rows = "a compiled loop" if by_loop else "plain Python"
    built = time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(os.stat(__file__).st_mtime))
    return (
        f"net.opentsdb.tools {__version__} built at revision {__version__} (MINT)\n"
        f"Built on {built} +0000 by tsd: OpenTSDB's protocols in Python, rows in {rows}\n"
    ).encode()
