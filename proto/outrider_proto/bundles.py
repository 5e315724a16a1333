"""The manifest of an edge bundle, as plain values and as protobuf.

The client writes files by these names, so all of them are checked here, before anything is written.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase

from outrider_proto import verifier_pb2 as pb
from outrider_proto.description import same_fields
from outrider_proto.errors import Reason, Violation

CHUNK_BYTES = 64 * 1024  # as sent; small, so that progress shows within seconds on a slow link
MAX_CHUNK_BYTES = 256 * 1024
MAX_FILES = 64
MAX_BUNDLE_BYTES = 2**40
MAX_TEXT_BYTES = 2**28  # of a file without tensors, which the loader reads into memory whole
SHA256_BYTES = 32
_MAX_TEXT = 256
_MAX_OFFERS = 64
# An allowlist, for security: no pickles, no index that could name files elsewhere, no hidden files.
TARGET_FILES = (
    "config.json",
    "generation_config.json",
    "tokenizer*.json",
    "tokenizer*.model",
    "tokenizer*.txt",
    "special_tokens_map.json",
    "added_tokens.json",
    "vocab.json",
    "vocab.txt",
    "vocab.bpe",
    "merges.txt",
    "spiece.model",
    "chat_template.json",
    "chat_template.jinja",
)
_TEXTS = ("target_name", "target_fingerprint", "tokenizer_fingerprint", "tap", "drafter", "weights")
_OFFERS = ("drafters", "weights_on_offer")
_NAMES = ("bundle.json", "model.safetensors", "drafter/model.safetensors", "drafter/*.json", *TARGET_FILES)
_SPELLING = re.compile(r"(drafter/)?[A-Za-z0-9_](?:[A-Za-z0-9._-]{0,98}[A-Za-z0-9_])?")


@dataclass(frozen=True, slots=True)
class BundleFile:
    """A file of a bundle. Raises Violation for an unknown name, or a size or digest out of range."""

    name: str
    size_bytes: int
    sha256: bytes

    def __post_init__(self) -> None:
        if not _is_bundle_file(self.name):
            raise _malformed(f"names {self.name[:_MAX_TEXT]!r}, which is not a file of a bundle")
        most = MAX_BUNDLE_BYTES if self.name.endswith(".safetensors") else MAX_TEXT_BYTES
        if not 0 <= self.size_bytes <= most:
            raise _malformed(f"gives {self.name} {self.size_bytes} bytes: need 0 to {most}")
        if len(self.sha256) != SHA256_BYTES:
            raise _malformed(f"gives {self.name} a digest of {len(self.sha256)} bytes: need {SHA256_BYTES}")


@dataclass(frozen=True, slots=True)
class BundleManifest:
    """The files of a bundle. Raises Violation unless they make one bundle of bounded size."""

    target_name: str
    target_fingerprint: str
    tokenizer_fingerprint: str
    tap: str
    drafter: str
    weights: str
    files: tuple[BundleFile, ...]
    drafters: tuple[str, ...] = ()  # on offer
    weights_on_offer: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        # Lower case: on some file systems names that differ in case only are one file.
        names = [file.name.lower() for file in self.files]
        if not {"bundle.json", "config.json", "model.safetensors"} <= set(names):
            raise _malformed("lacks bundle.json, config.json or model.safetensors")
        if len(names) > MAX_FILES or len(set(names)) != len(names):
            raise _malformed(f"names {len(names)} files: need at most {MAX_FILES}, each once")
        if self.size_bytes > MAX_BUNDLE_BYTES:
            raise _malformed(f"has {self.size_bytes} bytes: need at most {MAX_BUNDLE_BYTES}")
        texts = same_fields(self, _TEXTS).values()
        if not all(map(_is_line, (*texts, *self.drafters, *self.weights_on_offer))):
            raise _malformed(f"has a text above {_MAX_TEXT} characters, or one that is not a single line")
        if max(len(self.drafters), len(self.weights_on_offer)) > _MAX_OFFERS:
            raise _malformed(f"offers more than {_MAX_OFFERS} bundles")

    @property
    def size_bytes(self) -> int:
        return sum(file.size_bytes for file in self.files)

    @property
    def bundle_id(self) -> str:
        """The hash of the content alone."""
        return bundle_id(self.files)


def bundle_id(files: Sequence[BundleFile]) -> str:
    """Return the hex SHA-256 over all files' digests, sizes and names."""
    lines = "".join(f"{file.sha256.hex()} {file.size_bytes} {file.name}\n" for file in files)
    return hashlib.sha256(lines.encode()).hexdigest()


def manifest_to_proto(manifest: BundleManifest) -> pb.BundleManifest:
    files = [pb.BundleFile(name=f.name, size_bytes=f.size_bytes, sha256=f.sha256) for f in manifest.files]
    return pb.BundleManifest(**same_fields(manifest, ("bundle_id", *_TEXTS, *_OFFERS)), files=files)


def manifest_from_proto(message: pb.BundleManifest | None) -> BundleManifest:
    """Raises Violation for anything a client should not act on, and for None, as gRPC returns for no message."""
    if message is None:
        raise _malformed("is no BundleManifest")
    if len(message.files) > MAX_FILES:
        raise _malformed(f"names {len(message.files)} files: need at most {MAX_FILES}")
    if max(len(message.drafters), len(message.weights_on_offer)) > _MAX_OFFERS:
        raise _malformed(f"offers more than {_MAX_OFFERS} bundles")
    files = tuple(BundleFile(f.name, f.size_bytes, f.sha256) for f in message.files)
    drafters, weights = tuple(message.drafters), tuple(message.weights_on_offer)
    manifest = BundleManifest(**same_fields(message, _TEXTS), files=files, drafters=drafters, weights_on_offer=weights)
    if message.bundle_id != manifest.bundle_id:
        raise _malformed(f"claims the id {message.bundle_id[:_MAX_TEXT]!r}, but its files make {manifest.bundle_id}")
    return manifest


def _is_bundle_file(name: str) -> bool:
    well_formed = _SPELLING.fullmatch(name) is not None and not name.endswith((".part", ".index.json"))
    return well_formed and any(fnmatchcase(name, pattern) for pattern in _NAMES)


def _is_line(text: str) -> bool:
    return len(text) <= _MAX_TEXT and (text.isprintable() or not text)


def _malformed(message: str) -> Violation:
    return Violation(Reason.MALFORMED_FRAME, f"the bundle's manifest {message}")
