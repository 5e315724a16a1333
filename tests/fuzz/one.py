"""atheris on one target: `one.py NAME [libFuzzer's options] [CORPUS ...]`. A finding ends it, with a status above 0."""

from __future__ import annotations

import logging
import os
import re
import sys
import tempfile
import warnings
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

os.environ.setdefault("OMP_NUM_THREADS", "1")
os.environ["TOKENIZERS_PARALLELISM"] = "false"

import atheris

HERE = Path(__file__).parent
sys.path[:0] = [str(HERE), str(HERE.parent / "server")]


def main(name: str, options: list[str]) -> None:
    import fuzz_targets

    for package in ("numpy", "google.protobuf", "zstandard"):
        __import__(package)  # not to be instrumented
    with atheris.instrument_imports(
        include=["outrider_proto", "outrider_client", "outrider_server", "outrider_drafters"]
    ):
        target = fuzz_targets.load(name)
    for data in target.seeds().values():
        with suppress(Exception):  # libFuzzer will find it again, and say more
            target(data)  # imports what is imported late
    warnings.simplefilter("error")
    logging.disable(logging.CRITICAL)
    with tempfile.TemporaryFile("w") as words:  # without a name: libFuzzer ends this process before we could remove it
        words.write(_words(target.seeds().values()))
        words.flush()
        places = f"-dict=/dev/fd/{words.fileno()}"
        atheris.Setup([sys.argv[0], f"-max_len={target.max_len}", places, *options], target)
        atheris.Fuzz()


def _words(seeds: Iterable[bytes]) -> str:
    """Names and words that text formats are made of, as a dictionary of libFuzzer's."""
    found = sorted(set(re.findall(r'"(\w+)"', b" ".join(seeds).decode("latin1"))))
    quoted = [f'"\\"{word}\\""\n' for word in found if word.isascii()]
    return "".join(quoted) or '"\\x00"\n'


if __name__ == "__main__":
    main(sys.argv[1], sys.argv[2:])
