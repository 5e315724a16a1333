"""Tells what int8 costs: a target's codes and its own weights read the same text, one after the other.

The text is code, sums, chats and facts in plain English, which ship with the embedded target.
"""

from __future__ import annotations

import gc
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

import torch
import torch.nn.functional as F
from tokenizers import Tokenizer
from torch import Tensor

from outrider_drafters.checkpoints.hf_config import explained
from outrider_drafters.quantization.quantize import dtype_name
from outrider_drafters.readers.target_cache import is_cached
from outrider_models.core.held_out import FAMILIES, held_out
from outrider_proto.errors import OutriderError, UsageError
from outrider_proto.tree import DraftTree
from outrider_server.checking.environment import Finding
from outrider_server.config.config import ServerConfig
from outrider_server.engine.attention import FlatBatch
from outrider_server.engine.batch_segment import BatchSegment
from outrider_server.engine.hf_model import own_dtype, resolve_device, resolve_target
from outrider_server.engine.target import Target
from outrider_server.kv.budget import free_bytes
from outrider_server.kv.size import show_bytes
from outrider_server.kv.slot import KVSlot
from outrider_server.parallel.load import load_target

_SAMPLES = 2  # of each family: some 900 tokens
_KEPT = "outrider_quality.txt"  # in the directory of codes: what was told before


@dataclass(frozen=True, slots=True)
class Reading:
    """`choices`: the likeliest next tokens [positions]. `told`: what an earlier comparison has given."""

    directory: Path
    num_weights: int
    nats: float  # a token
    choices: Tensor
    told: str = ""


def read_codes(target: Target, config: ServerConfig) -> Reading | None:
    """Have an int8 target read the text; None for one that has no other weights or no tokenizer. Raises UsageError."""
    directory = resolve_target(config.target, config.dtype, resolve_device(config.device))[0]
    if not is_cached(directory) or target.tokenizer_fingerprint == "none":
        return None
    with suppress(OSError):
        return Reading(directory, 0, 0.0, torch.empty(0), (directory / _KEPT).read_text())
    return _read(target, directory)


def compared(codes: Reading, config: ServerConfig) -> Finding:
    """Compare a reading with that of the target's own weights, which are loaded for it. None of both is an error."""
    if codes.told:
        return Finding("int8", "ok", codes.told)
    gc.collect()  # the int8 target goes before the other comes
    own = own_dtype(config.target)
    name, needed = dtype_name(own), own.itemsize * codes.num_weights
    try:
        if needed > (free := free_bytes(torch.device("cpu"))):
            raise UsageError(f"they take {show_bytes(needed)}, {show_bytes(free)} is free")
        target = load_target(replace(config, dtype=name))
        try:
            plain = _read(target, codes.directory)
        finally:
            target.close()
    except OutriderError as error:
        return Finding("int8", "warning", f"not compared with its weights in {name}: {error}")
    same = (codes.choices == plain.choices).float().mean()
    text = (
        f"{codes.nats:.4f} nats a token, in {name} {plain.nats:.4f}; first choices equal at {same:.1%} of"
        f" {len(plain.choices)} tokens of English and code"
    )
    with suppress(OSError):  # told anew the next time
        (codes.directory / _KEPT).write_text(text)
    return Finding("int8", "ok", text)


@torch.inference_mode()
def _read(target: Target, directory: Path) -> Reading:
    try:
        tokenizer = Tokenizer.from_file(str(directory / "tokenizer.json"))
    except Exception as error:  # Rust's
        raise UsageError(f"{directory / 'tokenizer.json'}: {explained(error)}") from error
    nats, choices = list[Tensor](), list[Tensor]()
    for sample in (each for family in FAMILIES for each in held_out(family, _SAMPLES)):
        ids = tokenizer.encode("\n".join(turn.content for turn in sample.conversation())).ids[: target.max_context]
        if max(ids) >= target.vocab_size:
            raise UsageError(f"{directory / 'tokenizer.json'}: token {max(ids)}: the target has {target.vocab_size}")
        segment = BatchSegment(KVSlot(target.kv), len(ids), DraftTree(), max_position=len(ids))
        batch = FlatBatch([segment], invariant=target.batch_invariant)
        logits = target.forward(ids, segment.positions, batch, list(range(len(ids))), frozenset()).logits.float()
        nats.append(F.cross_entropy(logits[:-1], torch.tensor(ids[1:]), reduction="none"))
        choices.append(logits.argmax(-1))
    num_weights = sum(parameter.numel() for parameter in target.model.parameters())
    return Reading(directory, num_weights, float(torch.cat(nats).mean()), torch.cat(choices))
