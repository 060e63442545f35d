"""A Java process that runs one source file with OpenTSDB's jars and answers each line with a line."""

import subprocess
from pathlib import Path

from scripts.peers.java import fetch, find_java


class JavaProcess:
    """Calls OpenTSDB's classes."""

    def __init__(self, source: str, *options: str) -> None:
        """`source` is the name of a file in this folder; `options` are the virtual machine's."""
        command = [find_java(), *options, "-cp", f"{fetch('opentsdb')}/*", Path(__file__).with_name(source)]
        self._java = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL)

    def call(self, question: str, *words: str | int) -> str:
        """Return the result, `= …`, or the error, `! …`. Texts are passed in hex."""
        assert self._java.stdin
        assert self._java.stdout
        shown = (str(word) if isinstance(word, int) else word.encode().hex() for word in words)
        self._java.stdin.write(" ".join((question, *shown)).encode() + b"\n")
        self._java.stdin.flush()
        return bytes.fromhex(self._java.stdout.readline().decode()).decode()

    def close(self) -> None:
        self._java.communicate(timeout=60)
