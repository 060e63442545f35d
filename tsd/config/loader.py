"""Configuration files and command-line settings → a Config, or everything that is wrong with them at once."""

import difflib
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import Field, fields
from enum import Enum
from pathlib import Path
from types import UnionType
from typing import Any, NamedTuple, get_args, get_type_hints

from tsd import credentials
from tsd.access import configured
from tsd.access.needs import PROBES
from tsd.codec.rowkey import Layout, most_tags
from tsd.codec.uid import Widths
from tsd.errors import BadConfig
from tsd.limit_settings import LEAST_REJECTED, exemptions
from tsd.opentsdb_keys import MUST_BE_OFF, NOT_DONE, OPENTSDB_ONLY
from tsd.properties import parse_properties
from tsd.setting import Key
from tsd.settings import Backend, Config, Mode

__all__ = ["Backend", "Config", "Loaded", "Mode", "gateways", "keys", "layout", "load", "read_settings"]

SEARCHED = (Path("tsd.conf"), Path("/etc/tsd/tsd.conf"))
_TRUE = ("true", "1", "yes")
_FALSE = ("false", "0", "no")
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
_CHOICES = {
    "tsd.storage.hbase.thrift.transport": ("buffered", "framed"),
    "tsd.storage.hbase.thrift.protocol": ("binary", "compact"),
    "tsd.access.health": tuple(PROBES),
    "tsd.access.metrics": tuple(PROBES),
    "tsd.tls.minimum": ("1.2", "1.3"),
    "tsd.tls.client_certificate": ("optional", "required"),
    "tsd.log.level": ("debug", "info", "warning", "error"),
    "tsd.log.format": ("auto", "console", "json", "journald"),
}


class Ignored(NamedTuple):
    """Settings of OpenTSDB's that change nothing here."""

    keys: list[str]  # those that nobody will miss
    not_done: dict[str, str]  # those that are on, and what does not happen


class Loaded(NamedTuple):
    """What was read, and what of it has no meaning here."""

    config: Config
    source: Path | None
    ignored: Ignored


class Given(NamedTuple):
    """One setting as somebody wrote it."""

    where: str  # e.g. "tsd.conf, line 3"
    key: str
    value: str


def keys() -> dict[str, Field[Any]]:
    """The fields of Config by their keys, in order."""
    return {field.metadata["key"].name: field for field in fields(Config)}


def load(path: Path | None, overrides: Sequence[Given] = ()) -> Loaded:
    """The configuration in `path` (None: the first of SEARCHED that is there, or nothing), then `overrides`, of which
    later ones win. Raises BadConfig with every problem."""
    source = path or next((candidate for candidate in SEARCHED if candidate.is_file()), None)
    given: list[Given] = []
    unread: list[str] = []
    if source is not None:
        try:
            text = source.read_text("latin-1")
            given = [Given(f"{source}, line {p.line}", p.key, p.value) for p in parse_properties(text)]
        except OSError as exc:
            unread = [f"{source}: cannot be read: {exc.strerror}"]
    try:
        config, ignored = read_settings([*given, *overrides])
    except BadConfig as exc:
        raise BadConfig(unread + exc.problems) from exc
    if unread:
        raise BadConfig(unread)
    return Loaded(config, source, ignored)


def read_settings(given: Iterable[Given]) -> tuple[Config, Ignored]:
    """The Config of some settings, of which later ones win, and what of them changes nothing; raises BadConfig."""
    settings = list(given)
    last = {setting.key: setting for setting in settings}
    problems: list[str] = []
    unclear: set[str] = set()
    ignored = Ignored([], {})
    values: dict[str, Any] = {}
    known = keys()
    types = get_type_hints(Config)
    for setting in settings:
        try:
            if setting.key in known:
                name = known[setting.key].name
                values[name] = _parse(known[setting.key].metadata["key"], types[name], setting.value)
            elif setting.key not in (*MUST_BE_OFF, *NOT_DONE):
                _check_foreign(setting.key, known)
                ignored.keys.append(setting.key)
            elif setting is last[setting.key]:
                _look_at_switch(setting, ignored)
        except ValueError as exc:
            problems.append(f"{setting.where}: {setting.key}: {exc}")
            unclear.add(setting.key)
    config = Config(**values)
    problems += [problem for concerned, problem in _contradictions(config) if not unclear & concerned]
    if problems:
        raise BadConfig(problems)
    return config, Ignored(sorted(set(ignored.keys)), ignored.not_done)


def _parse(key: Key, kind: Any, text: str) -> Any:
    """The value a text stands for; raises ValueError with what was got and wanted."""
    if isinstance(kind, UnionType):
        kind = next(part for part in get_args(kind) if part is not type(None))
    word = text.strip()
    if kind is bool:
        if word.lower() not in _TRUE + _FALSE:
            raise ValueError(f"got {text!r}, wanted true or false")
        return word.lower() in _TRUE
    if kind is int:
        return _parse_int(key, word)
    if issubclass(kind, Enum):
        if word not in [str(choice.value) for choice in kind]:
            raise ValueError(f"got {text!r}, wanted {' or '.join(str(choice.value) for choice in kind)}")
        return kind(word)
    if key.name in credentials.KEYS:
        return credentials.resolved(word)
    if word not in _CHOICES.get(key.name, (word,)):
        raise ValueError(f"got {text!r}, wanted {' or '.join(_CHOICES[key.name])}")
    return word


