"""The compiled parts, which are built where there is a C compiler; without them everything works, slower."""

from setuptools import Extension, setup

setup(
    ext_modules=[
        Extension("tsd._bytemap", ["tsd/_bytemap.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd._entries", ["tsd/_entries.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.api._put_json", ["tsd/api/_put_json.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.codec._packed", ["tsd/codec/_packed.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.ingest._rows", ["tsd/ingest/_rows.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.query._fast", ["tsd/query/_fast.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.store._keys", ["tsd/store/_keys.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.store._requests", ["tsd/store/_requests.pyx"], extra_compile_args=["-O3"], optional=True),
        Extension("tsd.store._split", ["tsd/store/_split.pyx"], extra_compile_args=["-O3"], optional=True),
    ]
)
