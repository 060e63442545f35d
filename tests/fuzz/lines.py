"""Random lines: valid ones, valid ones with a change, and random bytes."""

import random

METRICS = (b"m", b"sys.cpu.user", b"a/b_c-d.e", b"caf\xe9", b"\xb5", b"put", b"0")
TAGKS = (b"host", b"dc", b"a", b"cpu", b"\xe9", b"rack", b"FB", b"Ea", b"x-y", b"t1", b"t2", b"t3", b"t4")
TAGVS = (b"web01", b"a", b"0", b"x/y", b"b.c", b"\xff", b"1")
TIMES = (
    b"1356998400", b"1356998401", b"1357001999", b"1357002000", b"1356998400500", b"1356998401000", b"1",
    b"4294967295", b"4294967296", b"+1356998400",
)  # fmt: skip
ODD_TIMES = (
    b"0", b"-1", b"", b"1356998400.5", b"1356998400.501", b"1356998400.", b"15.00000000", b"1356998400.5000", b".",
    b"1.3.5", b"1356998400.5.0", b"9999999999999", b"10000000000000", b"4294969199999", b"4294969200000",
    b"9223372036854775807", b"9223372036854775808", b"99999999999999999999", b"00000000001356998400", b"-0", b"+",
    b"4294967.296", b"4294967.295", b"42949.67295", b".4294967296", b"abc", b"1356998400s", b"15e8", b"0x10",
)  # fmt: skip
VALUES = (
    b"0", b"1", b"-1", b"42", b"127", b"128", b"-128", b"-129", b"32767", b"32768", b"-32769", b"2147483647",
    b"2147483648", b"-2147483649", b"9223372036854775807", b"-9223372036854775808", b"1.5", b"0.1", b"-0.0", b"1e3",
    b"42.5", b"3.4028235e38", b"1e39", b"1.17549435e-38", b"1e-45", b"4.9e-324", b"+7", b"00012", b"1E5",
)  # fmt: skip
ODD_VALUES = (
    b"", b"-0", b"+", b"-", b".", b"..", b"1.", b".5", b"5.", b"1e", b"e", b"e5", b"1e+", b"1e5.", b"1..5", b"1.2.3",
    b"1e400", b"-1e400", b"1e-400", b"1.7976931348623157e308", b"1.7976931348623159e308", b"0x1.8p1", b"0x.8p1",
    b"0x1.p1", b"0x.p1", b"0xep1", b"0xe", b"0x1p3", b"-0X1.8P-2d", b"0x1.8p99999", b"0x1.8p-99999", b"1.5f", b"1.5D",
    b"1.5ff", b"1f", b"1L", b"1.5L", b"NaN", b"nan", b"Infinity", b"inf", b"true", b"1_0", b"1_0.5", b"1,5", b"\t1.5",
    b"1.5\t", b"\x0b.5\x00", b"1\t", b"\xa01.5", b"9223372036854775808", b"-9223372036854775809",
    b"00000000000000000001", b"0000000000000000001", b"99999999999999999999", b"123456789012345678901234567890.0",
    b"1e99999999999999999999", b"0e99999999999999999999", b"1e-99999999999999999999", b"9007199254740993.0",
    b"16777217.0", b"3.4028235677973366e38", b"3.4028234663852886e38", b"--1", b"+-1.5", b"1 ", b"0x", b"0x.", b".e1",
    b"0xp1.",
    b"2.2250738585072012e-308", b"2.4703282292062328e-324", b"2.4703282292062327e-324", b"1.e5", b"1.f", b".f",
)  # fmt: skip
WORDS = (
    b"", b" ", b"  ", b"\t", b"\r", b"\r\n", b"\n", b"\0", b"\xff", b"\xff\xfb\x1f", b"=", b"==", b"a=", b"=a", b"a=b",
    b"put", b"put ", b"sync", b"rollup", b"histogram", b":", b"{", b"*", b"|", b",", b"\xd7", b"\xf7", b"\xaa", b"\xbf",
    b"a=b=c", b"-", b".", b"e", b"E", b"x" * 40, b"7" * 20, b"\x85", b"\xa0", b"\x1c", b"k=v " * 30,
)  # fmt: skip
MOST_BYTES = 1500  # per line, so that some are too long


