"""Random put lines."""

from hypothesis import strategies as st

from tsd.ingest.parser import FEW

METRICS = st.sampled_from([b"m", b"sys.cpu", b"bad:name", b"", b"put"])
TIMES = st.one_of(
    st.integers(1, 1 << 45).map(lambda n: b"%d" % n),
    st.sampled_from(
        [b"1356998400", b"1356998400", b"1356998401", b"1356998400500", b"1356998401000", b"1357001999", b"1357002000"]
    ),
    st.sampled_from([b"0", b"-1", b"", b"abc", b"1356998400.5", b"1356998400.501", b"9999999999999", b"4294969199999"]),
)
NUMBERS = st.one_of(
    st.integers(-(1 << 65), 1 << 65).map(lambda n: b"%d" % n),
    st.integers(-300, 300).map(lambda n: b"%d" % n),
    st.floats(allow_nan=False, allow_infinity=False).map(lambda x: repr(x).encode()),
    st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda x: repr(x).encode()),
    st.decimals(allow_nan=False, allow_infinity=False, places=2).map(lambda x: str(x).encode()),
    st.sampled_from(
        b"nan NaN inf -inf 1_0 1_0.5 1e400 -1e400 1e-400 + - . .5 5. 1e 1e5 1E5 0x10 0x1.8p1 1.5f 1.5d 1..5 1.2.3 -0 "
        b"-0.0 9223372036854775807 9223372036854775808 -9223372036854775808 00000000000000000001 9007199254740993 "
        b"9007199254740992 -9007199254740993 0000000000000000001 true 1,5 1.5\t 1e1.5 --1 1-2 +1 +1.5 1e+5 e5".split(
            b" "
        )
    ),
)
TAGS = st.sampled_from([b"a=1", b"a=1 b=2", b"b=2 a=1", b" a=1 ", b"a=1  b=2", b"a", b"a=1 a=2", b"", b"a=x:y", b"a=2"])
GOOD = st.builds(lambda *words: b"put " + b" ".join(words), METRICS, TIMES, NUMBERS, TAGS)
ODD = st.sampled_from([b"put", b"put ", b"put m", b"put m 1", b"put m 1 1", b"put  m 1 1 a=1", b"put m 1 1\ta=1"])
LINES = st.lists(st.one_of(GOOD, GOOD, GOOD, ODD), max_size=FEW * 3)
PLAIN = st.builds(
    lambda *words: b"put " + b" ".join(words),
    st.sampled_from([b"m", b"sys.cpu"]),
    st.sampled_from([b"1356998400", b"1356998401", b"1356998400500", b"1356998401000", b"1357001999", b"1357002000"]),
    st.one_of(
        st.integers(-(1 << 63), (1 << 63) - 1).map(lambda n: b"%d" % n),
        st.integers(-300, 300).map(lambda n: b"%d" % n),
        st.floats(allow_nan=False, allow_infinity=False).map(lambda x: repr(x).encode()),
        st.floats(width=32, allow_nan=False, allow_infinity=False).map(lambda x: repr(x).encode()),
    ),
    st.sampled_from([b"a=1", b"a=1 b=2", b"b=2 a=1", b" a=1 ", b"a=2"]),
)
