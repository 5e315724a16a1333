"""An edge bundle: all that a client needs of one target and one drafter, in one self-contained directory.

DIR/bundle.json               its target and drafter, how it was made, a digest of every other file
DIR/config.json, tokenizer... the target's, unchanged
DIR/model.safetensors         the target's embedding and lm_head, and the last layers a drafter runs, maybe as codes
DIR/drafter/                  the drafter's, the same

DIR can be given wherever the directory of a target or of a drafter is asked for. Its fingerprints are those of the full
target, recorded when it was made: quantized weights would hash to others.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from functools import lru_cache
from pathlib import Path
from typing import Any

from outrider_drafters.checkpoints.options import ALL_TOKENS, DRAFT_VOCAB_OPTION, DrafterOptions
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.readers.config import read_json
from outrider_proto.errors import UsageError

MANIFEST = "bundle.json"
DRAFTER = "drafter"
VERSION = 1
DIGEST_BYTES = 16
_PLAIN = re.compile(r"[A-Za-z0-9_.+-]{1,64}")  # numbers, lists of them, and words


@dataclass(frozen=True, slots=True)
class FileDigest:
    """A file's size and digest."""

    size_bytes: int
    blake2b: str  # hex

    @classmethod
    def of(cls, path: Path) -> FileDigest:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=DIGEST_BYTES))
        return cls(path.stat().st_size, digest.hexdigest())


@dataclass(frozen=True, slots=True)
class Bundle:
    """The contents of bundle.json. `drafter` names a drafter without files, or the folder of one with files."""

    weights: str
    target: str
    target_fingerprint: str
    tokenizer_fingerprint: str
    drafter: str
    options: Mapping[str, Any]  # as given to DrafterOptions
    tap: Mapping[str, Any]  # TapInfo's fields
    sizes: Mapping[str, Any]  # TargetSizes' fields
    made_by: Mapping[str, str]
    files: Mapping[str, FileDigest] = field(default_factory=dict)

    def source(self, directory: Path, given: DrafterOptions) -> DrafterSource:
        """Return the source of this bundle's drafter; `given` options take precedence over recorded ones."""
        name = str(directory / DRAFTER) if self.drafter == DRAFTER else self.drafter
        return DrafterSource(name, DrafterOptions(**{**self.options, **given.given()}))

    def write(self, directory: Path) -> None:
        """Record the files in `directory` and write bundle.json, which makes it a bundle."""
        files = {name: asdict(FileDigest.of(directory / name)) for name in _files_in(directory)}
        manifest = {"format": "outrider-bundle", "version": VERSION, **asdict(self), "files": files}
        (directory / MANIFEST).write_text(json.dumps(manifest, indent=2) + "\n")


def find_bundle(directory: Path) -> Bundle | None:
    """Return the bundle in a directory, all files as their digests say; None if there is none. Raises UsageError."""
    if not (directory / MANIFEST).is_file():
        return None
    for path in directory.rglob("*"):
        if path.is_symlink() or not (path.is_file() or path.is_dir()):
            raise UsageError(f"{path}: a link or a device: a bundle's files lie inside it; put the file itself there")
    stamps = tuple(sorted((str(path), path.stat().st_size, path.stat().st_mtime_ns) for path in directory.rglob("*")))
    return _checked(directory, stamps)


@lru_cache(maxsize=8)
def _checked(directory: Path, stamps: object) -> Bundle:
    """Read and check a bundle, once per state of its files."""
    # `stamps` only serves the cache: names, sizes and times. A client looks for the bundle several times at start.
    bundle = _read(directory)
    for name, digest in bundle.files.items():
        path = directory / name
        if not path.is_file():
            raise UsageError(f"{path}: missing from the bundle; make it again with outrider-models bundle")
        if FileDigest.of(path) != digest:
            raise UsageError(f"{path}: not as the bundle was made; copy it again, or make it again")
    return bundle


def _read(directory: Path) -> Bundle:
    manifest = dict(read_json(directory / MANIFEST))
    if manifest.pop("format", None) != "outrider-bundle" or manifest.pop("version", None) != VERSION:
        raise UsageError(f"{directory / MANIFEST}: not an edge bundle of version {VERSION}; make it again")
    try:
        digests = {_inside(name): FileDigest(**digest) for name, digest in manifest.pop("files").items()}
        return _typed(Bundle(**manifest, files=digests))
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise UsageError(f"{directory / MANIFEST}: damaged ({error}); make it again") from error


def _typed(bundle: Bundle) -> Bundle:
    """Return it. Raises ValueError for a value of another type, and for an option that names a file or a place."""
    texts = (bundle.weights, bundle.target, bundle.target_fingerprint, bundle.tokenizer_fingerprint, bundle.drafter)
    if not all(isinstance(text, str) for text in (*texts, bundle.tap["fingerprint"])):
        raise ValueError("need texts for weights, target, drafter and fingerprints")
    if not all(isinstance(part, Mapping) for part in (bundle.options, bundle.sizes, bundle.made_by)):
        raise ValueError("need objects for options, sizes and made_by")
    vocab = bundle.sizes.get("vocab", 1)
    if type(vocab) is not int or vocab < 1:
        raise ValueError(f"sizes: vocab={vocab!r}: need a whole number of at least 1")
    for name, value in bundle.options.items():
        text = str(value)
        plain = isinstance(value, (str, int, float)) and _PLAIN.fullmatch(text) and ".." not in text
        # Other drafters' draft_vocab may be a file's path, read from wherever it lies.
        if not plain or (name == DRAFT_VOCAB_OPTION.name and text != ALL_TOKENS and not text.isdecimal()):
            raise ValueError(f"option {name}={text[:80]!r}: need a number or a word; a bundle's options name no files")
    return bundle


def _inside(name: str) -> str:
    # A manifest comes from a server: it must not name files outside the bundle.
    if Path(name).is_absolute() or ".." in Path(name).parts:
        raise ValueError(f"file {name!r} lies outside")
    return name


def _files_in(directory: Path) -> list[str]:
    return sorted(path.relative_to(directory).as_posix() for path in directory.rglob("*") if path.is_file())
