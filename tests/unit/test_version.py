"""The version, which comes from Git, in each kind of tree that is installed."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
UNTAGGED = "0.2.0.dev"
IDENTITY = ("-c", "user.name=a", "-c", "user.email=a@example.org")


def git(folder: Path, *words: str) -> str:
    command = ["git", "-C", folder, *IDENTITY, *words]
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def build(tree: Path, *words: str, path: str = "") -> str:
    """Run setup.py. Return the last line that it prints."""
    env = os.environ | {"PATH": path or os.environ["PATH"]}
    done = subprocess.run([sys.executable, "setup.py", "--quiet", *words], cwd=tree, env=env, capture_output=True,
                          text=True)  # fmt: skip
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().rpartition("\n")[2]


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The least that setup.py builds: no loops."""
    folder = tmp_path / "tree"
    (folder / "tsd").mkdir(parents=True)
    for name in ("setup.py", "setup.cfg", "pyproject.toml", "README.md", "LICENSE", "MANIFEST.in", "tsd/__init__.py"):
        shutil.copy(ROOT / name, folder / name)
    for name in ("conf", "packaging"):
        shutil.copytree(ROOT / name, folder / name)
    return folder


@pytest.fixture
def checkout(tree: Path) -> Path:
    git(tree, "init", "--quiet")
    git(tree, "add", ".")
    git(tree, "commit", "--quiet", "--message", "first")
    return tree


def built(tree: Path) -> list[str]:
    """Return version and commit that an installation of the tree would have."""
    build(tree, "build_py")
    say = "import tsd; print(tsd.version()); print(tsd.revision())"
    env = {**os.environ, "PYTHONPATH": str(tree / "build/lib")}
    done = subprocess.run([sys.executable, "-P", "-c", say], check=True, capture_output=True, text=True, env=env)
    return done.stdout.split()


def test_tag_is_the_version(checkout: Path) -> None:
    git(checkout, "tag", "v3.1.4")
    assert built(checkout) == ["3.1.4", git(checkout, "rev-parse", "HEAD")]


def test_later_commits_are_newer_than_their_tag(checkout: Path) -> None:
    git(checkout, "tag", "v3.1.4")
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "second")
    assert build(checkout, "--version").startswith("3.1.5.dev1+g")


def test_checkout_without_tags_has_a_version(checkout: Path) -> None:
    assert built(checkout)[0].startswith(f"{UNTAGGED}1+g")


def test_shallow_clone_has_a_version(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "commit", "--quiet", "--allow-empty", "--message", "second")
    shallow = tmp_path / "shallow"
    git(tmp_path, "clone", "--quiet", "--depth", "1", checkout.as_uri(), str(shallow))
    version, revision = built(shallow)
    assert version.startswith(UNTAGGED)
    assert revision == git(checkout, "rev-parse", "HEAD")


def test_tree_without_git_has_a_version(tree: Path) -> None:
    assert built(tree) == [f"{UNTAGGED}0", "unknown"]


def test_machine_without_git_builds_a_checkout(checkout: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert build(checkout, "--version", path=str(tmp_path / "empty")) == f"{UNTAGGED}0"


def test_tree_inside_another_repository_has_not_its_commit(tree: Path) -> None:
    git(tree.parent, "init", "--quiet")
    git(tree.parent, "commit", "--quiet", "--allow-empty", "--message", "first")
    assert built(tree) == [f"{UNTAGGED}0", "unknown"]


def test_source_archive_keeps_version_and_commit(checkout: Path, tmp_path: Path) -> None:
    git(checkout, "tag", "v3.1.4")
    build(checkout, "sdist", "--dist-dir", str(tmp_path))
    (archive,) = tmp_path.glob("*.tar.gz")
    shutil.unpack_archive(archive, tmp_path / "unpacked", filter="data")
    (unpacked,) = (tmp_path / "unpacked").iterdir()
    assert built(unpacked) == ["3.1.4", git(checkout, "rev-parse", "HEAD")]
