"""/api/config, /api/version, /api/aggregators and other small endpoints; static files below /s/; the log at /logs."""

import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import trio

from tsd import build_data, version_reply
from tsd.api.messages import answer, check_method
from tsd.config.in_use import in_use
from tsd.config.log import LEVELS, recent_lines, set_level
from tsd.config.settings import Config
from tsd.errors import Refused
from tsd.ingest import series
from tsd.query.model import AGGREGATORS
from tsd.server.http import pages
from tsd.server.http.messages import HTML, TEXT, Endpoint, Request, Response
from tsd.server.http.security import STATIC_CONTENT_POLICY, log_action
from tsd.tables.filters import NOT_KEY

HIDDEN = "********"
SECRET = ("PASS", "SECRET", "TOKEN")  # settings whose keys contain one of these are hidden


class FilterHelp(NamedTuple):
    """The description of a filter."""

    examples: str
    description: str


FILTERS = {
    "iwildcard": FilterHelp(
        "host=iwildcard(web*), host=iwildcard(*mob.tsdb.net)",
        "Matches tag values with asterisks for any characters, case-insensitive.",
    ),
    "wildcard": FilterHelp(
        "host=wildcard(web*), host=wildcard(web*mob.tsdb.net)",
        "Matches tag values with asterisks for any characters, case-sensitive. A single * matches all.",
    ),
    "not_literal_or": FilterHelp(
        "host=not_literal_or(web01), host=not_literal_or(web01|web02)",
        "Excludes series with one of the tag values, separated by pipes, case-sensitive.",
    ),
    "not_iliteral_or": FilterHelp(
        "host=not_iliteral_or(web01), host=not_iliteral_or(web01|WEB02)",
        "Excludes series with one of the tag values, separated by pipes, case-insensitive.",
    ),
    "literal_or": FilterHelp(
        "host=literal_or(web01), host=literal_or(web01|web02)",
        "Matches one of the tag values, separated by pipes, case-sensitive.",
    ),
    "iliteral_or": FilterHelp(
        "host=iliteral_or(web01), host=iliteral_or(web01|WEB02)",
        "Matches one of the tag values, separated by pipes, case-insensitive.",
    ),
    "regexp": FilterHelp(
        "host=regexp(web.*), host=regexp(web0[1-4])",
        "Matches tag values that contain a match of a regular expression; ^ and $ anchor it.",
    ),
}
NO_KEY = FilterHelp("host=not_key()", "Matches series without this tag name.")


def config_routes(config: Config) -> dict[str, Endpoint]:
    """/api/config and /api/config/filters."""
    settings = answer(in_force(config))
    known = {**FILTERS, NOT_KEY: NO_KEY} if config.corrected else FILTERS
    filters = answer({name: help_._asdict() for name, help_ in known.items()})

    async def api(request: Request) -> Response:
        check_method(request, "GET", "POST")
        return filters if request.segments[1:2] == ("filters",) else settings

    return {"api/config": api}


def in_force(config: Config) -> dict[str, str]:
    """Return every setting as text, sorted by key; secrets are hidden."""
    return {
        key: HIDDEN if any(word in key.upper() for word in SECRET) else value
        for key, value in sorted(in_use(config).items())
    }


SERIALIZERS = [
    {
        "serializer": "json",
        "formatters": [],
        "class": "tsd.query.serialize",
        "response_content_type": "application/json; charset=UTF-8",
        "request_content_type": "application/json",
        "parsers": [],
    }
]


def utility_routes(drop_caches: Callable[[], None], stop: Callable[[], None], *, may_stop: bool) -> dict[str, Endpoint]:
    """Return small endpoints that need no other part of the daemon. `drop_caches` drops all caches; `stop` ends the
    daemon after it has served its connections."""

    async def drop(request: Request) -> Response:
        check_method(request, "GET", "DELETE")
        drop_caches()
        return answer({"message": "Caches dropped", "status": "200"})

    async def die(_request: Request) -> Response:
        stop()
        return Response(200, pages.exiting(), HTML)

    return {
        "aggregators": _aggregators,
        "api/aggregators": _aggregators,
        "api/dropcaches": drop,
        "api/serializers": _serializers,
        "api/version": _version,
        "version": _version,
        **({"diediedie": die} if may_stop else {}),
    }


async def _aggregators(request: Request) -> Response:
    check_method(request, "GET", "POST")
    return answer(AGGREGATORS)


async def _serializers(request: Request) -> Response:
    """Answer as OpenTSDB documents it, although OpenTSDB 2.4.1 answers 404."""
    check_method(request, "GET", "POST")
    return answer(SERIALIZERS)


async def _version(request: Request) -> Response:
    """Return the fields as an object; at `/version` two lines, unless the URI ends in `json`."""
    check_method(request, "GET", "POST")
    as_json = request.split is not None and request.split.geturl().endswith("json")
    if request.is_api or as_json:
        return answer(build_data())
    return Response(200, version_reply(compiled=series.HAS_LOOP), TEXT)


FOREVER_S = 31_536_000  # a year: files of one version never change
MAX_BYTES = 16 << 20
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


def static_routes(root: str, now_ms: Callable[[], int]) -> dict[str, Endpoint]:
    """/s/… and /favicon.ico. `root` is a folder, or empty for no files."""
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
            STATIC_CONTENT_POLICY,
        )
        return Response(200, body, TYPES.get(Path(name).suffix.lower(), "text/plain"), headers)

    return {"s": file, "favicon.ico": file}


def _read(folder: Path, name: str) -> tuple[bytes, int] | None:
    """Return the bytes of a file and its modification time in Unix seconds; None if it is not inside the folder."""
    try:
        path = (folder / name).resolve(strict=True)
        if not path.is_relative_to(folder.resolve()):
            return None
        with open(path, "rb") as file:
            about = os.fstat(file.fileno())
            if not stat.S_ISREG(about.st_mode) or about.st_size > MAX_BYTES:
                return None
            return file.read(), int(about.st_mtime)
    except (OSError, ValueError):
        return None


def log_routes() -> dict[str, Endpoint]:
    """/logs."""
    return {"logs": _logs}


async def _logs(request: Request) -> Response:
    """Return the newest log lines first, or set the level. There is one logger, so `logger` is ignored."""
    level = request.param("level")
    if level is not None:
        if level.lower() not in LEVELS:
            raise Refused(400, f"Invalid level: {level}")
        log_action(request, "started")  # before a level that would leave it out
        set_level(level)
        return Response(200, f"Set the log level to {level.upper()} on 1 logger.\n".encode(), TEXT)
    lines = recent_lines()
    if request.has("json"):
        return answer(lines)
    return Response(200, "".join(f"{line}\n" for line in lines).encode("utf-8", "replace"), TEXT)
