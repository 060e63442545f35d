"""`/api/uid/assign` and `/api/uid/rename`: assign UIDs to names, rename UIDs (docs/compat/wire.md §12.6).

`/api/uid/uidmeta` and `/api/uid/tsmeta`: metadata of names and series (docs/compat/wire.md §12.6).

`/api/suggest` and `/suggest`: names that begin with a prefix (docs/compat/wire.md §12.2), for completion in
dashboards.
"""

import math
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import aclosing
from typing import Any

import trio

from tsd.api.messages import (
    DONE,
    UNCHANGED,
    answer,
    check_meant_method,
    check_method,
    is_true,
    members_in_url,
    missing_part,
    not_allowed,
    number_in,
    object_of,
    required,
    text_in,
    unparsable,
)
from tsd.api.search import BadSelector, parse_selector
from tsd.codec.metadata import TsMeta, UidMeta
from tsd.codec.names import Kind, parse_uid, show_uid
from tsd.codec.text import encode_name, illegal_character, java_map_order, show_signed
from tsd.errors import BadLine, NoSuchName, Refused, StoreError, TsdError
from tsd.ingest.limits import NewNameLimit, OriginAdmission
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.tables.catalog import (
    Metadata,
    NamedUid,
    Names,
    NoSuchMetadata,
    SeriesCatalog,
    SeriesMetadata,
    SeriesSelector,
)
from tsd.tables.writing import Admission

KINDS = {"metric": Kind.METRIC, "metrics": Kind.METRIC, "tagk": Kind.TAGK, "tagv": Kind.TAGV}
IN_URL = ("metric", "tagk", "tagv")
Flush = Callable[[], Awaitable[bool]]
MAX_NAMES = 10_000  # of one request
YIELD_NAMES = 500  # between two checkpoints


def routes(
    names: Names | None,
    flush: Flush,
    drop_caches: Callable[[], None],
    *,
    extra: bytes,
    meta: Mapping[str, Endpoint],
    new_names: NewNameLimit,
) -> dict[str, Endpoint]:
    """`/api/uid`. `flush` writes all points accepted so far, and returns whether they are stored. `extra` has the
    additional legal characters of names; `meta` has the endpoints `uidmeta` and `tsmeta`. `new_names` limits the new
    names of all clients together."""
    if names is None:
        return {"api/uid": missing_part("UIDs")}
    uids = names

    async def assign(request: Request) -> Response:
        if request.method not in ("GET", "POST"):
            raise not_allowed(request.method)
        wanted = _lists_in_body(request) if request.method == "POST" else _lists_in_url(request)
        if not wanted:
            raise Refused(400, "Missing values to assign UIDs")
        if sum(map(len, wanted.values())) > MAX_NAMES:
            raise Refused(413, f"More than {MAX_NAMES} names to assign UIDs")
        if request.peer.client.pace_debt_s:
            await request.peer.throttle()
        found: dict[str, dict[str, str]] = {}
        admission = OriginAdmission(new_names, request.peer)
        for word, listed in wanted.items():
            assigned, errors = await _assign_names(uids, word, listed, extra, admission)
            found[word] = assigned
            if errors:
                found[f"{word}_errors"] = errors
        ordered = {key: found[key] for key in java_map_order(found)}  # as OpenTSDB lists them
        return answer(ordered, 400 if any(key.endswith("_errors") for key in found) else 200)

    async def rename(request: Request) -> Response:
        if request.method not in ("GET", "POST"):
            raise Refused(
                405, "Method not allowed", f"The HTTP method[{request.method}] is not permitted for this endpoint"
            )
        word, old, new = _names_of(request)
        error = await _rename(uids, flush, word, old, new, extra)
        if error is not None:
            return answer({"result": "false", "error": error}, 400)
        drop_caches()
        return answer({"result": "true"})

    async def uid(request: Request) -> Response:
        match request.segments[1:2]:
            case ("assign",):
                return await assign(request)
            case ("rename",):
                return await rename(request)
            case (word,) if word in meta:
                return await meta[word](request)
        raise Refused(501, "Other UID endpoints have not been implemented yet")

    return {"api/uid": uid}


def _lists_in_url(request: Request) -> dict[str, list[str]]:
    values = {kind: (request.param(kind) or "").rstrip(",") for kind in IN_URL}
    return {kind: value.split(",") for kind, value in values.items() if value}


def _lists_in_body(request: Request) -> dict[str, list[str]]:
    members = object_of(request)
    for kind, names in members.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise unparsable(f"{kind}: got {type(names).__name__}, wanted an array of names")
    return members


