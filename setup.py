"""The compiled parts, which are built where there is a C compiler; without them everything works, slower.

The version comes from the newest Git tag (setuptools-scm). Wheels and source archives have it in `tsd/_build.py`, with
the commit.
"""

import os
import subprocess
import sys
from contextlib import suppress
from pathlib import Path

from Cython.Build import cythonize
from Cython.Compiler.Errors import CompileError
from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.command.build_py import build_py
from setuptools.command.sdist import sdist
from setuptools.errors import BaseError, CCompilerError


class Compiled(build_ext):
    """Builds what can be built, and says in one line what cannot."""

    def build_extensions(self):
        """All of them."""
        self.lacking = {}  # the first line of why, by name
        self.parallel = self.parallel or os.cpu_count()  # of C compilers; Cython takes as long as they do
        with suppress(CompileError):  # the extension's own turn reports it
            made = {ext.name: ext.sources for ext in cythonize(self.extensions, nthreads=self.parallel)}
            for ext in self.extensions:
                ext.sources = made[ext.name]
        super().build_extensions()
        if self.lacking:
            name, why = min(self.lacking.items())  # extensions are built side by side, in any order
            sys.stderr.write(
                f"tsd: {len(self.lacking)} of {len(self.extensions)} compiled loops are left out ({name}: {why}): "
                "everything works, slower. They want a C compiler and Python's headers "
                "(Debian: apt-get install gcc python3-dev).\n"
            )

    def build_extension(self, ext):
        """One; where that fails it is left out."""
        try:
            super().build_extension(ext)
        except (BaseError, CCompilerError) as exc:
            self.lacking[ext.name] = str(exc).partition("\n")[0]


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


setup(
    cmdclass={"build_ext": Compiled, "build_py": Modules, "sdist": Archive},
    ext_modules=[
        Extension(".".join(source.with_suffix("").parts), [str(source)], extra_compile_args=["-O3"], optional=True)
        for source in sorted(Path("tsd").rglob("*.pyx"))
    ],
)
