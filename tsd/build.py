"""What runs here: its version, in the forms that OpenTSDB has for it."""

import os
import time
from collections.abc import Mapping
from functools import cache

import tsd


@cache
def build_data() -> Mapping[str, str]:
    """The fields of /api/version. There is no revision and no branch: a release is known by its number alone."""
    built_s = int(os.stat(tsd.__file__).st_mtime)
    return {
        "short_revision": tsd.__version__,
        "repo": "OpenTSDB's protocols in Python",
        "host": "tsd",
        "version": tsd.__version__,
        "full_revision": tsd.__version__,
        "repo_status": "MINT",
        "user": "tsd",
        "branch": "",
        "timestamp": str(built_s),
    }


@cache
def version_reply(*, by_loop: bool) -> bytes:
    """The two lines of the command `version`, in the form of OpenTSDB's, which scripts take apart. `by_loop`: put lines
    are read in the compiled loop."""
    rows = "a compiled loop" if by_loop else "plain Python"
    built = time.strftime("%Y/%m/%d %H:%M:%S", time.gmtime(os.stat(tsd.__file__).st_mtime))
    return (
        f"net.opentsdb.tools {tsd.__version__} built at revision {tsd.__version__} (MINT)\n"
        f"Built on {built} +0000 by tsd: OpenTSDB's protocols in Python, rows in {rows}\n"
    ).encode()
