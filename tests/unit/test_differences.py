"""docs/differences.md is what the markers of the tests say."""

import pytest

from scripts.differences import PAGE, TOPICS, BadMarker, Difference, collect, combine, page, read

FULL = '@pytest.mark.difference("a", topic="http", theirs="X | y", ours="z", why="Because")\n'
SHORT = '@pytest.mark.difference("a")\n'


@pytest.mark.slow
def test_the_page_is_up_to_date() -> None:
    differences = collect()
    assert PAGE.read_text() == page(differences), "run: python -m scripts.differences"
    assert {one.topic for one in differences} == set(TOPICS)
    assert len(differences) > 120


def test_a_difference_names_all_its_tests() -> None:
    source = f"{FULL}def test_b(): ...\nclass Test:\n    {SHORT}    async def test_c(): ...\n"
    assert combine(read(source, "t.py")) == Difference(
        "a", "http", "X | y", "z", "Because", ("t.py::test_b", "t.py::test_c")
    )


def test_a_test_may_pin_several_differences() -> None:
    source = f'{SHORT}@pytest.mark.difference("b")\n@pytest.mark.slow\ndef test_c(): ...\n'
    assert [(marker.name, marker.test) for marker in read(source, "t.py")] == [
        ("a", "t.py::test_c"),
        ("b", "t.py::test_c"),
    ]


def test_a_row_has_all_texts() -> None:
    text = page([combine(read(f"{FULL}def test_b(): ...\n", "t.py"))])
    assert "\n| a | X \\| y. Because | Z | `t.py::test_b` |\n" in text


@pytest.mark.parametrize(
    "source",
    [
        f"{SHORT}def test_b(): ...\n",
        f"{FULL}def test_b(): ...\n{FULL}def test_c(): ...\n",
        FULL.replace("http", "https") + "def test_b(): ...\n",
        FULL.replace("ours=", "our=") + "def test_b(): ...\n",
        FULL.replace(', ours="z"', "") + "def test_b(): ...\n",
        FULL.replace('"z"', "z") + "def test_b(): ...\n",
        FULL.replace('"a", ', "") + "def test_b(): ...\n",
    ],
    ids=["no texts", "texts twice", "bad topic", "bad keyword", "missing text", "no literal", "no name"],
)
def test_a_bad_marker_is_refused(source: str) -> None:
    with pytest.raises(BadMarker):
        combine(read(source, "t.py"))