class Lines:
    """Generates lines."""

    def __init__(self, rng: random.Random) -> None:
        self._rng = rng

    def block(self, count: int) -> bytes:
        """Return a block of lines. Many blocks have only valid lines, as most agents send them."""
        share = self._rng.choice((0.0, 0.0, 0.02, 0.2, 0.7, 1.0))
        return b"".join([self.line() if self._rng.random() < share else self._good() + b"\n" for _ in range(count)])

    def line(self) -> bytes:
        """Return any line, with its LF."""
        rng = self._rng
        kind = rng.random()
        if kind < 0.03:
            return rng.randbytes(rng.randint(0, 60)) + b"\n"
        line = self._good(odd=kind < 0.6)
        if kind > 0.4:
            for _ in range(rng.choice((1, 1, 1, 2, 3, 8))):
                line = self._changed(line)
        if rng.random() < 0.01:
            line += b"=" * rng.randint(0, MOST_BYTES)
        return line[:MOST_BYTES] + (b"\r\n" if rng.random() < 0.05 else b"\n")

    def _good(self, *, odd: bool = False) -> bytes:
        """Return a put line with valid words, or if `odd` with words at or beyond the limits."""
        choice = self._rng.choice
        time = choice(ODD_TIMES) if odd and self._rng.random() < 0.4 else choice(TIMES)
        value = choice(ODD_VALUES) if odd and self._rng.random() < 0.6 else self._value()
        count = choice((1, 1, 2, 3, 8, 9, 13)) if odd else choice((1, 1, 2))
        tags = b" ".join([choice(TAGKS) + b"=" + choice(TAGVS) for _ in range(count)])
        return b"put %b %b %b %b" % (choice(METRICS), time, value, tags)

    def _value(self) -> bytes:
        rng = self._rng
        kind = rng.random()
        if kind < 0.5:
            return rng.choice(VALUES)
        if kind < 0.6:
            return b"%d" % (rng.getrandbits(rng.choice((7, 8, 16, 31, 32, 53, 54, 63))) - rng.getrandbits(7))
        if kind < 0.8:
            return b"%.*f" % (rng.randint(0, 6), rng.uniform(-1000, 1000))
        if kind < 0.9:
            return repr(rng.uniform(-1, 1) * 10 ** rng.randint(-300, 300)).encode()
        return b"%d.%d" % (rng.randint(0, 99999), rng.randint(0, 999))

    def _changed(self, line: bytes) -> bytes:
        rng = self._rng
        at = rng.randint(0, len(line))
        match rng.randrange(8):
            case 0:
                return line[:at] + rng.choice(WORDS) + line[at:]
            case 1:
                return line[:at] + line[at + rng.randint(1, 3) :]
            case 2:
                return line[:at] + bytes([rng.randrange(256)]) + line[at + 1 :]
            case 3:
                return line[:at] + bytes([(line + b"p")[at] ^ 1 << rng.randrange(8)]) + line[at + 1 :]
            case 4:
                return line[:at]
            case 5:
                words = line.split(b" ")
                words.insert(rng.randint(0, len(words)), rng.choice((*words, *WORDS)))
                return b" ".join(words)
            case 6:
                words = line.split(b" ")
                words.pop(rng.randrange(len(words)))
                return b" ".join(words)
            case _:
                words = line.split(b" ")
                pool = rng.choice((ODD_VALUES, ODD_TIMES, WORDS, VALUES))
                words[rng.randrange(len(words))] = rng.choice(pool)
                return b" ".join(words)
