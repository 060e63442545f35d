"""The licences of packages that a Debian package bundles."""

import subprocess
import sys
from importlib.metadata import version
from pathlib import Path

import click

ROOT = Path(__file__).parents[2]


def notices(folder: Path) -> "subprocess.CompletedProcess[str]":
    command = [sys.executable, "-m", "scripts.notices", folder]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True)


def test_packages_are_named_with_their_licence() -> None:
    done = notices(Path(click.__file__).parents[1])
    assert done.returncode == 0, done.stderr
    assert f"\nclick {version('click')}\nLicence: BSD-3-Clause\n" in done.stdout
    assert "Redistribution and use in source and binary forms" in done.stdout


def test_package_without_a_licence_is_named(tmp_path: Path) -> None:
    (tmp_path / "nameless-1.dist-info").mkdir()
    (tmp_path / "nameless-1.dist-info/METADATA").write_text("Metadata-Version: 2.1\nName: nameless\nVersion: 1\n")
    done = notices(tmp_path)
    assert done.returncode == 1
    assert "nameless" in done.stderr
