"""/s/… and /favicon.ico: files below `tsd.http.staticroot`, where it is set."""

import os
import stat
from collections.abc import Callable
from pathlib import Path

import trio

from tsd.doors.exchange import Endpoint, Request, Response
from tsd.doors.safety import OWN_FILES_POLICY
from tsd.errors import Refused

FOREVER_S = 31_536_000  # a year: files of one version never change
MOST_BYTES = 16 << 20
TYPES = {
    ".css": "text/css",
    ".gif": "image/gif",
    ".html": "text/html; charset=UTF-8",
    ".ico": "image/x-icon",
    ".js": "text/javascript",
    ".json": "application/json",
    ".png": "image/png",
    ".svg": "image/svg+xml",
}


def routes(root: str, now_ms: Callable[[], int]) -> dict[str, Endpoint]:
    """`root` is a folder, or empty: then there are no files."""
    folder = Path(os.path.abspath(root)) if root else None

    async def file(request: Request) -> Response:
        raw = request.split.path if request.split else request.path  # escapes are not decoded, as in OpenTSDB
        uri = request.split.geturl() if request.split else raw
        name = raw.lstrip("/") if request.segments[0] == "favicon.ico" else raw[len("/s/") :]
        if not name:
            raise Refused(400, f"URI too short <code>{uri}</code>")
        if ".." in raw:
            raise Refused(400, f"Malformed URI <code>{uri}</code>")
        found = None if folder is None else await trio.to_thread.run_sync(_read, folder, name)
        if found is None:
            raise Refused(404, "Page not found")
        body, changed_s = found
        headers = (
            ("Age", str(max(0, now_ms() // 1000 - changed_s))),
            ("Cache-Control", f"max-age={0 if 'nocache' in uri else FOREVER_S}"),
            OWN_FILES_POLICY,
        )
        return Response(200, body, TYPES.get(Path(name).suffix.lower(), "text/plain"), headers)

    return {"s": file, "favicon.ico": file}


def _read(folder: Path, name: str) -> tuple[bytes, int] | None:
    """A file's bytes, and when it was changed in Unix seconds; None where there is none below the folder."""
    try:
        path = (folder / name).resolve(strict=True)
        if not path.is_relative_to(folder.resolve()):
            return None
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size > MOST_BYTES:
                return None
            return file.read(), int(about.st_mtime)
    except (OSError, ValueError):
        return None
