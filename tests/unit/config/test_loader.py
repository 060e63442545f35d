"""Reading settings: conf/tsd.conf, errors, OpenTSDB's keys, and credentials of systemd."""

import errno
import os
import re
from collections.abc import Iterator
from pathlib import Path

import pytest
import trio

from tests.running import running
from tsd.codec.opentsdb.rowkey import most_tags, row_key
from tsd.config.loader import (
    CREDENTIAL_KEYS,
    MUST_BE_OFF,
    OPENTSDB_ONLY,
    UNSUPPORTED,
    Given,
    Ignored,
    key_layout,
    keys,
    resolve_credential,
)
from tsd.config.properties import parse_properties
from tsd.config.settings import Config, Mode
from tsd.config.template import template
from tsd.daemon.settings import load_config, read_config
from tsd.errors import BadConfig, StoreError
from tsd.store.rules import check_row

CONF = Path(__file__).parents[3] / "conf" / "tsd.conf"
SHOWN = re.compile(r"#(tsd\.[^ ]+) =(.*)")


def test_conf_file_is_generated_from_the_settings() -> None:
    assert CONF.read_text() == template()


def test_conf_file_shows_every_default() -> None:
    shown = {match[1]: match[2] for line in CONF.read_text().splitlines() if (match := SHOWN.fullmatch(line))}
    assert shown.keys() == keys().keys()
    config, ignored = read_config(Given("conf", key, value.strip()) for key, value in shown.items())
    default = Config()
    assert ignored == Ignored({}, {})
    assert config.creates_metrics == default.creates_metrics
    assert config.indexes_series == default.indexes_series
    for field in keys().values():
        if field.default is not None:  # other defaults depend on other settings
            assert getattr(config, field.name) == field.default, field.name


def test_every_setting_has_a_text() -> None:
    assert [key for key, field in keys().items() if not field.metadata["key"].doc.endswith((".", ".)"))] == []


def test_unchanged_conf_file_gives_the_defaults() -> None:
    assert parse_properties(CONF.read_text()) == []
    assert load_config(CONF).config == Config()


def test_mark_of_byte_order_at_the_start_is_left_out(tmp_path: Path) -> None:
    """Regression: editors of Windows write one, and it was taken as a part of the first key."""
    file = tmp_path / "tsd.conf"
    file.write_bytes(b"\xef\xbb\xbftsd.mode =\tro\r\n")
    assert load_config(file).config.mode is Mode.READ_ONLY


@pytest.mark.difference(
    "configuration-charset",
    topic="commands",
    theirs="A configuration file is read as ISO-8859-1, so that a path in UTF-8 names another folder",
    ours="It is read as UTF-8, or as ISO-8859-1 if it is not valid UTF-8",
)
@pytest.mark.parametrize("charset", ["utf-8", "iso-8859-1"])
def test_file_may_be_in_utf8_or_latin1(charset: str, tmp_path: Path) -> None:
    file = tmp_path / "tsd.conf"
    file.write_bytes("# Für Zürich\ntsd.storage.path = /data/Zürich\\u0021".encode(charset))
    assert load_config(file).config.path == "/data/Zürich!"


@pytest.fixture
def unprivileged() -> Iterator[None]:
    """A user who may not open other users' files."""
    user = os.geteuid()
    if user == 0:
        os.seteuid(65534)
    yield
    os.seteuid(user)


