"""Drafters: the taps that feed them, their networks and states, the trees they grow, the files they come from."""

from outrider_drafters.eagle2 import Eagle2, Eagle2Sizes
from outrider_drafters.fingerprint import target_fingerprint, tokenizer_fingerprint
from outrider_drafters.frozen import FrozenTarget, TargetSizes, resolve_dir
from outrider_drafters.moa import MoA, MoASizes, pack_kv

__all__ = [
    "Eagle2",
    "Eagle2Sizes",
    "FrozenTarget",
    "MoA",
    "MoASizes",
    "TargetSizes",
    "pack_kv",
    "resolve_dir",
    "target_fingerprint",
    "tokenizer_fingerprint",
]
