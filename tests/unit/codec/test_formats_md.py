"""FORMATS.md says what the code does, and the code refers to sections that FORMATS.md has."""

import importlib
import pkgutil
import re
from functools import cache
from pathlib import Path
from types import ModuleType

import numpy as np

import tsd
import tsd.codec.blocks
import tsd.codec.entity
import tsd.codec.heroic
import tsd.codec.kairosdb
import tsd.codec.opentsdb
import tsd.codec.tall
from tests.cases import all_of
from tests.unit.codec.codec_rows import KEY, cells
from tsd.codec.opentsdb.cell import Point
from tsd.codec.opentsdb.merge import StoredCell
from tsd.errors import TsdError
from tsd.tables.opentsdb import series_index

PAGE = Path(tsd.codec.opentsdb.__file__).with_name("FORMATS.md")
PAGES = (
    PAGE,
    *(
        Path(one.__file__).with_name("FORMATS.md")
        for one in (tsd.codec.blocks, tsd.codec.entity, tsd.codec.heroic, tsd.codec.kairosdb, tsd.codec.tall)
    ),
)


def examples() -> list[tuple[str, str]]:
    text = "".join(page.read_text("utf-8") for page in PAGES)
    blocks = re.findall(r"^```formats\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    lines = [line for block in blocks for line in block.splitlines()]
    return [(left.strip(), right.strip()) for left, _, right in (line.rpartition("→") for line in lines)]


@cache
def names() -> dict[str, object]:
    found: dict[str, object] = {"h": bytes.fromhex, "cells": cells, "KEY": KEY}
    for module in pkgutil.walk_packages(tsd.codec.__path__, "tsd.codec."):
        members = vars(importlib.import_module(module.name))
        found |= {name: one for name, one in members.items() if one is np or not isinstance(one, ModuleType)}
    return found | vars(series_index)


def shown(result: object) -> str:
    """A result as the page writes it."""
    if isinstance(result, Point | StoredCell):
        return f"{result.qualifier.hex()} = {result.value.hex()}"
    if isinstance(result, list | tuple):
        return ", ".join(map(shown, result)) or "none"
    return result.hex() if isinstance(result, bytes) else str(result)


@all_of(examples(), lambda example: example[0])
def test_example_matches_its_code(example: tuple[str, str]) -> None:
    expression, wanted = example
    try:
        got = shown(eval(expression, names()))
    except (TsdError, ValueError) as exc:
        got = f"!{type(exc).__name__}"
    assert got == wanted


def test_sections_are_numbered_and_have_examples() -> None:
    sections = re.split(r"^## §(\d+) ", PAGE.read_text("utf-8"), flags=re.MULTILINE)[1:]
    numbers, texts = sections[::2], sections[1::2]
    assert [int(number) for number in numbers] == list(range(1, 14))
    assert [number for number, text in zip(numbers, texts, strict=True) if "```formats" not in text] == []


def test_modules_refer_to_sections_that_exist() -> None:
    sections = set(re.findall(r"^## (§\d+) ", PAGE.read_text("utf-8"), re.MULTILINE))
    sources = {path.name: path.read_text("utf-8") for path in Path(tsd.__path__[0]).rglob("*.py")}
    referred = {(name, each) for name, text in sources.items() for ref in re.findall(r"FORMATS\.md ([§\d, ]+)", text)
                for each in re.findall(r"§\d+", ref)}  # fmt: skip
    assert {each for _, each in referred} >= {"§1", "§6", "§11"}
    assert {(name, each) for name, each in referred if each not in sections} == set()
