"""Bytes → bytes in C and in Python: the same of everything."""

import random

import numpy as np
import pytest

from tsd.codec.bytemap import HAS_BYTEMAP_LOOP, ByteMap, PlainByteMap

pytestmark = pytest.mark.skipif(not HAS_BYTEMAP_LOOP, reason="no C compiler when tsd was installed: only one is there")


@pytest.mark.parametrize("seed", range(3))
def test_compiled_and_pure_maps_are_equal(seed: int) -> None:
    chance = random.Random(seed)
    packed, plain = ByteMap(), PlainByteMap()
    for at in range(10_000):
        key, value = chance.randbytes(chance.choice([0, 1, 2, 3])), chance.randbytes(4)
        if chance.random() < 0.5:
            packed.put(key, value)
            plain.put(key, value)
        assert packed.get(key) == plain.get(key)
        if at % 3000 == 2999:
            packed.drop_half()
            plain.drop_half()
    assert len(packed) == len(plain)
    assert packed.keys() == plain.keys()
    assert packed.items(0, 1 << 30)[0] == plain.items(0, 1 << 30)[0]


def test_items_in_parts_and_replaced_values() -> None:
    packed = ByteMap()
    for number in range(10):
        packed.put(b"k%d" % number, b"v")
    first, at = packed.items(0, 4)
    second, at = packed.items(at, 100)
    assert [key for key, _ in first + second] == packed.keys()
    assert packed.items(at, 100)[0] == []
    rebuilt = packed.rebuilt
    packed.put(b"k3", b"longer")
    assert (packed.get(b"k3"), len(packed), packed.rebuilt) == (b"longer", 10, rebuilt + 1)
    packed.clear()
    assert (len(packed), packed.get(b"k3"), packed.keys()) == (0, None, [])


def test_keep_number_removes_other_keys() -> None:
    packed, plain = ByteMap(), PlainByteMap()
    for number in range(1000):
        packed.put_number(b"%d" % number, number % 3)
        plain.put_number(b"%d" % number, number % 3)
    packed.keep_number(1)
    plain.keep_number(1)
    assert packed.keys() == plain.keys() == [b"%d" % number for number in range(1, 1000, 3)]
    assert [packed.number(key) for key in packed.keys()] == [1] * 333  # noqa: SIM118
    assert packed.number(b"0") == plain.number(b"0") == -1
    assert packed.rebuilt == plain.rebuilt == 1


def test_renumbered_keys_have_new_numbers() -> None:
    numbers = np.random.default_rng(1).integers(-50, 50, 1000).astype(np.int32)
    maps = ByteMap(), PlainByteMap()
    for some in maps:
        some.enter([b"%d" % number for number in range(1000)], 0)
        some.renumber(numbers)
        assert {key: some.number(key) for key in some.keys()} == {  # noqa: SIM118
            b"%d" % at: number for at, number in enumerate(numbers.tolist()) if number >= 0
        }
    assert maps[0].keys() == maps[1].keys()
    assert maps[0].rebuilt == maps[1].rebuilt == 1


def test_numbers_take_little_memory() -> None:
    packed = ByteMap()
    for number in range(50_000):
        packed.put_number(b"%018d" % number, number)
    assert [packed.number(b"%018d" % number) for number in (0, 49_999, 50_000)] == [0, 49_999, -1]
    assert packed.held < 50_000 * 60


def test_many_keys_are_entered_at_once() -> None:
    chance = random.Random(1)
    packed, plain = ByteMap(), PlainByteMap()
    number = 0
    for _ in range(50):
        keys = [chance.randbytes(chance.choice([0, 1, 2])) for _ in range(100)]
        found = packed.enter(keys, number)
        assert found == plain.enter(keys, number)
        _, number = found
    assert number == len(packed) == len(plain)
    assert [(key, packed.number(key)) for key in packed.keys()] == [(key, plain.number(key)) for key in plain.keys()]  # noqa: SIM118
