"""Entities chosen in arrays are those that a loop over decoded entities chooses, however the pages are cut."""

from fnmatch import fnmatchcase

from hypothesis import given
from hypothesis import strategies as st

from tsd.api.entity_answers import InventoryRequest
from tsd.api.entity_inventory import Inventory
from tsd.store.cells import Cell
from tsd.store.versions import columns_of
from tsd.tables.entities import Entity
from tsd.tables.entity_decode import decode_rows

names = st.sampled_from([b"a", b"b", b"c", b"web01", b"web02"])
series = st.sampled_from([b"t:sys.cpu", b"t:sys.cpu cpu=0", b"t:sys.mem", b"t:net"])
stored = st.dictionaries(
    names, st.dictionaries(series, st.tuples(st.integers(0, 9), st.integers(-3, 3)), min_size=1), max_size=5
)
requests = st.builds(
    InventoryRequest,
    prefix=st.just(b""),
    first=st.just(b""),
    metrics=st.sampled_from([[], ["sys.*"], ["*.mem", "net"], ["none"]]),
    metric=st.sampled_from([None, b"sys.cpu", b"net"]),
    is_descending=st.booleans(),
    oldest_ms=st.none() | st.integers(0, 10),
    stale=st.booleans(),
    limit=st.integers(1, 4),
)


def expected(entities: list[Entity], wanted: InventoryRequest) -> list[tuple[int | float, Entity]]:
    found: list[tuple[int | float, Entity]] = []
    for entity in entities:
        kept = {
            one: points
            for one, points in entity.series.items()
            if not wanted.metrics or any(fnmatchcase(one.metric.decode(), each) for each in wanted.metrics)
        }
        if wanted.oldest_ms is not None:
            recent = {one: points for one, points in kept.items() if points[-1][0] >= wanted.oldest_ms}
            kept = ({} if recent else kept) if wanted.stale else recent
        sign = -1 if wanted.is_descending else 1
        orders = [sign * points[-1][1] for one, points in kept.items() if one.metric == wanted.metric]
        if kept and (orders or wanted.metric is None):
            found.append((min(orders, default=0), entity._replace(series=kept)))
    return sorted(found, key=lambda one: (one[0], one[1].name))


@given(stored, requests, st.integers(1, 5))
def test_chosen_entities(rows: dict[bytes, dict[bytes, tuple[int, int]]], wanted: InventoryRequest, page: int) -> None:
    ordered = [
        (name, [Cell(column, b"\0" + value.to_bytes(1, "big", signed=True), at) for column, (at, value) in held])
        for name, held in sorted((name, sorted(held.items())) for name, held in rows.items())
    ]
    chosen = Inventory(wanted)
    for start in range(0, len(ordered), page):
        chosen.add(columns_of(ordered[start : start + page]))
        if wanted.metric is None and chosen.entities == wanted.limit:
            break
    chosen.sort()
    whole = [entity for _, entity in expected(decode_rows(columns_of(ordered)), wanted)]
    found = [entity for part in chosen.pages for entity in decode_rows(part)]
    assert found == whole[: wanted.limit]
    assert chosen.entities == len(found)
    if chosen.next_name is not None:
        assert whole[wanted.limit].name == chosen.next_name
