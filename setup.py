"""The compiled parts, which are built where there is a C compiler; without them everything works, slower.

TSD_PURE=1 leaves them out. In a checkout (`build_ext --inplace`, `pip install --editable`) each is taken from the cache
`~/.cache/tsd/loops` if it was compiled before from equal sources. Other builds compile all.

The version comes from the newest Git tag (setuptools-scm). Wheels and source archives have it in `tsd/_build.py`, with
the commit.
"""

import hashlib
import multiprocessing
import os
import platform
import shutil
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path
from sysconfig import get_config_var

import Cython
from Cython.Build import cythonize
from Cython.Build.Dependencies import create_dependency_tree
from Cython.Compiler.Errors import CompileError
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import BaseError, CCompilerError

SHARED = "tsd._cython"  # Cython's own code for memoryviews: compiled once, not in each module that has one
CACHE = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache", "tsd", "loops")
UNUSED_DAYS = 90  # a cached module that was not used for so long is deleted
DAY_S = 86_400


class Compiled(build_ext):
    """Builds what can be built, and says in one line what cannot."""

    def run(self):
        self.cached = {}  # a file of the cache for each module's name; none for a wheel
        self.keeps = self.inplace
        super().run()

    def build_extensions(self):
        """All of them."""
        self.lacking = {}  # the first line of why, by name
        self.force = True  # the cache knows by content what is up to date, times do not
        self.parallel = self.parallel or os.cpu_count()  # of C compilers; Cython takes as long as they do
        if self.keeps:
            common = self.common()
            self.cached = {ext.name: CACHE / f"{key(ext, common)}.so" for ext in self.extensions}
            forget_unused()
        every = self.extensions
        self.extensions = [ext for ext in every if not self.restore(ext)]
        self.translate()
        super().build_extensions()
        self.extensions = every
        if self.lacking:
            name, why = min(self.lacking.items())  # extensions are built side by side, in any order
            sys.stderr.write(
                f"tsd: {len(self.lacking)} of {len(every)} compiled loops are left out ({name}: {why}): "
                "everything works, slower. They want a C compiler and Python's headers "
                "(Debian: apt-get install gcc python3-dev).\n"
            )

    def translate(self):
        """Write the C source of each module."""
        loops = [ext for ext in self.extensions if ext.name != SHARED]
        multiprocessing.set_start_method("fork", force=True)  # other workers of Cython would run this script again
        with suppress(CompileError):  # the extension's own turn reports it
            found = cythonize(loops, nthreads=self.parallel, force=True, shared_utility_qualified_name=SHARED)
            made = {ext.name: ext.sources for ext in found}
            for ext in loops:
                ext.sources = made[ext.name]
        for ext in self.extensions:
            if ext.name == SHARED:
                ext.sources = [f"{SHARED.replace('.', '/')}.c"]
                command = [sys.executable, "-m", "cython", f"--generate-shared={ext.sources[0]}"]
                subprocess.run(command, check=True, stdout=subprocess.DEVNULL)  # noqa: S603
        self.extensions.sort(key=lambda ext: -sum(Path(source).stat().st_size for source in ext.sources))

    def build_extension(self, ext):
        """One; where that fails it is left out."""
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError) as exc:
            self.lacking[ext.name] = str(exc).partition("\n")[0]
        else:
            with suppress(OSError, KeyError):  # without a cache the next build takes longer
                put(Path(self.get_ext_fullpath(ext.name)), self.cached[ext.name])

    def copy_extensions_to_source(self):
        """Leave only what was built now in the tree: nothing of other sources."""
        built = {Path(self.get_ext_filename(ext.name)) for ext in self.extensions if ext.name not in self.lacking}
        for file in Path("tsd").rglob(f"_*{get_config_var('EXT_SUFFIX')}"):
            if file not in built:
                file.unlink()
        super().copy_extensions_to_source()

    def restore(self, ext):
        """Take a module from the cache. Return whether it was there. Delete what an earlier build left."""
        target = Path(self.get_ext_fullpath(ext.name))
        target.unlink(missing_ok=True)
        with suppress(OSError, KeyError):
            put(self.cached[ext.name], target)
            os.utime(self.cached[ext.name])
            return True
        return False

    def common(self):
        """Return what all modules depend on: Python, Cython, the compiler, its flags and the C library."""
        compiler = [self.compiler.compiler_so, self.compiler.linker_so]
        with suppress(OSError):
            command = [*self.compiler.compiler_so[:1], "--version"]
            compiler.append(subprocess.run(command, capture_output=True, check=False).stdout)  # noqa: S603
        python = [sys.version, sys.base_prefix, get_config_var("EXT_SUFFIX"), Cython.__version__, platform.libc_ver()]
        return repr([python, compiler, Path("setup.py").read_bytes()]).encode()


def key(ext, common):
    """Return the hash of a module: of what all depend on, of its source and of the files that this names."""
    digest = hashlib.sha256(repr((ext.name, common)).encode())
    if ext.name != SHARED:
        here, tree = Path.cwd(), create_dependency_tree(quiet=True)
        for file in sorted(Path(name).resolve() for name in tree.all_dependencies(ext.sources[0])):
            if file.is_relative_to(here):  # the others are Cython's
                digest.update(repr((str(file.relative_to(here)), file.read_bytes())).encode())
    return digest.hexdigest()


def put(source, target):
    """Copy a file so that its new name never has a part of it, not even after a power failure."""
    target.parent.mkdir(parents=True, exist_ok=True)
    part = target.with_name(f"{target.name}.{os.getpid()}")
    try:
        with source.open("rb") as read, part.open("wb") as write:
            shutil.copyfileobj(read, write)
            write.flush()
            os.fsync(write.fileno())
        part.chmod(0o755)
        part.replace(target)
    finally:
        part.unlink(missing_ok=True)


def forget_unused():
    """Delete cached modules that no build used for a long time."""
    with suppress(OSError):
        for file in CACHE.iterdir():
            if file.stat().st_mtime < time.time() - UNUSED_DAYS * DAY_S:  # noqa: TID251
                file.unlink()


def write_build(distribution, folder):
    """Write version and commit to `tsd/_build.py` in a folder. An unpacked source archive has that file already."""
    file = Path(folder, "tsd", "_build.py")
    if Path("tsd", "_build.py").exists():
        return
    revision = "unknown"
    if Path(".git").exists():  # otherwise the commit may be that of a repository around this folder
        with suppress(OSError, subprocess.CalledProcessError):
            command = ["git", "rev-parse", "HEAD"]
            revision = subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()  # noqa: S603
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(f'VERSION = "{distribution.get_version()}"\nREVISION = "{revision}"\n')


class Modules(build_py):
    """Adds version and commit to a wheel. An editable installation asks Git."""

    def run(self):
        super().run()
        if not self.editable_mode:
            write_build(self.distribution, self.build_lib)


class Archive(sdist):
    """Adds version and commit to a source archive."""

    def make_release_tree(self, base_dir, files):
        super().make_release_tree(base_dir, files)
        write_build(self.distribution, base_dir)


FLAGS = ["-O3", "-g0"]
LOOPS = [
    Extension(".".join(source.with_suffix("").parts), [str(source)], extra_compile_args=FLAGS, optional=True)
    for source in sorted(Path("tsd").rglob("*.pyx"))
]
if LOOPS:
    LOOPS.append(Extension(SHARED, [], extra_compile_args=["-O2", "-g0"], optional=True))

setup(
    cmdclass={"build_ext": Compiled, "build_py": Modules, "sdist": Archive},
    ext_modules=[] if os.environ.get("TSD_PURE") else LOOPS,
)
