"""An edge bundle: all that a client needs of one target and one drafter, in a directory that is complete by itself.

DIR/bundle.json               what it is of, how it was made, a digest of every other file
DIR/config.json, tokenizer... the target's, unchanged
DIR/model.safetensors         the target's embedding and lm_head, and the last layers a drafter runs, maybe as codes
DIR/drafter/                  the drafter's, the same

Where a target's directory is asked for, DIR can be given, and where a drafter's is, DIR too. Its fingerprints are those
of the full target, as they were when it was made: codes would have others.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from outrider_drafters.checkpoints.source import DrafterOptions, DrafterSource
from outrider_drafters.readers.config import read_json
from outrider_proto.errors import UsageError

MANIFEST = "bundle.json"
DRAFTER = "drafter"
VERSION = 1
DIGEST_BYTES = 16


@dataclass(frozen=True, slots=True)
class FileDigest:
    """By which a file is known again."""

    size_bytes: int
    blake2b: str  # hex

    @classmethod
    def of(cls, path: Path) -> FileDigest:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES))
        return cls(path.stat().st_size, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Bundle:
    """What bundle.json says. `drafter` is the name of a drafter without files, or the folder of one with."""

    weights: str
    target: str
    target_fingerprint: str
    tokenizer_fingerprint: str
    drafter: str
    options: Mapping[str, Any]  # DrafterOptions' fields, those that were given
    tap: Mapping[str, Any]  # TapInfo's fields
    sizes: Mapping[str, Any]  # TargetSizes' fields
    made_by: Mapping[str, str]
    files: Mapping[str, FileDigest] = field(default_factory=dict)

    def source(self, directory: Path, given: DrafterOptions) -> DrafterSource:
        """Where the drafter of the bundle in `directory` is, and its options unless others are given."""
        name = str(directory / DRAFTER) if self.drafter == DRAFTER else self.drafter
        recorded = {key: tuple(value) if isinstance(value, list) else value for key, value in self.options.items()}
        return DrafterSource(name, DrafterOptions(**{**recorded, **given.chosen()}))

    def write(self, directory: Path) -> None:
        """Mark the files that are there and write bundle.json, which makes the directory a bundle."""
        files = {name: asdict(FileDigest.of(directory / name)) for name in _files_in(directory)}
        told = {"format": "outrider-bundle", "version": VERSION, **asdict(self), "files": files}
        (directory / MANIFEST).write_text(json.dumps(told, indent=2) + "\n")


def find_bundle(directory: Path) -> Bundle | None:
    """The bundle in a directory, its files checked against their digests; None for a directory that is none.

    Raises UsageError for one that is damaged, incomplete, or of a version that is not known.
    """
    if not (directory / MANIFEST).is_file():
        return None
    stamps = tuple(sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in directory.rglob("*")))
    return _checked(directory, stamps)


@lru_cache(maxsize=8)
def _checked(directory: Path, stamps: object) -> Bundle:
    """Once for every state of the files: a client asks several times."""
    bundle = _read(directory)
    for name, mark in bundle.files.items():
        path = directory / name
        if not path.is_file():
            raise UsageError(f"{path}: missing from the bundle; make it anew with outrider-models bundle")
        if FileDigest.of(path) != mark:
            raise UsageError(f"{path}: not as the bundle was made; copy it again, or make it anew")
    return bundle


def _read(directory: Path) -> Bundle:
    told = dict(read_json(directory / MANIFEST))
    if told.pop("format", None) != "outrider-bundle" or told.pop("version", None) != VERSION:
        raise UsageError(f"{directory / MANIFEST}: not an edge bundle of version {VERSION}; make it anew")
    try:
        marks = {_inside(name): FileDigest(**mark) for name, mark in told.pop("files").items()}
        return Bundle(**told, files=marks)
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{directory / MANIFEST}: damaged ({error}); make it anew") from error


def _inside(name: str) -> str:
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"file {name!r} lies outside")
    return name


def _files_in(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
