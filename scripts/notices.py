"""`python -m scripts.notices FOLDER`: the licences of the Python packages installed in a folder, with their texts.

Fail if a package names no licence and has no text of one.
"""

import sys
from collections.abc import Iterator
from importlib.metadata import Distribution, distributions
from pathlib import Path

RULE = "=" * 80
WORDS = ("LICEN", "COPYING", "NOTICE", "AUTHORS")


def main() -> None:
    """Print the notices."""
    lacking = []
    for found in sorted(distributions(path=[sys.argv[1]]), key=lambda one: one.name.lower()):
        name, texts = licence(found), list(files(found))
        if not name and not texts:
            lacking.append(found.name)
        print(f"{RULE}\n{found.name} {found.version}\nLicence: {name or 'see its text'}\n")
        for path, text in texts:
            print(f"--- {path}\n\n{text.strip()}\n")
    if lacking:
        sys.exit(f"notices: no licence is known of {', '.join(lacking)}")


def licence(found: Distribution) -> str:
    """Return the name of a package's licence, empty if its metadata have none."""
    metadata = found.metadata
    if "License-Expression" in metadata:
        return metadata["License-Expression"]
    names = [line for line in metadata.get_all("Classifier") or () if "License ::" in line]
    classes = [line.rpartition("::")[2].strip() for line in names]
    named = metadata["License"].partition("\n")[0].strip() if "License" in metadata else ""
    return ", ".join(classes) or named


def files(found: Distribution) -> Iterator[tuple[str, str]]:
    """Yield the path and the text of each licence file of a package."""
    for path in found.files or ():
        inside = ".dist-info" in path.parts[0] or len(path.parts) == 2
        if inside and any(word in path.name.upper() for word in WORDS) and path.suffix not in (".py", ".pyc"):
            located = Path(str(found.locate_file(path)))
            if located.is_file():
                yield str(path), located.read_text("utf-8", "replace")


if __name__ == "__main__":
    main()