def test_file_in_a_working_folder_without_access_is_not_looked_for(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    """Regression: `sudo -u tsd tsd top` failed in root's folder."""
    monkeypatch.setattr("tsd.config.loader.SEARCHED", (Path("tsd.conf"), Path("/nothing/tsd.conf")))
    folder = tmp_path / "hidden"
    folder.mkdir()
    monkeypatch.chdir(folder)
    folder.chmod(0)
    request.getfixturevalue("unprivileged")
    assert load_config(None).source is None


def test_hidden_file_for_all_users_is_an_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    (tmp_path / "hidden").mkdir(mode=0)
    file = tmp_path / "hidden" / "tsd.conf"
    monkeypatch.setattr("tsd.config.loader.SEARCHED", (file,))
    request.getfixturevalue("unprivileged")
    with pytest.raises(BadConfig, match=f"{file}: .*{os.strerror(errno.EACCES)}"):
        load_config(None)


def refusal(**settings: str) -> list[str]:
    """Return the errors of settings; in a key, two underscores stand for a dot."""
    with pytest.raises(BadConfig) as caught:
        read_config(Given("test", key.replace("__", "."), value) for key, value in settings.items())
    return caught.value.problems


@pytest.mark.parametrize("key", MUST_BE_OFF)
def test_switches_that_change_points_must_be_off(key: str) -> None:
    with pytest.raises(BadConfig) as caught:
        read_config([Given("test", key, "True"), Given("test", "tsd.mode", "?")])
    first, second = caught.value.problems
    assert first.startswith(f"test: {key}: got 'True', ")
    assert MUST_BE_OFF[key] in first
    assert second.startswith("test: tsd.mode: got '?', wanted ")
    for off in ("false", "0", "no", ""):
        assert read_config([Given("file", key, "true"), Given("--set", key, off)]) == (Config(), Ignored({}, {}))


@pytest.mark.parametrize("key", UNSUPPORTED)
def test_unsupported_switches_are_named_if_on(key: str) -> None:
    for on in ("true", "Yes", "1"):
        assert read_config([Given("test", key, on)])[1] == Ignored({}, {key: UNSUPPORTED[key]})
    off = read_config([Given("test", key, "true"), Given("test", key, "off")])[1]
    assert off == Ignored({key: UNSUPPORTED[key]}, {})


def test_special_characters_must_be_latin1() -> None:
    """Regression: the daemon failed at the start, although check-config found no error."""
    [problem] = refusal(tsd__core__tag__allow_specialchars="€")
    assert problem.startswith("test: tsd.core.tag.allow_specialchars: got '€', ")
    assert read_config([Given("test", "tsd.core.tag.allow_specialchars", ":é")])[0].allow_specialchars == ":é"


@pytest.mark.parametrize("name", ["tsdb", "tsdb-uid", ""])
def test_series_index_has_a_table_of_its_own(name: str) -> None:
    """Regression: on HBase it shared a table with points; on the embedded store the start failed without the key's
    name."""
    [problem] = refusal(tsd__query__series_table=name)
    assert problem.startswith(f"test: tsd.query.series_table: got {name!r}, wanted ")
    given = {"tsd.query.series_table": name, "tsd.query.series_index": "false"}
    assert read_config(Given("test", key, value) for key, value in given.items())[0].series_table == name


@pytest.mark.parametrize("key", ["tsd.ingest.max_series", "tsd.storage.cache", "tsd.network.backlog"])
def test_integers_fit_into_machine_words(key: str) -> None:
    """Regression: the daemon failed at the start, or closed every connection that sent lines."""
    [problem] = refusal(**{key.replace(".", "__"): str(2**63)})
    assert problem.startswith(f"test: {key}: got {2**63}, wanted ")
    read_config([Given("test", "tsd.ingest.max_series", str(2**63 - 1))])


@pytest.mark.parametrize("key", ["tsd.storage.path", "tsd.http.request.cors_headers", "tsd.network.bind"])
@pytest.mark.parametrize("text", ["a\0b", "a\nb", "a\x7f", "a\ud800"])
def test_control_characters_are_refused(key: str, text: str) -> None:
    """Regression: the daemon failed at the start, or closed the connections of browsers without an answer."""
    [problem] = refusal(**{key.replace(".", "__"): text})
    assert problem.startswith(f"test: {key}: got {text!r}, wanted ")
    undecodable = os.fsdecode(b"/data/Z\xfcrich")  # the name of a folder may have any bytes
    assert read_config([Given("test", "tsd.storage.path", undecodable)])[0].path == undecodable


@pytest.mark.parametrize("part", ["", "store", "refused", "rejected/below"])
def test_journal_has_a_folder_of_its_own(part: str, tmp_path: Path) -> None:
    """Regression: an interrupted restoration removed the folder of its journal, so the whole state folder."""
    (tmp_path / "link").symlink_to(tmp_path / "state")
    for folder in (tmp_path / "state" / part, tmp_path / "link" / part):
        given = {"tsd__storage__path": str(tmp_path / "state"), "tsd__journal__path": str(folder)}
        [problem] = refusal(**given)
        assert problem.startswith("test: tsd.journal.path: ")
    for own in ("journal", "wal", "stored"):
        given = {"tsd.storage.path": str(tmp_path / "state"), "tsd.journal.path": str(tmp_path / "state" / own)}
        read_config(Given("test", key, value) for key, value in given.items())


@pytest.mark.parametrize("key", [key for key in keys() if key.startswith("tsd.")])
def test_mistake_in_the_last_part_of_a_key_is_an_error(key: str) -> None:
    [problem] = refusal(**{f"{key}x".replace(".", "__"): "1"})
    assert "no such key" in problem
    assert f"did you mean {key}?" in problem


def test_ignored_settings_have_a_reason() -> None:
    given = [Given("test", f"{key}x" if key.endswith(".") else key, "1") for key in OPENTSDB_ONLY]
    ignored = read_config(given)[1]
    assert ignored.keys == {setting.key: OPENTSDB_ONLY[key] for setting, key in zip(given, OPENTSDB_ONLY, strict=True)}
    assert all(ignored.keys.values())


@pytest.mark.parametrize("key", ["hbase", "tsd.addin", "tsd.proces"])
def test_prefix_of_keys_is_not_suggested(key: str) -> None:
    [problem] = refusal(**{key.replace(".", "__"): "1"})
    assert key in problem
    assert not problem.endswith(".?")


def test_place_of_the_setting_is_put_before_a_problem_that_is_found_later(tmp_path: Path) -> None:
    file = tmp_path / "tsd.conf"
    file.write_text("tsd.mode = rw\ntsd.rollups.config = x.json\ntsd.network.bind = a\n")
    loaded = load_config(file, [Given("--set", "tsd.network.bind", "b")])
    found = ["tsd.rollups.config: no", "tsd.network.bind: no", "tsd.mode = rw", "tsd.auth.file: no"]
    with pytest.raises(BadConfig) as caught, loaded.placed_problems():
        raise BadConfig(found)
    assert caught.value.problems == [f"{file}, line 2: {found[0]}", f"--set: {found[1]}", *found[2:]]


def test_all_origins_are_allowed_alone() -> None:
    [problem] = refusal(tsd__http__request__cors_domains="*,http://a")
    assert problem.startswith("test: tsd.http.request.cors_domains: got *,http://a, wanted * alone")
    assert read_config([Given("test", "tsd.http.request.cors_domains", "*")])[0].cors_domains == "*"


def test_contradiction_names_the_place_of_each_setting_that_it_is_about(tmp_path: Path) -> None:
    file = tmp_path / "tsd.conf"
    file.write_text("tsd.mode = rw\ntsd.storage.backend = cassandra\n")
    short = Given("--set", "tsd.storage.compaction.span_age", "199")
    with pytest.raises(BadConfig) as caught:
        load_config(file, [short, Given("--data", "tsd.storage.path", "x")])
    [problem] = caught.value.problems
    assert problem.startswith(f"--set: {short.key}: ")
    assert f"{file}, line 2" in problem
    assert "--data" not in problem
    file.write_text("\n\ntsd.tls.required = true\n")
    with pytest.raises(BadConfig) as caught:
        load_config(file)
    assert [problem.split(": ")[:2] for problem in caught.value.problems] == [[f"{file}, line 3", "tsd.tls.required"]]


def test_max_tags_is_limited_by_the_row_key() -> None:
    """A row with a longer key could never be stored."""
    [problem] = refusal(tsd__storage__max_tags="5461")
    assert problem.startswith("test: tsd.storage.max_tags: got 5461, wanted 5460 or less")
    wide = {"tsd__storage__uid__width__tagk": "8", "tsd__storage__uid__width__tagv": "8"}
    [problem] = refusal(tsd__storage__max_tags="5460", tsd__storage__salt__width="8", **wide)
    assert problem.startswith("test: tsd.storage.max_tags: got 5460, wanted 2047 or less")
    [problem] = refusal(tsd__storage__max_tags="9999", tsd__storage__uid__width__tagk="1x")
    assert problem.startswith("test: tsd.storage.uid.width.tagk: got '1x', ")
    for settings in ({}, {"tsd.storage.salt.width": "3", "tsd.storage.uid.width.tagk": "1"}):
        config, _ = read_config(Given("test", key, value) for key, value in settings.items())
        pairs = most_tags(key_layout(config)) * bytes(config.width_tagk + config.width_tagv)
        check_row(row_key(key_layout(config), bytes(config.width_metric), 0, pairs))
        with pytest.raises(StoreError):
            check_row(row_key(key_layout(config), bytes(config.width_metric), 0, pairs + bytes(6)))


@pytest.mark.parametrize("text", ["credential:tls.key", "%d/tls.key"])
def test_credential_is_resolved(monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    monkeypatch.setenv("CREDENTIALS_DIRECTORY", "/run/credentials/tsd.service")
    config, _ = read_config([Given("test", "tsd.tls.key", text), Given("test", "tsd.tls.certificate", "a.pem")])
    assert (config.tls_key, config.tls_certificate) == ("/run/credentials/tsd.service/tls.key", "a.pem")


@pytest.mark.parametrize("text", ["credential:", "credential:..", "%d/../shadow", "credential:a/b"])
def test_credential_path_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match="credential"):
        resolve_credential(text, {"CREDENTIALS_DIRECTORY": "/run/credentials/tsd.service"})


def test_other_settings_name_no_credentials() -> None:
    assert keys().keys() >= CREDENTIAL_KEYS
    assert read_config([Given("test", "tsd.core.tag.allow_specialchars", "%d/")])[0].allow_specialchars == "%d/"


async def test_missing_credentials_stop_a_daemon_only(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("CREDENTIALS_DIRECTORY", raising=False)
    named = {"tsd.auth.file": "credential:tokens"}
    assert read_config(Given("test", *item) for item in named.items())[0] == Config(auth_file="credential:tokens")
    with trio.fail_after(60), pytest.raises(BaseExceptionGroup) as caught:
        async with running(tmp_path / "state", named):
            raise AssertionError("it runs")
    [error] = caught.value.exceptions
    assert isinstance(error, BadConfig)
    assert [problem.split(":")[0] for problem in error.problems] == ["tsd.auth.file"]


@pytest.mark.parametrize(
    ("layout", "key", "value"),
    [
        ("kairosdb", "rules", "*=7d"),
        *(
            (layout, key, value)
            for layout in ("kairosdb", "heroic", "tall")
            for key, value in (("rollups", "*@1h=30d"), ("annotations", "7d"), ("series", "7d"))
        ),
    ],
)
def test_retention_without_effect_is_refused(layout: str, key: str, value: str) -> None:
    given = {"tsd.storage.backend": "cassandra", "tsd.storage.layout": layout, f"tsd.retention.{key}": value}
    with pytest.raises(BadConfig) as caught:
        read_config(Given("test", name, text) for name, text in given.items())
    assert any(f"tsd.retention.{key}: " in problem for problem in caught.value.problems)


def test_span_age_is_more_than_the_clocks_may_differ() -> None:
    on_cassandra = [Given("test", "tsd.storage.backend", "cassandra")]
    short = Given("test", "tsd.storage.compaction.span_age", "199")
    with pytest.raises(BadConfig) as caught:
        read_config([*on_cassandra, short])
    [problem] = caught.value.problems
    assert "tsd.storage.compaction.span_age: got 199, wanted 200 or more" in problem
    for limit_ms in ("0", "49750"):
        read_config([*on_cassandra, short, Given("test", "tsd.storage.cassandra.clock_limit", limit_ms)])
    read_config([short])
