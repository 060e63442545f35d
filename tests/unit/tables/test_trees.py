"""Trees: rules, and where they put series."""

import pytest

from tests.unit.tables.endpoints import NOW_MS, World, make_world
from tsd.api import tree
from tsd.codec.metadata import Rule, RuleKind
from tsd.codec.names import Kind
from tsd.tables.opentsdb.trees import TreeBuilder, TreeTable
from tsd.tables.tree_rules import BadRule, NamedSeries, check_rule, place

SERIES = NamedSeries(
    "000001000001000001",
    "sys.cpu.user",
    [("host", "web01.lga"), ("cpu", "0")],
    {"owner": "ops"},
    {"host": {"sort": "h"}},
    {"host": {"rack": "r7"}},
)


@pytest.mark.parametrize(
    ("rules", "path"),
    [
        ([Rule(RuleKind.METRIC, 1)], ["sys.cpu.user"]),
        ([Rule(RuleKind.METRIC, 1, separator=r"\.")], ["sys", "cpu", "user"]),
        ([Rule(RuleKind.METRIC_CUSTOM, 1, custom_field="owner")], ["ops"]),
        ([Rule(RuleKind.TAGK_CUSTOM, 1, field="host", custom_field="sort")], ["h"]),
        ([Rule(RuleKind.TAGV_CUSTOM, 1, field="host", custom_field="rack")], ["r7"]),
        ([Rule(RuleKind.TAGK, 1, field="host", regex=r".*\.(.*)", regex_group=1)], ["lga"]),
        ([Rule(RuleKind.TAGK, 1, field="host", regex=r"(\d+)$")], []),
        ([Rule(RuleKind.TAGK, 1, field="cpu", display_format="{tag_name}: {value}")], ["cpu: 0"]),
        ([Rule(RuleKind.TAGK, 1, field="nope"), Rule(RuleKind.TAGK, 1, order=1, field="cpu")], ["0"]),
        ([Rule(RuleKind.TAGK, 1, level=1, field="cpu"), Rule(RuleKind.METRIC, 1)], ["sys.cpu.user", "0"]),
    ],
)
def test_rule_places_a_series(rules: list[Rule], path: list[str]) -> None:
    assert place(SERIES, rules).path == ("ROOT", *path)


@pytest.mark.parametrize(
    "rule",
    [
        Rule(RuleKind.TAGK, 1),
        Rule(RuleKind.METRIC_CUSTOM, 1),
        Rule(RuleKind.METRIC, 1, regex="("),
        Rule(RuleKind.METRIC, 1, regex="a", regex_group=1),
        Rule(RuleKind.METRIC, 1, level=-1),
    ],
)
def test_invalid_rule_is_refused(rule: Rule) -> None:
    with pytest.raises(BadRule):
        check_rule(rule)


async def planted(world: World) -> TreeTable:
    """A tree by metric and host, strict, with two series that are alike and one that is not."""
    trees = world.trees
    world.endpoints = tree.routes(trees, world.catalog())
    made = {"name": "T", "enabled": "true", "strictMatch": True, "storeFailures": True}
    assert (await world.request("POST", "/api/tree", made)).status == 200
    rules = [
        {"treeId": 1, "level": 0, "order": 0, "type": "METRIC", "separator": "\\."},
        {"treeId": 1, "level": 1, "order": 0, "type": "TAGK", "field": "host"},
    ]
    assert (await world.request("POST", "/api/tree/rules", rules)).status == 204
    await TreeBuilder(trees, lambda: NOW_MS // 1000).insert(
        [
            await world.series("sys.cpu", host="a"),
            await world.series("sys.cpu", host="a", cpu="0"),
            await world.series("sys.cpu", cpu="0"),
        ]
    )
    return trees


async def test_series_grow_into_branches_and_leaves() -> None:
    world = await make_world()
    await planted(world)
    root = (await world.request("GET", "/api/tree/branch?treeid=1")).body
    assert [one["displayName"] for one in root["branches"]] == ["sys"]
    below = (await world.request("GET", f"/api/tree/branch?branch={root['branches'][0]['branchId']}")).body
    assert below["path"] == {"0": "ROOT", "1": "sys"}
    cpu = (await world.request("GET", f"/api/tree/branch?branch={below['branches'][0]['branchId']}")).body
    tsuid = (await world.series("sys.cpu", host="a")).hex().upper()
    assert cpu["leaves"] == [{"metric": "sys.cpu", "tags": {"host": "a"}, "tsuid": tsuid, "displayName": "a"}]
    assert (cpu["depth"], cpu["treeId"], cpu["branches"]) == (2, 1, None)


async def test_series_without_place_is_listed() -> None:
    world = await make_world()
    await planted(world)
    alike = (await world.series("sys.cpu", host="a", cpu="0")).hex().upper()
    first = (await world.series("sys.cpu", host="a")).hex().upper()
    unmatched = (await world.series("sys.cpu", cpu="0")).hex().upper()
    assert (await world.request("GET", "/api/tree/collisions?treeid=1")).body == {alike: first}
    assert list((await world.request("GET", "/api/tree/notmatched?treeid=1")).body) == [unmatched]
    assert (await world.request("GET", f"/api/tree/notmatched?treeid=1&tsuids={first}")).body == {}


async def test_deleted_tree_is_emptied_first() -> None:
    world = await make_world()
    await planted(world)
    assert (await world.request("DELETE", "/api/tree?treeid=1")).status == 204
    assert (await world.request("GET", "/api/tree/branch?treeid=1")).status == 404
    tree_body = (await world.request("GET", "/api/tree?treeid=1")).body
    assert (tree_body["name"], sorted(tree_body["rules"])) == ("T", ["0", "1"])
    assert (await world.request("DELETE", "/api/tree?treeid=1&definition=true")).status == 204
    assert (await world.request("GET", "/api/tree")).body == []


async def test_test_mode_changes_nothing() -> None:
    world = await make_world()
    await planted(world)
    other = (await world.series("net.in", host="b")).hex().upper()
    results = (await world.request("POST", "/api/tree/test", {"treeId": 1, "tsuids": [other]})).body
    assert results[other]["branch"]["path"] == {"0": "ROOT", "1": "net", "2": "in"}
    root = (await world.request("GET", "/api/tree/branch?treeid=1")).body
    assert [one["displayName"] for one in root["branches"]] == ["sys"]
    assert await world.uid(Kind.METRIC, "net.in")


@pytest.mark.parametrize("pattern", ["^(a+)+$", "a*a*a*a*a*a*a*a*b"])
def test_stored_rule_with_exponential_time_matches_nothing(pattern: str) -> None:
    """An OpenTSDB on the same tables may have taken it."""
    series = NamedSeries("", "a" * 60 + "c", [], {}, {}, {})
    for rule in (Rule(RuleKind.METRIC, 1, regex=pattern), Rule(RuleKind.METRIC, 1, separator=pattern)):
        assert not place(series, [rule]).is_placed
