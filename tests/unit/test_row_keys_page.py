"""The row keys that docs/row-keys.md shows are those of the codecs."""

from pathlib import Path

from tsd.codec.entity.records import entity_series, series_column
from tsd.codec.heroic.keys import encode_base, parse_heroic_key, series_head, series_tail
from tsd.codec.heroic.values import base_of
from tsd.codec.kairosdb.keys import DataRow, encode_tags
from tsd.codec.kairosdb.rows import RowSpec
from tsd.codec.opentsdb.rowkey import KeyLayout, join_pairs, row_key
from tsd.codec.tall.rules import parse_rules

PAGE = (Path(__file__).parents[2] / "docs" / "row-keys.md").read_text()
TIME_S = 1356998400
METRIC, HOST = "CPU/CPU1_USR", "server0001.bbb.com"


def shown_in_hex(parts: list[bytes]) -> str:
    return " ".join(part.hex() for part in parts)


def test_opentsdbs_keys_have_time_before_tags() -> None:
    uids = [number.to_bytes(3, "big") for number in (1, 2)]
    pairs = [(uids[0], uids[0]), (uids[1], uids[1])]
    parts = [uids[0], TIME_S.to_bytes(4, "big"), *(name + value for name, value in pairs)]
    plain, salted = KeyLayout(), KeyLayout(salt_width=1, salt_buckets=20)
    assert row_key(plain, uids[0], TIME_S, join_pairs(pairs)) == b"".join(parts)
    key = row_key(salted, uids[0], TIME_S, join_pairs(pairs))
    assert key[1:] == b"".join(parts)
    assert f"\n{shown_in_hex(parts)}\n{shown_in_hex([key[:1], *parts])}\n" in PAGE


def test_kairosdbs_key_has_readable_tags() -> None:
    tags = encode_tags({"host": HOST, "dc": "lga"})
    key = DataRow(METRIC, RowSpec().row_time(TIME_S * 1000), "kairos_long", tags).encode()
    assert key.startswith(METRIC.encode())
    assert key.endswith(b"kairos_long" + tags)
    assert f"\n{METRIC} … kairos_long {tags.decode()}\n" in PAGE


def test_heroics_key_has_the_resource_last() -> None:
    key = series_head(METRIC, [("dc", "lga")]) + encode_base(base_of(TIME_S * 1000)) + series_tail((("host", HOST),))
    assert f"\n{parse_heroic_key(key).shown()}\n" in PAGE


def test_tall_keys_have_the_tag_and_then_the_time() -> None:
    for time, clock in (("{ts}", b""), ("{day}", b"#0000")):
        [rule] = parse_rules(f"METRIC {{host}}#{time} *")
        place = rule.place(METRIC, {"host": HOST, "dc": "lga"})
        key = place.prefix + rule.template.time_text(rule.template.row_time(TIME_S * 1000))
        assert f"\n{key.decode()}   t:{(place.field + clock).decode()}\n" in PAGE


def test_the_row_of_an_entity_has_its_name_only() -> None:
    found = entity_series(METRIC.encode(), ((b"host", HOST.encode()), (b"dc", b"lga")), b"host")
    assert found is not None
    assert f"\n{found[0].decode()}   {series_column(found[1]).decode()}   {TIME_S * 1000}\n" in PAGE
