"""Names and numbers as words, at the edges that vectors leave out."""

import math
import subprocess
import sys

import pytest

from tsd.codec.text import (
    FLOAT,
    decode_number,
    encode_float,
    encode_integer,
    encode_name,
    illegal_character,
    java_hash,
    java_map_order,
    looks_like_integer,
    parse_double,
    parse_long,
    show_signed,
    words_of,
)
from tsd.errors import ILLEGAL_ARGUMENT, INVALID_VALUE, BadLine

LEGAL_CODES = [
    *b"-./", *range(0x30, 0x3A), *range(0x41, 0x5B), 0x5F, *range(0x61, 0x7B),
    0xAA, 0xB5, 0xBA, *range(0xC0, 0xD7), *range(0xD8, 0xF7), *range(0xF8, 0x100),
]  # fmt: skip


def test_legal_characters() -> None:
    assert [code for code in range(256) if illegal_character(bytes((code,))) is None] == LEGAL_CODES


def test_first_illegal_character_is_named() -> None:
    assert illegal_character(b"a b:c") == " "
    assert illegal_character(b"a b:c", b" ") == ":"
    assert illegal_character(b"a b:c", b": ") is None
    assert illegal_character(b"") is None


JAVA_HASHES = {"": 0, "a": 97, "zzzzzz": -685785664, "polygenelubricants": -(1 << 31), "😀": 1772899, "\ud83d": 55357}


@pytest.mark.parametrize(("text", "hashed"), list(JAVA_HASHES.items()))
def test_java_hash(text: str, hashed: int) -> None:
    assert java_hash(text) == hashed


def test_java_map_order_after_growth() -> None:
    names = [f"t{number}" for number in range(1, 14)]
    assert java_map_order(names[:12]) == "t4 t5 t6 t10 t7 t8 t12 t9 t11 t1 t2 t3".split()
    assert java_map_order(names) == "t4 t5 t6 t7 t8 t9 t10 t12 t11 t13 t1 t2 t3".split()


@pytest.mark.parametrize(
    ("word", "number"),
    [
        (b"0", 0),
        (b"-0", 0),
        (b"+0042", 42),
        (b"0000000000000000001", 1),
        (b"-0000000000000000001", -1),
        (b"9223372036854775807", (1 << 63) - 1),
        (b"-9223372036854775808", -(1 << 63)),
    ],
)
def test_integers(word: bytes, number: int) -> None:
    assert parse_long(word) == number


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (b"", "Empty string"),
        (b"+", "Just a sign, no value: +"),
        (b"00000000000000000001", "Value too long: 00000000000000000001"),
        (b"-00000000000000000001", "Value too long: -00000000000000000001"),
        (b"xxxxxxxxxxxxxxxxxxxx", "Value too long: xxxxxxxxxxxxxxxxxxxx"),
        (b"1_0", "Invalid character '_' in 1_0"),
        (b"--1", "Invalid character '-' in --1"),
        (b" 1", "Invalid character ' ' in  1"),
        ("1²".encode("latin-1"), "Invalid character '²' in 1²"),
        (b"9223372036854775808", "Overflow in 9223372036854775808"),
        (b"-9223372036854775809", "Overflow in -9223372036854775809"),
    ],
)
def test_invalid_integers_are_refused(word: bytes, message: str) -> None:
    with pytest.raises(BadLine) as refused:
        parse_long(word)
    assert (refused.value.reason, str(refused.value)) == (INVALID_VALUE, f"invalid value: {message}")


@pytest.mark.parametrize(
    ("word", "number"),
    [
        (b".5", 0.5),
        (b"5.", 5.0),
        (b"1.5f", 1.5),
        (b"1e3D", 1000.0),
        (b" \t1.5\0", 1.5),
        (b"0x1.8p1", 3.0),
        (b"-0X.8P-1d", -0.25),
        (b"1e309", math.inf),
        (b"-0x1p9999", -math.inf),
        (b"1e-400", 0.0),
        (b"4.9e-324", 5e-324),
    ],
)
def test_floats(word: bytes, number: float) -> None:
    assert parse_double(word) == number


@pytest.mark.parametrize(
    ("word", "message"),
    [
        (b"  ", "empty String"),
        (b"1..5", "multiple points"),
        (b"1.2.3", "multiple points"),
        (b"1e5.5", 'For input string: "1e5.5"'),
        (b"e", 'For input string: "e"'),
        (b"0x.p1", 'For input string: "0x.p1"'),
        (b"0x1.8", 'For input string: "0x1.8"'),
        (b"1.5L", 'For input string: "1.5L"'),
        (b"1_0.5", 'For input string: "1_0.5"'),
        (b"NaN.", 'For input string: "NaN."'),
        ("１.5".encode(), 'For input string: "ï¼\x91.5"'),
    ],
)
def test_invalid_floats_are_refused(word: bytes, message: str) -> None:
    with pytest.raises(BadLine) as refused:
        parse_double(word)
    assert (refused.value.reason, str(refused.value)) == (INVALID_VALUE, f"invalid value: {message}")


@pytest.mark.parametrize("length", [1, 2, 4])
def test_integers_use_the_fewest_bytes(length: int) -> None:
    edge = 1 << 8 * length - 1
    assert len(encode_integer(edge - 1)[1]) == len(encode_integer(-edge)[1]) == length
    assert len(encode_integer(edge)[1]) == len(encode_integer(-edge - 1)[1]) == length * 2


def test_exact_floats_use_four_bytes() -> None:
    assert encode_float(16777216.0) == (FLOAT | 3, bytes.fromhex("4b800000"))
    assert encode_float(16777217.0)[0] == FLOAT | 7
    assert encode_float(3.5e38)[0] == FLOAT | 7
    assert encode_float(math.inf)[0] == FLOAT | 3


@pytest.mark.parametrize(("flags", "value"), [(2, "010203"), (0, ""), (FLOAT, "2a"), (FLOAT | 1, "2a2b")])
def test_invalid_number_bytes_raise(flags: int, value: str) -> None:
    with pytest.raises(ValueError, match=f"got {len(value) // 2}: {value}$"):
        decode_number(flags, bytes.fromhex(value))


def test_names_have_one_byte_per_character() -> None:
    assert encode_name("ÿ") == b"\xff"
    with pytest.raises(BadLine, match="'Ā' is beyond ISO-8859-1") as refused:
        encode_name("aĀ")
    assert refused.value.reason == ILLEGAL_ARGUMENT


def test_small_helpers() -> None:
    assert [looks_like_integer(word) for word in (b"1", b"1.", b"1e1", b"1E1", b"x")] == [
        True,
        False,
        False,
        False,
        True,
    ]
    assert show_signed(b"") == "[]"
    assert list(words_of(b"  a=1   b=2 ")) == [b"a=1", b"b=2"]


def test_tag_order_needs_no_imports() -> None:
    """Regression: its codec was loaded when a line first used it, which failed without a free descriptor."""
    program = (
        "import sys; from tsd.codec.text import java_hash; before = set(sys.modules); "
        "assert java_hash('host') == 3208616; assert set(sys.modules) == before"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
