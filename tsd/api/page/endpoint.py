"""`/` and `/ui/…`: the page, its files, and the roles of its user.

The page has no data: it asks the API for it, with the credentials of its user. The paths of its files contain a digest
of all files, so browsers may cache them without asking again. The plotting library comes from the package plotly (the
extra `web`).
"""

import gzip
from collections.abc import Mapping
from hashlib import sha256
from importlib.metadata import version
from importlib.util import find_spec
from pathlib import Path

import trio

from tsd import build_data
from tsd.api.messages import answer, check_method
from tsd.auth.roles import Role
from tsd.config.files import exists
from tsd.errors import Refused
from tsd.query.model import AGGREGATORS
from tsd.server.http.messages import HTML, Endpoint, Request, Response
from tsd.server.http.security import NO_FRAMES

STATIC = Path(__file__).parent / "static"
TYPES = {".css": "text/css; charset=UTF-8", ".js": "text/javascript; charset=UTF-8", ".svg": "image/svg+xml"}
IMMUTABLE = ("Cache-Control", "public, max-age=31536000, immutable")
ALWAYS_CHECKED = ("Cache-Control", "no-cache")
DIGEST_CHARS = 12
PLOTLY_FILE = "plotly.js"
# Plotly sets styles by script and makes PNGs of data: and blob: URLs. Nothing comes from elsewhere.
POLICY = (
    "Content-Security-Policy",
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data: blob:; "
    "connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
)


def routes(*, has_accounts: bool, entity_tag: str | None) -> dict[str, Endpoint]:
    """Return the endpoints. `has_accounts`: users may sign in. `entity_tag`: the tag of entities; None: they are not
    kept."""
    files = {path.name: path.read_bytes() for path in sorted(STATIC.iterdir()) if path.suffix in (".html", *TYPES)}
    base = f"/ui/{_digest(files)}/"
    library = PlottingLibrary.find()
    index = files.pop("index.html").decode()
    relative = base[1:]  # a proxy may serve the page below a path of its own
    for mark, text in (
        ("@MODULES@", "\n".join(f'<link rel="modulepreload" href="{relative}{name}">' for name in _modules(files))),
        ("@BASE@", relative),
        ("@PLOTLY@", "" if library is None else library.path[1:]),
        ("@VERSION@", build_data()["version"]),
    ):
        index = index.replace(mark, text)
    home = Response(200, index.encode(), HTML, (POLICY, *NO_FRAMES, ALWAYS_CHECKED))

    async def page(request: Request) -> Response:
        check_method(request, "GET", "POST", "HEAD")  # as OpenTSDB, which health checks ask with HEAD
        return home

    async def below(request: Request) -> Response:
        check_method(request, "GET")
        if request.path == "/ui/access":
            known = {"sign_in": has_accounts, "entities": entity_tag, "aggregators": AGGREGATORS}
            return answer(_access(request) | known)
        if library is not None and request.path == library.path:
            return await library.response(request)
        name = request.path.removeprefix(base)
        if name not in files or name == request.path:
            raise Refused(404, "Page not found")
        return Response(200, files[name], TYPES[Path(name).suffix], (IMMUTABLE,))

    return {"": page, "ui": below}


def _modules(files: Mapping[str, bytes]) -> list[str]:
    """Return the names of the scripts that the first one imports. The browser fetches all of them together then."""
    return [name for name in files if name.endswith(".js") and name != "main.js"]


def _digest(files: Mapping[str, bytes]) -> str:
    """Return a digest of the names and contents of files."""
    whole = sha256()
    for name, content in files.items():
        whole.update(name.encode() + b"\0" + sha256(content).digest())
    return whole.hexdigest()[:DIGEST_CHARS]


def _access(request: Request) -> dict[str, object]:
    """Return the account that sent a request, and its roles."""
    principal = request.peer.principal
    roles = [role.name.lower() for role in Role if role in principal.roles and role.name]
    return {"name": principal.name, "roles": roles}


class PlottingLibrary:
    """The script of the package plotly: 4.8 MB, 1.5 MB compressed."""

    def __init__(self, file: Path, release: str) -> None:
        self.path = f"/ui/plotly-{release}/{PLOTLY_FILE}"
        self._file = file
        self._compressed: bytes | None = None
        self._compressing = trio.Lock()

    @classmethod
    def find(cls) -> "PlottingLibrary | None":
        """Return the library; None if the package is not installed. It is not imported, which takes 0.3 s."""
        spec = find_spec("plotly")
        for folder in (spec and spec.submodule_search_locations) or ():
            file = Path(folder) / "package_data" / "plotly.min.js"
            if exists(file):
                return cls(file, version("plotly"))
        return None

    async def response(self, request: Request) -> Response:
        """Return the script, compressed once for all browsers."""
        headers = (IMMUTABLE, ("Vary", "Accept-Encoding"))
        if "gzip" not in request.headers.get("accept-encoding", ""):
            return Response(200, await trio.to_thread.run_sync(self._file.read_bytes), TYPES[".js"], headers)
        async with self._compressing:
            if self._compressed is None:
                self._compressed = await trio.to_thread.run_sync(lambda: gzip.compress(self._file.read_bytes(), 6))
        return Response(200, self._compressed, TYPES[".js"], (*headers, ("Content-Encoding", "gzip")))