async def _assign_names(
    uids: Names, word: str, names: Sequence[str], extra: bytes, admission: Admission
) -> tuple[dict[str, str], dict[str, str]]:
    """Assign UIDs to names of the kind `word`. Return the new UIDs in hex, and the errors of the other names."""
    kind = KINDS.get(word.lower())
    if kind is None:
        return {}, dict.fromkeys(names, "Unknown type name")
    legal: dict[str, bytes] = {}
    assigned: dict[str, str] = {}
    errors: dict[str, str] = {}
    for place, name in enumerate(names, 1):
        if place % YIELD_NAMES == 0:
            await trio.lowlevel.checkpoint()
        if error := name_error(word, name, extra):
            errors[name] = error
        else:
            legal[name] = encode_name(name)
    existing = await uids.find(kind, legal.values())
    fresh = {name: raw for name, raw in legal.items() if isinstance(existing[raw], NoSuchName)}
    given = await uids.find_or_assign(kind, fresh.values(), admission)
    for place, (name, raw) in enumerate(legal.items(), 1):
        if place % YIELD_NAMES == 0:
            await trio.lowlevel.checkpoint()
        uid = given[raw] if name in fresh else existing[raw]
        if isinstance(uid, TsdError):
            errors[name] = str(uid)
        elif name in fresh:
            assigned[name] = show_uid(uid)
        else:
            errors[name] = f"Name already exists with UID: {show_uid(uid)}"
    return assigned, errors


def name_error(word: str, name: str, extra: bytes) -> str | None:
    """Why a name is illegal; None if it is legal.

    >>> name_error("metric", "bad$name", b"")
    'Invalid metric ("bad$name"): illegal character: $'
    """
    try:
        odd = illegal_character(encode_name(name), extra)
    except BadLine as error:
        return f'Invalid {word} ("{name}"): {error}'
    if not name:
        return f"Invalid {word}: empty string"
    return f'Invalid {word} ("{name}"): illegal character: {odd}' if odd else None


def _names_of(request: Request) -> tuple[str, str, str]:
    """Return the kind as spelled in the request, the old name and the new name. Raise Refused."""
    if request.method == "POST":
        members: Mapping[str, Any] = object_of(request)
    else:
        members = {name: request.param(name) for name in (*IN_URL, "name")}
    kinds = [kind for kind in members if kind != "name" and text_in(members, kind)]
    new = text_in(members, "name")
    if not kinds or not new:
        raise Refused(400, "Missing necessary values to rename UID")
    return kinds[-1], text_in(members, kinds[-1]), new


async def _rename(uids: Names, flush: Flush, word: str, old: str, new: str, extra: bytes) -> str | None:
    """Rename a UID; return an error, or None. Raise StoreError, and Refused if points cannot be stored."""
    kind = KINDS.get(word.lower())
    if kind is None:
        return "Unknown type name"
    if error := name_error(word, new, extra):
        return error
    unknown = f'Name("{old}") does not exist'
    try:
        name = encode_name(old)
    except BadLine:
        return unknown
    found = await uids.find(kind, [name])
    if isinstance(found[name], bytes) and not await flush():  # after a crash, lines of the journal would have the name
        raise Refused(503, "Points of the old name cannot be stored now: nothing renamed")
    try:
        await uids.rename(kind, name, encode_name(new))
    except StoreError:
        raise
    except (BadLine, NoSuchName):
        return unknown
    except TsdError as error:  # taken, or changed by another process
        return str(error)
    return None


FIELDS = {"display_name": ("displayName", "display_name"), "description": ("description",), "notes": ("notes",)}
SERIES_TEXTS = {**FIELDS, "units": ("units",), "data_type": ("dataType", "data_type")}
URL_TEXTS = {"display_name": "displayName", "description": "description", "notes": "notes"}
UID_IN_URL = {"uid": "uid", "type": "type", **URL_TEXTS}
SERIES_IN_URL = {
    "tsuid": "tsuid",
    **URL_TEXTS,
    "units": "units",
    "data_type": "dataType",
    **{name: name for name in ("retention", "max", "min")},
}
METHODS = ("GET", "POST", "PUT", "DELETE")


def meta_endpoints(metadata: Metadata | None, names: Names | None, catalog: SeriesCatalog) -> dict[str, Endpoint]:
    """Return the endpoints by their word after /api/uid/."""
    if metadata is None or names is None:
        return dict.fromkeys(("uidmeta", "tsmeta"), missing_part("metadata"))
    return {
        "uidmeta": UidMetaPages(metadata, names).respond,
        "tsmeta": SeriesMetaPages(metadata, catalog).respond,
    }


