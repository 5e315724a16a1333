"""Drafters: the taps that feed them, their networks and states, the trees they grow, the files they come from."""

from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tokenizer_fingerprint
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights, resolve_dir
from outrider_drafters.contracts.drafter import Drafter, DraftState
from outrider_drafters.contracts.tap import Activations, LastHiddenTap, Tap
from outrider_drafters.contracts.text_drafter import TextDrafter
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.families.eagle2.family import Eagle2, Eagle2Drafter, Eagle2Sizes
from outrider_drafters.families.moa.network import MoA, MoASizes, pack_kv
from outrider_drafters.families.moa.state import MoADrafter
from outrider_drafters.families.moa.tap import MoATap
from outrider_drafters.load import load_drafter, load_tap
from outrider_drafters.quantization.torchao_log import hush_torchao
from outrider_drafters.trees.grow import grow_tree

hush_torchao()  # before anything imports transformers, which imports torchao where that is installed

__all__ = [
    "Activations",
    "DraftState",
    "Drafter",
    "Eagle2",
    "Eagle2Drafter",
    "Eagle2Sizes",
    "LastHiddenTap",
    "MoA",
    "MoADrafter",
    "MoASizes",
    "MoATap",
    "Tap",
    "TargetSizes",
    "TargetWeights",
    "TextDrafter",
    "TreeShape",
    "grow_tree",
    "load_drafter",
    "load_tap",
    "pack_kv",
    "resolve_dir",
    "target_fingerprint",
    "tokenizer_fingerprint",
]
