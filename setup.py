"""The compiled parts, which are built where there is a C compiler; without them everything works, slower."""

import sys
from pathlib import Path

from setuptools import Extension, setup
from setuptools.command.build_ext import build_ext
from setuptools.errors import BaseError, CCompilerError


class Compiled(build_ext):
    """Builds what can be built, and says in one line what cannot."""

    def build_extensions(self):
        """All of them."""
        self.lacking = {}  # the first line of why, by name
        super().build_extensions()
        if self.lacking:
            name, why = next(iter(self.lacking.items()))
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


setup(
    cmdclass={"build_ext": Compiled},
    ext_modules=[
        Extension(".".join(source.with_suffix("").parts), [str(source)], extra_compile_args=["-O3"], optional=True)
        for source in sorted(Path("tsd").rglob("*.pyx"))
    ],
)
