"""Fingerprints by which client and server tell whether they speak of the same target, tokenizer and tap.

All are over values, not files: layout, storage type and sharding do not matter.
"""

import hashlib
import json
from collections.abc import Mapping
from dataclasses import astuple
from pathlib import Path

from torch import Tensor

from outrider_drafters.checkpoints.bundle import find_bundle
from outrider_drafters.checkpoints.target_weights import borrowed_names, resolve_dir, sizes_of
from outrider_drafters.readers.checkpoint import Checkpoint, read_exact_rows, sampled_rows
from outrider_drafters.readers.config import read_config, read_json
from outrider_proto.files import MAX_TOKENIZER_BYTES

DIGEST_BYTES = 16
HASHED_SIZES = 10  # fields of TargetSizes: with those that came later, the fingerprints of all targets would change
TARGET_FINGERPRINT_KEY = "outrider_target_fingerprint"  # key of a drafter's config.json
TOKENIZING = ("added_tokens", "model", "normalizer", "pre_tokenizer")  # what decides which ids a text gets


def target_fingerprint(name_or_path: str | Path) -> str:
    """Compute the hex digest of a target's sizes, embedding and lm_head, the parts that a client has."""
    directory = resolve_dir(name_or_path)
    if (bundle := find_bundle(directory)) is not None:
        return bundle.target_fingerprint
    config, checkpoint = read_config(directory), Checkpoint(directory)
    embed_name, head_name = borrowed_names(config, checkpoint)
    exact = read_exact_rows(directory)
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    sizes = astuple(sizes_of(config, checkpoint.matrix(head_name)))
    digest.update(repr(sizes[:HASHED_SIZES]).encode())
    for name in (embed_name, head_name):
        rows = exact[name] if name in exact else sampled_rows(checkpoint.read(name))
        digest.update(_value_bytes(rows))
    return digest.hexdigest()


def write_target_fingerprint(directory: Path, target: str | Path) -> None:
    """Record in an exported drafter's config.json which target it was made for; other software ignores the key."""
    path = directory / "config.json"
    path.write_text(
        json.dumps({**read_json(path), TARGET_FINGERPRINT_KEY: target_fingerprint(target)}, indent=2) + "\n"
    )


def tokenizer_fingerprint(name_or_path: str | Path) -> str:
    """Compute the hex digest of the parts of tokenizer.json that decide token ids; "none" without that file."""
    path = resolve_dir(name_or_path) / "tokenizer.json"
    if not path.is_file():
        return "none"
    tokenizer = read_json(path, MAX_TOKENIZER_BYTES)
    parts = json.dumps({key: tokenizer.get(key) for key in TOKENIZING}, sort_keys=True)
    return hashlib.blake2b(parts.encode(), digest_size=DIGEST_BYTES).hexdigest()


def tensors_fingerprint(tensors: Mapping[str, Tensor]) -> str:
    """Compute the hex digest of named tensors as float32."""
    digest = hashlib.blake2b(digest_size=DIGEST_BYTES)
    for name in sorted(tensors):
        digest.update(f"{name}{list(tensors[name].shape)}".encode())
        digest.update(_value_bytes(tensors[name]))
    return digest.hexdigest()


def _value_bytes(tensor: Tensor) -> bytes:
    # As float32, so that the same values stored as bfloat16 and as float32 have one digest.
    return tensor.detach().float().cpu().contiguous().numpy().tobytes()
