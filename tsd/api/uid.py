"""`/api/uid/assign` and `/api/uid/rename`: assign UIDs to names, rename UIDs (docs/compat/wire.md §12.6)."""

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any

import trio

from tsd.api.messages import answer, as_text, check_method, missing_part, object_of, text_in, unparsable
from tsd.codec.names import Kind, show_uid
from tsd.codec.text import encode_name, illegal_character, java_map_order
from tsd.errors import BadLine, NoSuchName, Refused, StoreError, TsdError
from tsd.ingest.limits import NewNameLimit, OriginAdmission
from tsd.server.http.messages import Endpoint, Request, Response
from tsd.tables.catalog import Names
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
        is_post = check_method(request, "GET", "POST") == "POST"
        wanted = _lists_in_body(request) if is_post else _lists_in_url(request)
        if not wanted:
            raise Refused(400, "Missing values to assign UIDs")
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
    lists = {kind: value.split(",") for kind, value in values.items() if value}
    _check_count(lists)
    return lists


def _lists_in_body(request: Request) -> dict[str, list[str]]:
    members = object_of(request)
    for kind, names in members.items():
        if not isinstance(names, list):
            raise unparsable(f"{kind}: got {type(names).__name__}, wanted an array of names")
    _check_count(members)  # before each is looked at
    return {kind: [as_text(name, kind) for name in names] for kind, names in members.items()}


def _check_count(lists: Mapping[str, Sequence[object]]) -> None:
    if sum(map(len, lists.values())) > MAX_NAMES:
        raise Refused(413, f"More than {MAX_NAMES} names to assign UIDs")


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
    """Return why a name is illegal, None if it is legal.

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