class UidMetaPages:
    """`/api/uid/uidmeta`."""

    def __init__(self, metadata: Metadata, names: Names) -> None:
        self._metadata = metadata
        self._names = names

    async def respond(self, request: Request) -> Response:
        """Answer a request. Raise Refused, StoreError."""
        method = check_meant_method(request, *METHODS)
        if request.body and method != "GET":
            members: Mapping[str, Any] = object_of(request)
        else:
            required(request, "uid")
            required(request, "type")
            members = members_in_url(request, UID_IN_URL)
        if not text_in(members, "uid"):
            raise Refused(400, "Missing UID", "Missing UID")
        kind = _kind(text_in(members, "type"))
        uid = _uid(text_in(members, "uid"))
        if method == "DELETE":
            await self._metadata.delete_uid(kind, uid)
            return DONE
        width = self._names.width(kind)
        if len(uid) != width:
            wrong = f"Wrong id.length = {len(uid)} which is != {width} required for '{kind.value}'"
            if method == "GET":
                raise Refused(500, f"java.lang.IllegalArgumentException: {wrong}")
            raise Refused(400, wrong, wrong)
        changes = changes_in(members, FIELDS)
        if method != "GET" and not changes:
            return UNCHANGED

        def change(stored: UidMeta) -> UidMeta:
            kept = UidMeta(kind, created_s=stored.created_s) if method == "PUT" else stored
            return kept._replace(**changes)

        try:
            if method == "GET":
                return answer(show_named(await self._metadata.get_uid(kind, uid)))
            return answer(show_named(await self._metadata.edit_uid(kind, uid, change)))
        except NoSuchName as error:
            why = f"No such unique ID for '{kind.value}': {show_signed(uid)}"
            raise Refused(404, "Could not find the requested UID", why) from error


class SeriesMetaPages:
    """`/api/uid/tsmeta`."""

    def __init__(self, metadata: Metadata, catalog: SeriesCatalog) -> None:
        self._metadata = metadata
        self._catalog = catalog

    async def respond(self, request: Request) -> Response:
        """Answer a request. Raise Refused, StoreError."""
        method = check_meant_method(request, *METHODS)
        if method == "GET":
            return await self._get(request)
        members = object_of(request) if request.body else members_in_url(request, SERIES_IN_URL)
        if method == "DELETE":
            if not text_in(members, "tsuid"):
                raise Refused(400, "Unable to delete TSMeta information", "Missing UID")
            await self._metadata.delete_series(self._parse(text_in(members, "tsuid")))
            return DONE
        return await self._change(request, members, replace=method == "PUT")

    async def _get(self, request: Request) -> Response:
        try:
            if text := request.param("tsuid"):
                found = await self._metadata.get_series(self._parse(text))
                if found is None:
                    raise Refused(404, "Could not find Timeseries meta data")
                return answer(show_series_meta(found))
            selector = _selector(required(request, "m"))
            async with aclosing(self._metadata.find_series(selector)) as all_found:
                return answer([show_series_meta(found) async for found in all_found])
        except NoSuchName as error:
            raise Refused(404, "Unable to find one of the UIDs", str(error)) from error

    async def _change(self, request: Request, members: Mapping[str, Any], *, replace: bool) -> Response:
        create = is_true(request.param("create"))
        if text := text_in(members, "tsuid"):
            series, create = self._parse(text), False
        else:
            series = await self._exact(required(request, "m"))
            if not create and not await self._metadata.has_series(series):
                raise Refused(400, 'Could not find TSMeta, specify "create=true" to create a new one.')
        changes = changes_in(members, SERIES_TEXTS) | numbers_in(members)
        if not changes and not create:
            return UNCHANGED

        def change(stored: TsMeta) -> TsMeta:
            kept = TsMeta(stored.tsuid, created_s=stored.created_s) if replace else stored
            return kept._replace(**changes)

        try:
            return answer(show_series_meta(await self._metadata.edit_series(series, change, create=create)))
        except NoSuchMetadata as error:
            raise Refused(400, str(error), str(error)) from error
        except NoSuchName as error:
            raise Refused(500, str(error)) from error

    async def _exact(self, text: str) -> bytes:
        """Return the series with exactly the tags of a selector text. Raise Refused."""
        try:
            selected = await self._catalog.select(_selector(text))
        except NoSuchName as error:
            raise Refused(404, "Unable to find one of the UIDs", str(error)) from error
        series = selected.exact()
        if series is None:
            raise Refused(400, "Tags cannot be null or empty when getting a TSUID")
        return series

    def _parse(self, text: str) -> bytes:
        try:
            return self._catalog.parse_series(text)
        except BadLine as error:
            raise Refused(400, str(error)) from error


def show_series_meta(found: SeriesMetadata) -> dict[str, object]:
    """Return the JSON of a series' metadata."""
    meta = found.meta
    return {
        "tsuid": show_uid(found.series),
        "metric": show_named(found.metric),
        "tags": [show_named(one) for one in found.tags],
        "description": meta.description,
        "notes": meta.notes,
        "created": meta.created_s,
        "units": meta.units,
        "retention": meta.retention,
        "max": show_bound(meta.max),
        "min": show_bound(meta.min),
        "custom": meta.custom,
        "displayName": meta.display_name,
        "dataType": meta.data_type,
        "lastReceived": found.last_received_s,
        "totalDatapoints": found.points,
    }


