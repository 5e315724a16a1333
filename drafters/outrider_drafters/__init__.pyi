from .blocks.layers import BlockShape
from .checkpoints.draft_vocabulary import write_draft_vocab
from .checkpoints.drafter_files import DrafterFiles
from .checkpoints.fingerprint import target_fingerprint, tokenizer_fingerprint
from .checkpoints.options import DrafterOption, DrafterOptions
from .checkpoints.source import DrafterSource
from .checkpoints.target_weights import TargetSizes, TargetWeights, resolve_dir
from .contracts.drafter import Drafter, DraftState
from .contracts.tap import Activations, LastHiddenTap, StatelessTap, Tap, TapState
from .contracts.text_drafter import TextDrafter
from .contracts.tree_choices import TreeChoices
from .contracts.tree_shape import TreePlan, TreeShape
from .emulation.pace import Pace
from .emulation.paced_drafter import PacedDrafter
from .families.eagle2.family import Eagle2Drafter
from .families.eagle2.network import Eagle2, Eagle2Sizes
from .families.family import Family
from .families.feature_drafter import FeatureDrafter, FeatureRows
from .families.lookup.family import LookupDrafter
from .families.moa.family import MoADrafter
from .families.moa.network import MoA, MoASizes, MoATap, pack_kv
from .load import load_drafter, load_tap
from .readers.checkpoint import write_model
from .routing.keywords import Keywords
from .routing.routed_drafter import RoutedDraft, RoutedDrafter
from .routing.rules import Routing
from .state_checks import check_drafter
from .trees.grow import ScoredTree, grow_tree

__all__ = [
    "Activations",
    "BlockShape",
    "DraftState",
    "Drafter",
    "DrafterFiles",
    "DrafterOption",
    "DrafterOptions",
    "DrafterSource",
    "Eagle2",
    "Eagle2Drafter",
    "Eagle2Sizes",
    "Family",
    "FeatureDrafter",
    "FeatureRows",
    "Keywords",
    "LastHiddenTap",
    "LookupDrafter",
    "MoA",
    "MoADrafter",
    "MoASizes",
    "MoATap",
    "Pace",
    "PacedDrafter",
    "RoutedDraft",
    "RoutedDrafter",
    "Routing",
    "ScoredTree",
    "StatelessTap",
    "Tap",
    "TapState",
    "TargetSizes",
    "TargetWeights",
    "TextDrafter",
    "TreeChoices",
    "TreePlan",
    "TreeShape",
    "check_drafter",
    "grow_tree",
    "load_drafter",
    "load_tap",
    "pack_kv",
    "resolve_dir",
    "target_fingerprint",
    "tokenizer_fingerprint",
    "write_draft_vocab",
    "write_model",
]
