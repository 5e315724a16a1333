"""Writes the seeds of every target into the corpus, tests/fuzz/corpus/TARGET/NAME, beside what runs have found."""

import sys
from pathlib import Path

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "server")]

from fuzz_targets import NAMES, load  # noqa: E402 # after the path

CORPUS = HERE / "corpus"


def main(names: list[str]) -> None:
    for name in names or NAMES:
        folder = CORPUS / name
        folder.mkdir(parents=True, exist_ok=True)
        for label, data in load(name).seeds().items():
            (folder / label).write_bytes(data)


if __name__ == "__main__":
    main(sys.argv[1:])
