"""Configuration files and command-line settings → a Config, or all errors in them at once.

OpenTSDB's keys without a field in Config are accepted and ignored, or refused if ignoring them would change what is
stored.

Settings may name a file that systemd hands to the service (LoadCredential=) as `credential:NAME`, or as `%d/NAME`.
Without systemd the name stays unresolved: commands in a shell read the same configuration and do not need the file.
"""

import difflib
import os
import re
import stat
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import Field, fields
from enum import Enum
from pathlib import Path
from types import MappingProxyType, UnionType
from typing import Any, NamedTuple, get_args, get_type_hints

from tsd.codec.names import Widths
from tsd.codec.opentsdb.rowkey import KeyLayout
from tsd.codec.putline import NameRules
from tsd.config.bigtable import ALIASES
from tsd.config.keys import Key
from tsd.config.layouts import LAYOUTS, NAME_CHARACTERS
from tsd.config.properties import read_properties
from tsd.config.settings import AUDIENCES, Backend, Config
from tsd.config.state_dir import absolute
from tsd.errors import BadConfig

# OpenTSDB's keys without effect here, by the reason. A key that ends with a dot is a prefix. No prefix has keys of
# tsd's own below it: a mistake in one of those must be an error.
_WITHOUT_EFFECT = {
    "tsd.storage.backend = hbase uses the gateways of tsd.storage.hbase.thrift, not ZooKeeper": """
    hbase. tsd.storage.hbase.zk_quorum tsd.storage.hbase.zk_basedir""",
    "reads of HBase and Bigtable need no tuning": """
    tsd.storage.hbase.prefetch_meta tsd.storage.hbase.scanner.maxNumRows tsd.query.multi_get.""",
    "settings of Bigtable are tsd.storage.bigtable.*": "google.bigtable.",
    "the append column is read, and never repaired": "tsd.core.repair_appends tsd.storage.repair_appends",
    "it belongs to tsd.storage.use_otsdb_timestamp, which must be off": """
    tsd.storage.use_max_value tsd.storage.get_date_tiered_compaction_start""",
    "there are no plugins": """
    tsd.core.plugin_path tsd.rpc.plugins tsd.http.rpc.plugins tsd.core.authentication.plugin tsd.addins.
    tsd.core.storage_exception_handler. tsd.timeseriesfilter. tsd.rtpublisher. tsd.uidfilter. tsd.search. tsd.startup.
    tsd.core.meta.cache.""",
    "sockets and threads need no tuning": """
    tsd.network.async_io tsd.network.worker_threads tsd.network.reuse_address tsd.network.tcp_no_delay
    tsd.network.keep_alive tsd.core.response.async tsd.core.response.worker.num""",
    "dates are read in the zone of the process: set its variable TZ": "tsd.core.timezone",
    "refused lines are always answered": "tsd.rpc.telnet.return_errors",
    "points may come in any order": "tsd.core.bulk.allow_out_of_order_timestamps",
    "names are kept in memory as they are used": """
    tsd.core.preload_uid_cache tsd.core.preload_uid_cache.max_entries tsd.uid.use_mode tsd.uid.lru.enable""",
    "compaction has a fixed bound": "tsd.storage.compaction.max_concurrent_flushes",
    "the setting is tsd.storage.flush_interval": "tsd.core.flushinterval",
    "the setting is tsd.rollups.agg_tag_key": "tsd.rollups.agg_tag",
    "OpenTSDB does not have it any more": "tsd.core.meta.enable_tracking",
    "the file of overrides is read at the start only": "tsd.query.limits.overrides.interval",
    "only the file of --config is read": "tsd.core.config tsd.core.config.include",
    "graphs need no folder and no gnuplot": "tsd.http.cachedir tsd.gnuplot.options.allowlist",
    "no files are unpacked": "tsd.ui.noexport",
    "settings of the log are tsd.log.*": "tsd.logback.",
    "no file of the process id is written": "tsd.process.",
}
OPENTSDB_ONLY = {key: reason for reason, names in _WITHOUT_EFFECT.items() for key in names.split()}

