"""Put lines as columns: what is taken apart is joined again, and what is cut loses no whole line before the cut."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tsd.ingest.journal import line_columns
from tsd.ingest.journal.line_columns import HAS_LOOP, columns_of, first_lines, lines_of

pytestmark = pytest.mark.skipif(not HAS_LOOP, reason="without the compiled loop lines are not taken apart")
WORD = st.binary(max_size=80).map(lambda word: word.replace(b" ", b"_").replace(b"\n", b"_"))
LINES = st.lists(st.lists(WORD, min_size=5, max_size=8).map(lambda words: b" ".join(words) + b"\n"), min_size=1)


@given(LINES)
@pytest.mark.parametrize("compiled", [True, False])
def test_lines_come_out_as_they_were(compiled: bool, lines: list[bytes]) -> None:
    columns = columns_of(b"".join(lines))
    assert columns is not None
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(line_columns, "HAS_LOOP", compiled)
        assert lines_of(columns) == b"".join(lines)


@given(LINES, st.data())
def test_lines_before_a_cut_are_whole(lines: list[bytes], data: st.DataObject) -> None:
    columns = columns_of(b"".join(lines))
    assert columns is not None
    cut = columns[: data.draw(st.integers(0, len(columns)))]
    found = first_lines(cut)
    assert found in [b"".join(lines[:count]) for count in range(len(lines) + 1)]
    assert first_lines(columns) == b"".join(lines)


@pytest.mark.parametrize("compiled", [True, False])
@pytest.mark.parametrize("cut", [1, 9, 17, 20, 40, 55, 60])
def test_cut_columns_are_refused(compiled: bool, cut: int, monkeypatch: pytest.MonkeyPatch) -> None:
    columns = columns_of(b"put a 1700000000 1 b=c\nput a 1700000010 2.5 b=c\n")
    assert columns is not None
    monkeypatch.setattr(line_columns, "HAS_LOOP", compiled)
    with pytest.raises(ValueError, match=r"."):
        lines_of(columns[:cut])


@pytest.mark.parametrize(
    "text", [b"put a 1 1\n", b"put a 1 1 b=c", b"put a 1 1 b=c\n\n", b"put a 1 1 b=c\nput a 1\n1 b=c\n"]
)
def test_lines_of_few_words_are_left_as_they_are(text: bytes) -> None:
    assert columns_of(text) is None
