"""Find a Java for the peers, and fetch their jars once from Maven Central with Maven."""

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
from collections.abc import Iterator
from pathlib import Path

from scripts.peers.process import PeerError, locked

OLDEST, NEWEST = 17, 23  # HBase 2.6 targets 17; Java 24 removed what its Hadoop libraries need to log in
INSTALL = "apt-get install openjdk-17-jdk-headless maven"
COPY_JARS = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy-dependencies"
POMS = Path(__file__).parent
LOGBACK = """\
<configuration>
  <appender name="out" class="ch.qos.logback.core.ConsoleAppender">
    <encoder><pattern>%d %-5level %logger{0}: %msg%n</pattern></encoder>
  </appender>
  <root level="WARN"><appender-ref ref="out"/></root>
</configuration>
"""


@functools.cache
def find_java() -> Path:
    """Return a Java that can run the peers, preferably 17: JAVA_HOME's, the one on PATH, or one in /usr/lib/jvm. Raises
    PeerError with the versions found."""
    seen: dict[Path, int] = {}
    for java in _javas():
        seen.setdefault(java, _version(java))
        if seen[java] == OLDEST:
            return java
    for java, version in seen.items():
        if OLDEST <= version <= NEWEST:
            return java
    found = ", ".join(f"{java} (version {version or 'unknown'})" for java, version in seen.items())
    raise PeerError(
        f"needs Java 17 (JAVA_HOME, or java on PATH): {f'there is only {found}' if found else 'there is none'}."
        f" On Debian or Ubuntu: {INSTALL}"
    )


def jars_of(name: str) -> Path:
    """Return the folder for the jars of NAME.pom.xml."""
    pom = POMS / f"{name}.pom.xml"
    digest = hashlib.sha256(pom.read_bytes() + COPY_JARS.encode()).hexdigest()[:12]
    return cache_folder() / f"{name}-{digest}"


def fetch(name: str) -> Path:
    """Return the folder of jars, and fetch them first if they are missing. Concurrent calls wait for the first one.

    The folder is renamed when all jars are in it, so a folder with the final name is complete. Raise PeerError.
    """
    check(name)
    jars = jars_of(name)
    if jars.is_dir():
        return jars
    with locked(cache_folder() / f"{name}.lock"):
        if not jars.is_dir():
            print(f"{name}: fetching its jars to {jars} (once, 40 to 110 MB)", flush=True)
            with tempfile.TemporaryDirectory(prefix=f".{name}-", dir=cache_folder()) as unfinished:
                _copy_jars(POMS / f"{name}.pom.xml", Path(unfinished) / "jars")
                (Path(unfinished) / "jars").rename(jars)
    return jars


def check(name: str) -> None:
    """Raise PeerError if `name` cannot run here because Java is missing, or Maven while jars are missing."""
    find_java()
    if not jars_of(name).is_dir():
        find_maven(name)


def _copy_jars(pom: Path, folder: Path) -> None:
    maven = find_maven(pom.name.removesuffix(".pom.xml"))
    java_home = str(find_java().resolve().parent.parent)  # Maven itself only searches PATH
    options = ["--batch-mode", "--quiet", "--strict-checksums", f"--file={pom}"]
    done = subprocess.run(
        [maven, *options, COPY_JARS, "-DincludeScope=runtime", f"-DoutputDirectory={folder}"],
        check=False,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        env=os.environ | {"JAVA_HOME": java_home},
    )
    if done.returncode or not any(folder.glob("*.jar")):
        output = "\n".join(f"  {line}" for line in done.stdout.splitlines()[-25:])
        raise PeerError(
            f"Maven could not fetch the jars of {pom} (it needs Maven Central or a mirror of it):\n{output}"
        )


def find_maven(name: str) -> str:
    """Return Maven's path. Raise PeerError."""
    maven = shutil.which("mvn")
    if maven is None:
        raise PeerError(f"needs Maven (mvn on PATH) to fetch the jars of {name}. On Debian or Ubuntu: {INSTALL}")
    return maven


def cache_folder() -> Path:
    """Return the folder of all downloads."""
    own = os.environ.get("TSD_PEERS_CACHE")
    cache = Path(own) if own else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tsd-peers"
    cache.mkdir(parents=True, exist_ok=True)
    return cache.resolve()


def _javas() -> Iterator[Path]:
    if home := os.environ.get("JAVA_HOME"):
        yield Path(home) / "bin" / "java"
    if on_path := shutil.which("java"):
        yield Path(on_path)
    yield from sorted(Path("/usr/lib/jvm").glob("*17*/bin/java"))
    yield from sorted(Path("/usr/lib/jvm").glob("*/bin/java"))


def _version(java: Path) -> int:
    """Return the feature release of a Java (8, 11, 17, …); 0 if unknown."""
    try:
        output = subprocess.run([java, "-version"], check=False, capture_output=True, text=True, timeout=60)
    except (OSError, subprocess.TimeoutExpired):
        return 0
    match = re.search(r'version "(?:1\.)?(\d+)', output.stderr)
    return int(match[1]) if match else 0