# OpenTSDB's switches that change access, or which points are stored and how: they must be off.
MUST_BE_OFF = {
    "tsd.storage.enable_appends": "tsd does not write the append column: it joins points in ordinary cells, which "
    "OpenTSDB reads",
    "tsd.storage.use_otsdb_timestamp": "the store assigns the timestamps of cells, and a query bounded by cell time "
    "would miss points",
    "tsd.timeseriesfilter.enable": "this version has no plugins, and would store the points that the filter rejects",
    "tsd.uidfilter.enable": "this version has no plugins, and would assign UIDs to names that the filter rejects",
}

# OpenTSDB's switches that are not supported, with the consequence, which the daemon logs at the start. They do not
# affect which points are stored, and many files have them.
UNSUPPORTED = {
    "tsd.rollups.split_query.enable": "a query reads either rollups or points",
    "tsd.core.meta.cache.enable": "no series is passed to the plugin",
    "tsd.core.meta.enable_tsuid_incrementing": "points are not counted in the meta table",
    "tsd.core.storage_exception_handler.enable": "no point is passed to the plugin: points that the store does not "
    "accept stay in the journal",
    "tsd.rtpublisher.enable": "no point is passed to the plugin",
    "tsd.search.enable": "nothing is passed to the plugin",
    "tsd.startup.enable": "the plugin does not run",
}


CREDENTIALS_FOLDER = "CREDENTIALS_DIRECTORY"  # systemd.exec(5)
CREDENTIAL_PREFIXES = ("credential:", "%d/")
CREDENTIAL_KEYS = frozenset(  # settings that may name a credential
    """
    tsd.auth.file tsd.tls.certificate tsd.tls.key tsd.tls.client_ca tsd.tls.client_crl tsd.query.limits.overrides.config
    tsd.storage.cassandra.password tsd.storage.cassandra.tls.ca tsd.storage.cassandra.tls.certificate
    tsd.storage.cassandra.tls.key tsd.storage.bigtable.credentials tsd.rollups.config tsd.core.histograms.config
    """.split()
)


def resolve_credential(text: str, environ: Mapping[str, str] = os.environ) -> str:
    """Return the path of the credential that a setting names, or the text if it names none or cannot be resolved.

    Raise ValueError for an invalid name.

    >>> resolve_credential("credential:tls.key", {"CREDENTIALS_DIRECTORY": "/run/credentials/tsd.service"})
    '/run/credentials/tsd.service/tls.key'
    >>> resolve_credential("%d/tls.key", {}), resolve_credential("/etc/tsd/tls.key", {})
    ('%d/tls.key', '/etc/tsd/tls.key')
    """
    name = credential_name(text)
    if name is None:
        return text
    if not name or "/" in name or name in (".", ".."):
        raise ValueError(f"got {text!r}, wanted the name of a credential, without a slash")
    folder = environ.get(CREDENTIALS_FOLDER)
    return str(Path(folder) / name) if folder else text


def credential_name(text: str) -> str | None:
    """Return the name of the credential that a setting names; None if it names none."""
    return next((text.removeprefix(prefix) for prefix in CREDENTIAL_PREFIXES if text.startswith(prefix)), None)