def _parse_int(key: Key, word: str) -> int:
    """An integer within the key's bounds; sizes in bytes may end with K, M, G or T (powers of 1024)."""
    factor = _SIZES.get(word[-1:].lower(), 1) if key.unit == "bytes" else 1
    digits = word[:-1] if factor > 1 else word
    if not (digits.isascii() and digits.lstrip("+-").isdigit()):
        raise ValueError(f"got {word!r}, wanted a whole number{' of ' + key.unit if key.unit else ''}")
    number = int(digits) * factor
    if key.low is not None and number < key.low:
        raise ValueError(f"got {word}, wanted {key.low} or more")
    if key.high is not None and number > key.high:
        raise ValueError(f"got {word}, wanted {key.high} or less")
    return number


def _look_at_switch(setting: Given, ignored: Ignored) -> None:
    """Note what a switch of OpenTSDB's leaves undone. Raises ValueError for one that must be off and is not."""
    word = setting.value.strip()
    if setting.key in MUST_BE_OFF:
        if word.lower() not in (*_FALSE, ""):
            raise ValueError(f"got {setting.value!r}, but {MUST_BE_OFF[setting.key]}: take the line out")
    elif word.lower() in _TRUE:  # as OpenTSDB has it: anything else is false
        ignored.not_done[setting.key] = NOT_DONE[setting.key]
    else:
        ignored.keys.append(setting.key)


def _check_foreign(key: str, known: Mapping[str, object]) -> None:
    """Raise ValueError for a key that nobody knows."""
    if any(key == only or (only.endswith(".") and key.startswith(only)) for only in OPENTSDB_ONLY):
        return
    near = difflib.get_close_matches(key, [*known, *OPENTSDB_ONLY, *MUST_BE_OFF, *NOT_DONE], n=1, cutoff=0.6)
    raise ValueError("no such key" + (f"; did you mean {near[0]}?" if near else ""))


def _contradictions(config: Config) -> Iterator[tuple[set[str], str]]:
    """What single settings cannot tell: the keys that it is about, and a sentence."""
    yield from configured.contradictions(config)
    try:
        gateways(config)
    except ValueError as exc:
        yield set(), f"tsd.storage.hbase.thrift: {exc}"
    try:
        config.allow_specialchars.encode("latin-1")
    except UnicodeEncodeError:
        got = config.allow_specialchars
        yield set(), f"tsd.core.tag.allow_specialchars: got {got!r}, wanted characters of ISO-8859-1 only"
    try:
        exemptions(config.quota_exempt)
    except ValueError as exc:
        yield set(), f"tsd.quota.exempt: {exc}; wanted networks as 10.0.0.0/8, and accounts as @NAME"
    if 0 < config.rejected_bytes < LEAST_REJECTED:
        wanted = f"got {config.rejected_bytes}, wanted {LEAST_REJECTED} or more, or 0"
        yield {"tsd.rejected.max_bytes"}, f"tsd.rejected.max_bytes: {wanted}"
    tables = [config.data_table, config.uid_table, config.tree_table, config.meta_table]
    if len(set(tables)) != len(tables) or "" in tables:
        yield set(), f"tsd.storage.hbase.*_table: got {', '.join(tables)}, wanted four different names"
    widths = {f"tsd.storage.uid.width.{kind}" for kind in ("metric", "tagk", "tagv")}
    if config.width_metric > 7 and config.random_metrics:
        yield widths, "tsd.core.uid.random_metrics: wants tsd.storage.uid.width.metric to be 7 or less"
    most = most_tags(layout(config))
    if config.max_tags > most:
        yield (
            {"tsd.storage.max_tags", "tsd.storage.salt.width", *widths},
            f"tsd.storage.max_tags: got {config.max_tags}, wanted {most} or less: no row key has room for more tags",
        )


def gateways(config: Config) -> list[tuple[str, int]]:
    """Host and port of each Thrift gateway; raises ValueError.

    >>> gateways(Config(thrift="a:9090, [::1]:9091"))
    [('a', 9090), ('::1', 9091)]
    """
    found = []
    for word in filter(None, (part.strip() for part in config.thrift.split(","))):
        host, colon, port = word.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"got {word!r}, wanted host:port")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ValueError("got nothing, wanted host:port")
    return found


def layout(config: Config) -> Layout:
    """How row keys are built."""
    widths = Widths(config.width_metric, config.width_tagk, config.width_tagv)
    return Layout(widths, config.salt_width, config.salt_buckets)


def state_folder(config: Config) -> Path:
    """The state folder, as an absolute path."""
    return Path(os.path.abspath(config.path))


def journal_folder(config: Config) -> Path:
    """The journal's folder."""
    return Path(os.path.abspath(config.journal_path)) if config.journal_path else state_folder(config) / "journal"
