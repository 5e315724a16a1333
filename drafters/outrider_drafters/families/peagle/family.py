"""P-EAGLE from published files, and its declaration.

speculators   layers.*, EAGLE-3's settings, mask_token_id; the number of drafts stands in proposal_methods alone
vLLM          the same tensors with a flat config.json, which calls the mask ptd_token_id or pard_token and does not say
              how many tokens are drafted
"""

import math
from dataclasses import replace
from typing import Any

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.eagle3_gguf import TARGET_LAYERS
from outrider_drafters.checkpoints.options import (
    DDTREE_OPTION,
    DRAFT_VOCAB_OPTION,
    EMBEDDING_OPTION,
    ROPE_THETA_OPTION,
    TARGET_LAYERS_OPTION,
    DrafterOption,
)
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tree_shape import MAX_LEVELS
from outrider_drafters.families.eagle3.family import FAMILY as EAGLE3
from outrider_drafters.families.eagle3.family import make_tap
from outrider_drafters.families.eagle3.layout import SETTINGS, canonical, sizes_of
from outrider_drafters.families.eagle3.network import tap_info
from outrider_drafters.families.eagle3.tap_layers import IDS, config_value
from outrider_drafters.families.peagle.drafter import NAME, PEagleDrafter
from outrider_drafters.families.peagle.network import PEagle, PEagleSizes
from outrider_drafters.families.shared_layout import (
    D2T,
    EMBEDDING,
    T2D,
    best_first_or_chain,
    check_vocabulary,
    mask_token,
    speculative_tokens,
)
from outrider_drafters.readers.config import KIND, NESTED, config_int

MASK_HIDDEN = "mask_hidden"
MASKS = (MASK_HIDDEN, f"model.{MASK_HIDDEN}")
MASK_TOKENS = ("mask_token_id", "pard_token", "ptd_token_id")
NUM_DEPTHS = "num_depths"  # in early files of speculators
OWN_SETTINGS = frozenset(("mask_token_id", NUM_DEPTHS))
DRAFTS = DrafterOption.whole("drafts", "tokens to draft in one pass", least=1)
NUM_DRAFTS = 8  # depths of speculators' training and the paper's, where a file does not say


def load_network(files: DrafterFiles, target: TargetSizes) -> PEagle:
    """Load the network. Raises UsageError for what is not made for this target, or not understood."""
    if NESTED in files.config:
        files.need_understood(SETTINGS | OWN_SETTINGS)
    files = _with_defaults(canonical(files))
    sizes = _read_sizes(files, target)
    network = files.build(lambda: PEagle(sizes), also_known=frozenset({EMBEDDING, D2T, T2D}))
    check_vocabulary(files, sizes.eagle.draft_vocab, target.vocab)
    return network


def _with_defaults(files: DrafterFiles) -> DrafterFiles:
    """Spell out what differs from EAGLE-3 where the config is silent (models/peagle/config.py)."""
    config: dict[str, Any] = {"norm_before_residual": False, "embed_requires_grad": True}  # Any: raw JSON
    config |= {key: value for key, value in files.config.items() if value is not None}
    # Hidden states' indices as they stand: no such file counts layers by their outputs, as some of EAGLE-3's do.
    ids = config_value(config, IDS)
    if isinstance(ids, list) and all(type(layer) is int for layer in ids):
        config[TARGET_LAYERS] = sorted(ids)
    return replace(files, config=config)


def _read_sizes(files: DrafterFiles, target: TargetSizes) -> PEagleSizes:
    files.need(frozenset({MASK_HIDDEN}))
    eagle, shape = sizes_of(files, target), files.checkpoint.shape(MASK_HIDDEN)
    width = len(eagle.target_layers) * target.hidden or eagle.hidden
    if math.prod(shape) != width:
        raise files.fault(f"tensor {MASK_HIDDEN} has shape {list(shape)}: need {width} values, as fc takes")
    stated = speculative_tokens(files) or config_int(files.config, NUM_DEPTHS, NUM_DRAFTS)
    num_drafts = files.options.get(DRAFTS) or stated
    return PEagleSizes(eagle, mask_token(files, target, MASK_TOKENS), shape, min(num_drafts, MAX_LEVELS))


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> PEagleDrafter:
    network = load_network(files, target.sizes)
    info = tap_info(network, target.sizes.layers)  # before the cast: the fingerprint is of the values as stored
    network = network.to(target.embed.device, target.embed.dtype)
    plan = best_first_or_chain(files, network.num_drafts)
    return PEagleDrafter(network, target, info, plan)


FAMILY = replace(
    EAGLE3,
    name=NAME,
    trees="chain",
    recognizes=lambda files: files.config.get(KIND) == NAME or not files.names.isdisjoint(MASKS),
    drafter=_load_drafter,
    tap=lambda files, target, like: make_tap(load_network(files, target), target, like),
    asked=0,  # before EAGLE-3, which also recognizes these files
    options=(ROPE_THETA_OPTION, EMBEDDING_OPTION, TARGET_LAYERS_OPTION, DRAFT_VOCAB_OPTION, DDTREE_OPTION, DRAFTS),
)
