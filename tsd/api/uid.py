"""`/api/uid/…`: names get UIDs and other names; what is told of them is in `tsd.api.meta` (wire.md §12.6)."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from tsd.api.messages import answer, not_allowed, object_of, text_in, unparsable
from tsd.codec.uid import Kind
from tsd.codec.words import encode_name, illegal_character, java_map_order, show_signed
from tsd.doors.exchange import Endpoint, Request, Response
from tsd.errors import BadLine, NoSuchName, Refused, StoreError, TsdError
from tsd.store import Store
from tsd.uid_table import rename
from tsd.uids import Uids

KINDS = {"metric": Kind.METRIC, "metrics": Kind.METRIC, "tagk": Kind.TAGK, "tagv": Kind.TAGV}
IN_URL = ("metric", "tagk", "tagv")
MOST_NAMES = 10_000  # of one request


def routes(
    store: Store,
    uid_table: str,
    uids: Uids,
    drop_caches: Callable[[], None],
    *,
    extra: bytes,
    meta: Mapping[str, Endpoint],
) -> dict[str, Endpoint]:
    """The endpoint. `extra` are characters that names may hold beside the usual ones; `meta` are the endpoints
    `uidmeta` and `tsmeta`."""

    async def assign(request: Request) -> Response:
        if request.method not in ("GET", "POST"):
            raise not_allowed(request.method)
        wanted = _lists_in_body(request) if request.method == "POST" else _lists_in_url(request)
        if not wanted:
            raise Refused(400, "Missing values to assign UIDs")
        if sum(map(len, wanted.values())) > MOST_NAMES:
            raise Refused(413, f"More than {MOST_NAMES} names to assign UIDs")
        found: dict[str, dict[str, str]] = {}
        for word, names in wanted.items():
            made, errors = await assigned(uids, word, names, extra)
            found[word] = made
            if errors:
                found[f"{word}_errors"] = errors
        ordered = {key: found[key] for key in java_map_order(found)}  # as OpenTSDB lists them
        return answer(ordered, 400 if any(key.endswith("_errors") for key in found) else 200)

    async def renamed(request: Request) -> Response:
        if request.method not in ("GET", "POST"):
            raise Refused(
                405, "Method not allowed", f"The HTTP method[{request.method}] is not permitted for this endpoint"
            )
        word, old, new = _names_of(request)
        error = await _rename(store, uid_table, word, old, new, extra)
        if error is not None:
            return answer({"result": "false", "error": error}, 400)
        drop_caches()
        return answer({"result": "true"})

    async def uid(request: Request) -> Response:
        match request.segments[1:2]:
            case ("assign",):
                return await assign(request)
            case ("rename",):
                return await renamed(request)
            case (word,) if word in meta:
                return await meta[word](request)
        raise Refused(501, "Other UID endpoints have not been implemented yet")

    return {"api/uid": uid}


def _lists_in_url(request: Request) -> dict[str, list[str]]:
    asked = {kind: request.param(kind) for kind in IN_URL}
    return {kind: value.split(",") for kind, value in asked.items() if value}


def _lists_in_body(request: Request) -> dict[str, list[str]]:
    members = object_of(request)
    for kind, names in members.items():
        if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
            raise unparsable(f"{kind}: got {type(names).__name__}, wanted an array of names")
    return members


async def assigned(uids: Uids, word: str, names: Sequence[str], extra: bytes) -> tuple[dict[str, str], dict[str, str]]:
    """New UIDs in hex by name, and why names got none by name."""
    kind = KINDS.get(word.lower())
    if kind is None:
        return {}, dict.fromkeys(names, "Unknown type name")
    good: dict[str, bytes] = {}
    made: dict[str, str] = {}
    errors: dict[str, str] = {}
    for name in names:
        if error := name_error(word, name, extra):
            errors[name] = error
        else:
            good[name] = encode_name(name)
    there = await uids.find(kind, good.values())
    fresh = {name: raw for name, raw in good.items() if isinstance(there[raw], NoSuchName)}
    given = await uids.find_or_assign(kind, fresh.values())
    for name, raw in good.items():
        uid = given[raw] if name in fresh else there[raw]
        if isinstance(uid, TsdError):
            errors[name] = str(uid)
        elif name in fresh:
            made[name] = uid.hex().upper()
        else:
            errors[name] = f"Name already exists with UID: {uid.hex().upper()}"
    return made, errors


def name_error(word: str, name: str, extra: bytes) -> str | None:
    """Why a name cannot be one; None where it can.

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
    """The kind as it was spelled, the old name and the new one; raises Refused."""
    if request.method == "POST":
        members: Mapping[str, Any] = object_of(request)
    else:
        members = {name: request.param(name) for name in (*IN_URL, "name")}
    kinds = [kind for kind in members if kind != "name" and text_in(members, kind)]
    new = text_in(members, "name")
    if not kinds or not new:
        raise Refused(400, "Missing necessary values to rename UID")
    return kinds[-1], text_in(members, kinds[-1]), new


async def _rename(store: Store, uid_table: str, word: str, old: str, new: str, extra: bytes) -> str | None:
    """Give a UID another name; why that could not be done. Raises StoreError."""
    kind = KINDS.get(word.lower())
    if kind is None:
        return "Unknown type name"
    if error := name_error(word, new, extra):
        return error
    try:
        before, after = encode_name(old), encode_name(new)
    except BadLine:
        return f'Name("{old}") does not exist'
    rows = await store.get(uid_table, [before, after], columns=[kind.id_column])
    if before not in rows:
        return f'Name("{old}") does not exist'
    if after in rows and rows[after][0].value != rows[before][0].value:
        width = len(rows[before][0].value)
        taken = show_signed(rows[after][0].value)
        return (
            f'When trying rename("{old}", "{new}") on UniqueId({uid_table}, {kind.value}, {width}): '
            f"new name already assigned ID={taken}"
        )
    try:
        await rename(store, uid_table, kind, before, after)
    except StoreError:
        raise
    except TsdError as error:  # somebody else was at it
        return str(error)
    return None
