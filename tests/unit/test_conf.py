"""conf/tsd.conf shows every key, with the default that the code has, and says why."""

import re
from pathlib import Path

import pytest

from tsd.codec.rowkey import most_tags, row_key
from tsd.config import Config, Given, Ignored, keys, layout, load, read_settings
from tsd.errors import BadConfig, StoreError
from tsd.opentsdb_keys import MUST_BE_OFF, NOT_DONE
from tsd.properties import parse_properties
from tsd.store.limits import check_row

CONF = Path(__file__).parents[2] / "conf" / "tsd.conf"
SHOWN = re.compile(r"#(tsd\.[^ ]+) =(.*)")


def shown() -> dict[str, str]:
    return {match[1]: match[2].strip() for line in CONF.read_text().splitlines() if (match := SHOWN.fullmatch(line))}


def test_every_key_is_shown_with_its_default() -> None:
    assert set(shown()) == set(keys())
    config, ignored = read_settings(Given("conf", key, value) for key, value in shown().items())
    default = Config()
    assert ignored == Ignored([], {})
    assert config.creates_metrics == default.creates_metrics
    assert config.indexes_series == default.indexes_series
    for field in keys().values():
        if field.name not in (
            "anonymous",
            "auto_create_metrics",
            "tls_hsts_s",
            "series_index",
            "canary",
        ):  # shown as they are on the embedded store
            assert getattr(config, field.name) == getattr(default, field.name), field.name


def test_every_key_or_group_has_its_reason() -> None:
    explained = False
    for line in CONF.read_text().splitlines():
        if SHOWN.fullmatch(line):
            assert explained, line
        else:
            explained = line.startswith("# ") and not line.startswith("# ---")


def test_as_it_stands_it_changes_nothing() -> None:
    assert parse_properties(CONF.read_text()) == []
    assert load(CONF).config == Config()


def refusal(**settings: str) -> list[str]:
    """What is said of settings; a key's dots are two underscores."""
    with pytest.raises(BadConfig) as caught:
        read_settings(Given("test", key.replace("__", "."), value) for key, value in settings.items())
    return caught.value.problems


@pytest.mark.parametrize("key", MUST_BE_OFF)
def test_what_would_store_other_points_or_let_anybody_in_must_be_off(key: str) -> None:
    wanted = f"test: {key}: got 'True', but {MUST_BE_OFF[key]}: take the line out"
    with pytest.raises(BadConfig) as caught:
        read_settings([Given("test", key, "True"), Given("test", "tsd.mode", "?")])
    assert caught.value.problems == [wanted, "test: tsd.mode: got '?', wanted rw or ro or wo"]
    for off in ("false", "0", "no", ""):
        assert read_settings([Given("file", key, "true"), Given("--set", key, off)]) == (Config(), Ignored([], {}))


@pytest.mark.parametrize("key", NOT_DONE)
def test_what_happens_beside_the_points_is_named_where_it_is_on(key: str) -> None:
    for on in ("true", "Yes", "1"):
        assert read_settings([Given("test", key, on)])[1] == Ignored([], {key: NOT_DONE[key]})
    assert read_settings([Given("test", key, "true"), Given("test", key, "off")])[1] == Ignored([key], {})


def test_special_characters_are_of_the_files_own_alphabet() -> None:
    """The daemon fell over them at the start, after check-config had found no problem."""
    wanted = "tsd.core.tag.allow_specialchars: got '€', wanted characters of ISO-8859-1 only"
    assert refusal(tsd__core__tag__allow_specialchars="€") == [wanted]
    assert read_settings([Given("test", "tsd.core.tag.allow_specialchars", ":é")])[0].allow_specialchars == ":é"


def test_no_row_key_can_become_too_long() -> None:
    """A window with a longer one could never be stored."""
    told = "tsd.storage.max_tags: got {}, wanted {} or less: no row key has room for more tags"
    assert refusal(tsd__storage__max_tags="5461") == [told.format(5461, 5460)]
    wide = {"tsd__storage__uid__width__tagk": "8", "tsd__storage__uid__width__tagv": "8"}
    assert refusal(tsd__storage__max_tags="5460", tsd__storage__salt__width="8", **wide) == [told.format(5460, 2047)]
    assert refusal(tsd__storage__max_tags="9999", tsd__storage__uid__width__tagk="1x") == [
        "test: tsd.storage.uid.width.tagk: got '1x', wanted a whole number of bytes"
    ]
    for settings in ({}, {"tsd.storage.salt.width": "3", "tsd.storage.uid.width.tagk": "1"}):
        config, _ = read_settings(Given("test", key, value) for key, value in settings.items())
        pairs = most_tags(layout(config)) * bytes(config.width_tagk + config.width_tagv)
        check_row(row_key(layout(config), bytes(config.width_metric), 0, pairs))
        with pytest.raises(StoreError):
            check_row(row_key(layout(config), bytes(config.width_metric), 0, pairs + bytes(6)))
