"""Every table layout gives the answers of OpenTSDB's rows, however pages cut rows, hours and buckets."""

import random
from pathlib import Path

import pytest

from tests.property.layout_queries import NOW_S, compare
from tests.property.layout_worlds import FORMS, PLAIN, LayoutForm, opened_worlds
from tests.seeds import seeds

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("seed", seeds(5, fast=0))
async def test_answers_of_every_layout_are_equal(tmp_path: Path, seed: int) -> None:
    only_doubles = seed % 2 == 1  # Heroic's table has nothing else: it takes part then
    forms: dict[str, LayoutForm] = {name: one for name, one in FORMS.items() if only_doubles or not one.only_doubles}
    forms |= {f"plain-{prefix}": PLAIN._replace(prefix=prefix) for prefix in ("m.", "d.")}
    async with opened_worlds(forms, tmp_path, lambda: NOW_S * 1000) as worlds:
        await compare(worlds, random.Random(seed), only_doubles=only_doubles)
