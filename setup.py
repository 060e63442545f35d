"""The compiled parts, which are built where there is a C compiler; without them everything works, slower."""

import sys

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
        Extension("tsd._bytemap", ["tsd/_bytemap.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd._entries", ["tsd/_entries.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.api._put_json", ["tsd/api/_put_json.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.codec._packed", ["tsd/codec/_packed.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.compaction._noting", ["tsd/compaction/_noting.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.doors._gather", ["tsd/doors/_gather.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.ingest._rows", ["tsd/ingest/_rows.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.query._fast", ["tsd/query/_fast.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.store._keys", ["tsd/store/_keys.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.store._requests", ["tsd/store/_requests.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.store._split", ["tsd/store/_split.pyx"], extra_compile_args=["-O3"], optional=True),
    ],
)
