"""conf/tsd.conf shows every key, with the default that the code has, and says why."""

import re
from pathlib import Path

from tsd.config import Config, Given, keys, load, read_settings
from tsd.properties import parse_properties

CONF = Path(__file__).parents[2] / "conf" / "tsd.conf"
SHOWN = re.compile(r"#(tsd\.[^ ]+) =(.*)")


def shown() -> dict[str, str]:
    return {match[1]: match[2].strip() for line in CONF.read_text().splitlines() if (match := SHOWN.fullmatch(line))}


def test_every_key_is_shown_with_its_default() -> None:
    assert set(shown()) == set(keys())
    config, ignored = read_settings(Given("conf", key, value) for key, value in shown().items())
    default = Config()
    assert ignored == []
    assert config.creates_metrics == default.creates_metrics
    for field in keys().values():
        if field.name != "auto_create_metrics":  # shown as it is on the embedded store
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
