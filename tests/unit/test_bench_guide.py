"""The loads of `scripts/bench guide`, of any size."""

import re

import pytest

from bench.guide import Size, loads

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("size", [Size(1, 2, 1, 5), Size(3, 2, 9, 50)])
def test_queries_ask_for_tags_that_were_sent(size: Size) -> None:
    for load in loads(size):
        asked = {tag.encode() for tags in re.findall(r"{(.*?)}", load.query) for tag in tags.split(",")}
        sent = {tag for line in load.lines for tag in line.split()[4:]}
        assert asked
        assert asked <= sent, load.name
