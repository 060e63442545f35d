"""Rules of retention as the settings spell them."""

import pytest

from tsd.config.loader import Given
from tsd.config.retention import parse_age, parse_rules
from tsd.daemon.settings import read_config
from tsd.errors import BadConfig

DAY_S = 86_400


@pytest.mark.parametrize(
    ("metric", "keep_s"),
    [
        ("sys.debug.x", 7 * DAY_S),
        ("sys.debug", 400 * DAY_S),  # the pattern is of the whole name
        ("app1.x", 48 * 3600),
        ("app3.x", 400 * DAY_S),
        ("audit", None),
        ("x=y", 365 * DAY_S),
    ],
)
def test_first_matching_rule_counts(metric: str, keep_s: int | None) -> None:
    rules = parse_rules(" sys.debug.* = 7d;app[12].?=48h; audit=forever; x=y=1y; *=400d; *=1h;")
    found = rules.find(metric)
    assert found is not None
    assert found.keep_s == keep_s


def test_metric_without_rule_is_kept() -> None:
    assert parse_rules("a=1d").find("b") is None
    assert not parse_rules("").expires
    assert not parse_rules("*=forever").expires


def test_rules_of_rollups_may_name_an_interval() -> None:
    rules = parse_rules("1m:sys.*=30d; 1m:*=60d; *=5y", intervals=True)
    found = [rules.find("sys.x", "1m"), rules.find("x", "1m"), rules.find("sys.x", "1h")]
    assert [rule and rule.text for rule in found] == ["1m:sys.*=30d", "1m:*=60d", "*=5y"]


@pytest.mark.parametrize("text", ["", "7", "d", "7m", "-1d", "0d", "1.5d", "7 d", "Forever"])
def test_other_ages_are_refused(text: str) -> None:
    with pytest.raises(ValueError, match="wanted"):
        parse_age(text)


@pytest.mark.parametrize(
    ("key", "value"),
    [
        ("tsd.retention.rules", "*"),
        ("tsd.retention.rules", "=7d"),
        ("tsd.retention.rules", "a=7d; b=soon"),
        ("tsd.retention.rollups", "1h:*=x"),
        ("tsd.retention.annotations", "*=7d"),
        ("tsd.retention.series", "soon"),
    ],
)
def test_malformed_rules_are_refused_at_start(key: str, value: str) -> None:
    with pytest.raises(BadConfig) as caught:
        read_config([Given("test", key, value)])
    [problem] = caught.value.problems
    assert problem.startswith(f"test: {key}: ")