def show_named(found: NamedUid) -> dict[str, object]:
    """Return the JSON of a UID and its metadata."""
    meta = found.meta
    return {
        "uid": show_uid(found.uid),
        "type": meta.kind.name,
        "name": found.name,
        "description": meta.description,
        "notes": meta.notes,
        "created": meta.created_s,
        "custom": meta.custom,
        "displayName": meta.display_name,
    }


def show_bound(bound: float) -> float | str:
    """Return a bound in JSON, which has no NaN.

    >>> show_bound(1.5), show_bound(math.nan)
    (1.5, 'NaN')
    """
    return bound if math.isfinite(bound) else "NaN" if math.isnan(bound) else f"{'-' * (bound < 0)}Infinity"


def changes_in(members: Mapping[str, Any], fields: Mapping[str, tuple[str, ...]]) -> dict[str, Any]:
    """Return the changed fields of UidMeta or TsMeta, `custom` among them. Raise Refused."""
    changes: dict[str, Any] = {}
    for field, spellings in fields.items():
        for name in spellings:
            if members.get(name) is not None:
                changes[field] = text_in(members, name)
    if "custom" in members and members["custom"] is not None:
        changes["custom"] = custom_in(members)
    return changes


def custom_in(members: Mapping[str, Any]) -> dict[str, str | None]:
    """Return the custom fields: an object of strings. Raise Refused."""
    custom = members["custom"]
    if not isinstance(custom, dict):
        raise unparsable(f"custom: got {type(custom).__name__}, wanted an object of strings")
    return {name: None if custom[name] is None else text_in(custom, name) for name in custom}


def numbers_in(members: Mapping[str, Any]) -> dict[str, Any]:
    """Return the changed bounds and retention. Raise Refused."""
    changes: dict[str, Any] = {}
    for name, read in (("retention", int), ("max", float), ("min", float)):
        value = members.get(name)
        if value is None or value == "":
            continue
        try:
            changes[name] = number_in(members, name) if read is int else float(value)
        except (Refused, ValueError, TypeError, OverflowError) as exc:
            raise Refused(400, f"Unable to parse '{name}' value") from exc
    return changes


def _kind(word: str) -> Kind:
    if not word:
        raise Refused(400, "Missing type", "Missing type")
    if word.lower() not in KINDS:
        raise Refused(500, f"Invalid type requested: {word}")
    return KINDS[word.lower()]


def _uid(text: str) -> bytes:
    try:
        return parse_uid(text)
    except BadLine as error:
        raise Refused(400, str(error)) from error


def _selector(text: str) -> SeriesSelector:
    try:
        return parse_selector(text)
    except BadSelector as error:
        raise Refused(400, str(error), str(error)) from error


DEFAULT_LIMIT = 25  # suggestions
MAX_LIMIT = 100_000


def suggest_routes(catalog: SeriesCatalog, max_limit: int = MAX_LIMIT) -> dict[str, Endpoint]:
    """`/api/suggest` and `/suggest`, which return at most `max_limit` names."""

    async def suggest(kind: Kind, prefix: str, limit: int) -> list[str]:
        return await catalog.suggest(kind, prefix, min(limit, max_limit))

    async def api(request: Request) -> Response:
        is_post = check_method(request, "GET", "POST") == "POST"
        return answer(await suggest(*(_suggestion_in_body(request) if is_post else _suggestion_in_url(request))))

    async def legacy(request: Request) -> Response:
        response = answer(await suggest(*_suggestion_in_url(request)))
        return Response(200, response.body, "application/json")

    return {"api/suggest": api, "suggest": legacy}


def _suggestion_in_url(request: Request) -> tuple[Kind, str, int]:
    kind = required(request, "type")
    return _suggestion({"type": kind, "q": request.param("q"), "max": request.param("max")})


def _suggestion_in_body(request: Request) -> tuple[Kind, str, int]:
    members = object_of(request)
    if not text_in(members, "type"):
        raise Refused(400, "Missing 'type' parameter")
    return _suggestion(members)


def _suggestion(members: Mapping[str, Any]) -> tuple[Kind, str, int]:
    """Kind, prefix and limit of a request for suggestions; raises Refused."""
    kind = text_in(members, "type")
    try:
        limit = int(text_in(members, "max") or "0")
    except ValueError as exc:
        raise Refused(400, "Unable to parse 'max' as a number") from exc
    if kind not in [kind.value for kind in Kind]:
        raise Refused(400, f"Invalid 'type' parameter:{kind}")
    return Kind(kind), text_in(members, "q"), limit if limit > 0 else DEFAULT_LIMIT