SEARCHED = (Path("tsd.conf"), Path("/etc/tsd/tsd.conf"))
_TRUE = ("true", "1", "yes")
_FALSE = ("false", "0", "no")
_SIZES = {"k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}
MAX_INTEGER = 2**63 - 1  # what compiled loops and RocksDB take
_CHOICES = {
    "tsd.storage.hbase.thrift.transport": ("buffered", "framed"),
    "tsd.storage.hbase.thrift.protocol": ("binary", "compact"),
    "tsd.storage.layout": LAYOUTS,
    "tsd.storage.cassandra.consistency": ("QUORUM", "LOCAL_QUORUM", "ALL"),
    "tsd.access.health": AUDIENCES,
    "tsd.access.metrics": AUDIENCES,
    "tsd.tls.minimum": ("1.2", "1.3"),
    "tsd.tls.client_certificate": ("optional", "required"),
    "tsd.log.level": ("debug", "info", "warning", "error"),
    "tsd.log.format": ("auto", "console", "json", "journald"),
}


Check = Callable[[Config], Iterator[tuple[set[str], str]]]  # yields errors, each with the keys that it is about


class Ignored(NamedTuple):
    """OpenTSDB's settings without effect."""

    keys: dict[str, str]  # with the reason
    unsupported: dict[str, str]  # switches that are on and not supported, with the consequence


class Given(NamedTuple):
    """One setting of a file or a command line."""

    where: str  # e.g. "tsd.conf, line 3"
    key: str
    value: str


class Repeated(NamedTuple):
    """A setting of a file that has no effect, because the file has its key again."""

    key: str
    where: str
    instead: str  # the place of the setting with effect


class Loaded(NamedTuple):
    """A configuration and its source."""

    config: Config
    source: Path | None
    ignored: Ignored
    repeated: Sequence[Repeated] = ()
    places: Mapping[str, str] = MappingProxyType({})  # of the settings with effect, e.g. "tsd.conf, line 3"

    @contextmanager
    def placed_problems(self) -> Iterator[None]:
        """Raise the block's problems of settings with the places of those settings. Each begins with its key."""
        try:
            yield
        except BadConfig as exc:
            places = [self.places.get(problem.partition(":")[0]) for problem in exc.problems]
            placed = zip(places, exc.problems, strict=True)
            raise BadConfig([f"{place}: {problem}" if place else problem for place, problem in placed]) from exc


def keys() -> dict[str, Field[Any]]:
    """Return the fields of Config by their keys, in order."""
    return {field.metadata["key"].name: field for field in fields(Config)}


def load(path: Path | None, overrides: Sequence[Given], checks: Sequence[Check]) -> Loaded:
    """Return the settings of a file and of `overrides`; the last one of a key counts. Raise BadConfig with all errors.

    With `path` None, read the first existing file of SEARCHED, if any. `checks` find contradictions between settings.
    """
    source = path or _searched()
    given: list[Given] = []
    unreadable: list[str] = []
    if source is not None:
        try:
            given = [Given(f"{source}, line {p.line}", p.key, p.value) for p in read_properties(source)]
        except OSError as exc:
            unreadable = [f"{source}: cannot be read: {exc.strerror}"]
    try:
        config, ignored = read_settings([*given, *overrides], checks)
    except BadConfig as exc:
        raise BadConfig(unreadable + exc.problems) from exc
    if unreadable:
        raise BadConfig(unreadable)
    places = {ALIASES.get(setting.key, setting.key): setting.where for setting in (*given, *overrides)}
    return Loaded(config, source, ignored, _repeated(given), places)


def _searched() -> Path | None:
    """Return the first existing file of SEARCHED. One of the working folder counts only if that folder is accessible;
    after `sudo -u tsd` it may be another user's."""
    for candidate in SEARCHED:
        try:
            if stat.S_ISREG(candidate.stat().st_mode):
                return candidate
        except (FileNotFoundError, NotADirectoryError):
            continue
        except OSError:
            if candidate.is_absolute():
                return candidate  # whose error is reported when it is read
    return None


def _repeated(given: Sequence[Given]) -> list[Repeated]:
    """Return the settings of a file that later ones override."""
    places = [(ALIASES.get(setting.key, setting.key), setting.where) for setting in given]
    last = dict(places)
    return [Repeated(key, where, last[key]) for key, where in places if where != last[key]]


def read_settings(given: Iterable[Given], checks: Sequence[Check]) -> tuple[Config, Ignored]:
    """Return the Config of settings, where later ones override earlier ones, and the ignored ones. Raise BadConfig."""
    settings = [setting._replace(key=ALIASES.get(setting.key, setting.key)) for setting in given]
    last = {setting.key: setting for setting in settings}
    problems: list[str] = []
    unparsed: set[str] = set()
    ignored = Ignored({}, {})
    values: dict[str, Any] = {}
    known = keys()
    types = get_type_hints(Config)
    for setting in settings:
        try:
            if setting.key in known:
                name = known[setting.key].name
                values[name] = _parse(known[setting.key].metadata["key"], types[name], setting.value)
            elif setting.key not in (*MUST_BE_OFF, *UNSUPPORTED):
                ignored.keys[setting.key] = _reason_to_ignore(setting.key, known)
            elif setting is last[setting.key]:
                _check_switch(setting, ignored)
        except ValueError as exc:
            problems.append(f"{setting.where}: {setting.key}: {exc}")
            unparsed.add(setting.key)
    config = Config(**values)
    problems += [
        _with_places(concerned, problem, last)
        for check in checks
        for concerned, problem in check(config)
        if not unparsed & concerned
    ]
    if problems:
        raise BadConfig(problems)
    return config, Ignored(dict(sorted(ignored.keys.items())), ignored.unsupported)


def _parse(key: Key, kind: Any, text: str) -> Any:
    """Return the value of a text. Raise ValueError with what was got and wanted."""
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
    if key.name in CREDENTIAL_KEYS:
        return resolve_credential(word)
    if key.name == "tsd.storage.path" and not word:
        raise ValueError(f"got {text!r}, wanted a folder")
    if re.search("[\0-\x08\n-\x1f\x7f\ud800-\udc7f\udd00-\udfff]", word):
        raise ValueError(f"got {text!r}, wanted text without control characters")
    if word not in _CHOICES.get(key.name, (word,)):
        raise ValueError(f"got {text!r}, wanted {' or '.join(_CHOICES[key.name])}")
    return word


def _parse_int(key: Key, word: str) -> int:
    """Return an integer within the key's bounds. Sizes in bytes may end with K, M, G or T (powers of 1024)."""
    factor = _SIZES.get(word[-1:].lower(), 1) if key.unit == "bytes" else 1
    digits = word[:-1] if factor > 1 else word
    if not (digits.isascii() and digits.lstrip("+-").isdigit()):
        raise ValueError(f"got {word!r}, wanted a whole number{' of ' + key.unit if key.unit else ''}")
    number = int(digits) * factor
    if key.low is not None and number < key.low:
        raise ValueError(f"got {word}, wanted {key.low} or more")
    high = MAX_INTEGER if key.high is None else key.high
    if number > high:
        raise ValueError(f"got {word}, wanted {high} or less")
    return number


def _check_switch(setting: Given, ignored: Ignored) -> None:
    """Record an unsupported switch of OpenTSDB that is on. Raise ValueError for one that must be off."""
    word = setting.value.strip()
    if setting.key in MUST_BE_OFF:
        if word.lower() not in (*_FALSE, ""):
            raise ValueError(f"got {setting.value!r}, but {MUST_BE_OFF[setting.key]}: remove the line")
    elif word.lower() in _TRUE:  # as in OpenTSDB, any other value is false
        ignored.unsupported[setting.key] = UNSUPPORTED[setting.key]
    else:
        ignored.keys[setting.key] = UNSUPPORTED[setting.key]


def _reason_to_ignore(key: str, known: Mapping[str, object]) -> str:
    """Return why a key of OpenTSDB has no effect. Raise ValueError for an unknown key."""
    for only, reason in OPENTSDB_ONLY.items():
        if key == only or (only.endswith(".") and key.startswith(only)):
            return reason
    whole = [only for only in OPENTSDB_ONLY if not only.endswith(".")]
    near = difflib.get_close_matches(key, [*known, *whole, *MUST_BE_OFF, *UNSUPPORTED], n=1, cutoff=0.6)
    raise ValueError("no such key" + (f"; did you mean {near[0]}?" if near else ""))


def _with_places(concerned: set[str], problem: str, last: Mapping[str, Given]) -> str:
    """Return a contradiction, which begins with its key, with the places of the settings that it is about.

    >>> _with_places({"b"}, "a: requires b", {"a": Given("tsd.conf, line 3", "a", ""), "b": Given("--set", "b", "")})
    'tsd.conf, line 3: a: requires b (--set: b)'
    """
    own = problem.partition(":")[0]
    where = f"{last[own].where}: " if own in last else ""
    others = ", ".join(f"{last[key].where}: {key}" for key in sorted(concerned - {own}) if key in last)
    return f"{where}{problem}" + (f" ({others})" if others else "")


def bigtable_emulator(config: Config, environ: Mapping[str, str] = os.environ) -> str:
    """Return host:port of the emulator, empty for the service. Raise ValueError.

    >>> bigtable_emulator(Config(), {"BIGTABLE_EMULATOR_HOST": "127.0.0.1:8086"})
    '127.0.0.1:8086'
    """
    text = config.bigtable_emulator or environ.get("BIGTABLE_EMULATOR_HOST", "")
    if text:
        _addresses(text)
    return text


def bigtable_address(config: Config) -> list[tuple[str, int]]:
    """Return host and port of the emulator. Raise ValueError if there is none."""
    return _addresses(bigtable_emulator(config))


def gateways(config: Config) -> list[tuple[str, int]]:
    """Return host and port of each Thrift gateway. Raise ValueError.

    >>> gateways(Config(thrift="a:9090, [::1]:9091"))
    [('a', 9090), ('::1', 9091)]
    """
    return _addresses(config.thrift)


def versions_gateways(config: Config) -> list[tuple[str, int]]:
    """Return host and port of each gateway of Thrift 2, none if there are none. Raise ValueError.

    >>> versions_gateways(Config(thrift2="")), versions_gateways(Config(thrift2="a:9091"))
    ([], [('a', 9091)])
    """
    return _addresses(config.thrift2) if config.thrift2.strip() else []


def cassandra_hosts(config: Config) -> list[tuple[str, int]]:
    """Return host and port of each contact point of Cassandra. Raise ValueError.

    >>> cassandra_hosts(Config(cassandra_hosts="a:9042"))
    [('a', 9042)]
    """
    return _addresses(config.cassandra_hosts)


def _addresses(text: str) -> list[tuple[str, int]]:
    """Return the addresses of a list. Raise ValueError."""
    found = []
    for word in filter(None, (part.strip() for part in text.split(","))):
        host, colon, port = word.rpartition(":")
        if not colon or not host or not port.isascii() or not port.isdigit() or not 0 < int(port) < 65536:
            raise ValueError(f"got {word!r}, wanted host:port")
        found.append((host.strip("[]"), int(port)))
    if not found:
        raise ValueError("got nothing, wanted host:port")
    return found


def key_layout(config: Config) -> KeyLayout:
    """Return the layout of row keys."""
    widths = Widths(config.width_metric, config.width_tagk, config.width_tagv)
    return KeyLayout(widths, config.salt_width, config.salt_buckets)


def name_rules(config: Config) -> NameRules:
    """Return the rules for legal names."""
    extra = NAME_CHARACTERS if config.has_heroic_tables else b""
    return NameRules(config.allow_specialchars.encode("latin-1") + extra, config.max_tags)


def state_folder(config: Config) -> Path:
    """Return the state folder as an absolute path."""
    return absolute(config.path)


def named_files(config: Config) -> list[Path]:
    """Return the files and folders that settings name, as absolute paths."""
    known = keys()
    named = [getattr(config, known[key].name) for key in sorted(CREDENTIAL_KEYS)]
    return [absolute(path) for path in (*named, config.journal_path, config.staticroot) if path]


def has_checked_store(config: Config) -> bool:
    """Return whether `tsd check-config` asks the store too: settings alone do not show whether it may be used."""
    return config.backend is not Backend.EMBEDDED


def lacks_static_files(config: Config) -> bool:
    """Return whether `tsd.http.staticroot` names no folder: then nothing below /s/ is found."""
    return bool(config.staticroot) and not os.path.isdir(config.staticroot)


def journal_folder(config: Config) -> Path:
    """Return the folder of the journal."""
    return absolute(config.journal_path) if config.journal_path else state_folder(config) / "journal"
