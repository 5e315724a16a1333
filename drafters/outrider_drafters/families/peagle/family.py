"""P-EAGLE from published files: a row for every token of the text, then rows of masks, in one causal pass.

speculators   layers.*, EAGLE-3's settings, mask_token_id; the number of drafts stands in proposal_methods alone
vLLM          the same tensors with a flat config.json, which calls the mask ptd_token_id or pard_token and does not say
              how many tokens are drafted

Known tokens whose features are still on their way have rows of their own: token and mask_hidden. What is missing of a
row, its token or its feature, is the mask's.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.row_buffer import RowBuffer
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.eagle3_gguf import TARGET_LAYERS
from outrider_drafters.checkpoints.options import DrafterOption
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tree_shape import MAX_LEVELS, TreePlan
from outrider_drafters.families import shared_layout
from outrider_drafters.families.block_state import BlockDrafter, BlockState
from outrider_drafters.families.eagle3.family import BESIDE, fused_layers, make_tap
from outrider_drafters.families.eagle3.family import FAMILY as EAGLE3
from outrider_drafters.families.eagle3.layout import IDS, SETTINGS, canonical, config_value, sizes_of
from outrider_drafters.families.eagle3.network import tap_info
from outrider_drafters.families.peagle.network import PEagle, PEagleSizes
from outrider_drafters.readers.config import KIND, NESTED, config_int

NAME = "peagle"
_FEW_ROWS = 16  # those of a verdict, not of a prompt


class PEagleDrafter(BlockDrafter):
    """Client half; the server half is Eagle3Tap."""

    family = NAME

    def __init__(self, network: PEagle, target: TargetWeights, plan: TreePlan | None = None) -> None:
        tap = tap_info(network, target.sizes.layers)  # of the weights as stored: before the cast
        network = network.to(target.embed.device, target.embed.dtype)
        super().__init__(target, tap, network.num_drafts, plan, network.embed_tokens)
        self.mask_token = network.mask_token
        self.block = fused_layers(network)
        self.mask_feature = network.mask_feature()
        self._norm = network.norm
        self.head = target.head_for(None if network.lm_head is None else network.lm_head.weight, network.draft_tokens)

    def new_state(self) -> PEagleState:
        return PEagleState(self)

    def logits(self, outputs: Tensor) -> Tensor:
        """Compute logits [n, Vd] float32 over the tokens that can be drafted, of the layers' outputs [n, H]."""
        return self.head.drafted(self._norm(outputs))


class PEagleState(BlockState):
    """The cache of the text's rows, token t + 1 with feature t, rebuilt as features arrive, and the draft's block."""

    def __init__(self, drafter: PEagleDrafter) -> None:
        super().__init__(drafter)
        self._drafter = drafter
        self._device = drafter.embed.device
        self._features = RowBuffer(width=drafter.tap.width, dtype=drafter.embed.dtype, device=self._device)
        self._cache = drafter.block.new_cache()
        self._num_true = 0  # rows of the text whose features had arrived when they were made

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        self._features.append(self._token_state.add_features(first, rows).to(self._drafter.embed))

    def rollback(self, num_tokens: int) -> None:
        super().rollback(num_tokens)
        self._features.truncate(self._token_state.num_features)
        self._num_true = min(self._num_true, self._token_state.usable)
        self._cache.truncate(max(0, num_tokens - 1))

    def _run_blocks(self, paths: Sequence[Sequence[int]]) -> Tensor:
        drafter, tokens, usable = self._drafter, self._token_state.tokens, self._token_state.usable
        if self._num_true < usable:
            self._cache.truncate(self._num_true)
            self._num_true = usable
        # The root's row runs again in every pass: its output is asked for. A text of one token has row -1 alone.
        self._cache.truncate(max(0, len(tokens) - 2))
        first = min(self._cache.length, len(tokens) - 2)
        text, masks = tokens[first + 1 :], [drafter.mask_token] * (drafter.num_drafts - 1)
        blocks = [[*path, *masks] for path in paths]
        ids = torch.tensor([*text, *(token for block in blocks for token in block)], device=self._device)
        known = self._features.all[max(0, first) : usable]
        features = torch.cat((known, drafter.mask_feature.expand(len(ids) - len(known), -1)))
        pairs = torch.cat((F.embedding(ids, drafter.embed), features), dim=-1)
        outputs = self._outputs(pairs, first, len(text), [len(block) for block in blocks])
        self._cache.truncate(len(tokens) - 1)
        root, *own = torch.split(outputs, [1, *(len(block) for block in blocks)])
        drafted = torch.cat([torch.cat((root, rows))[-drafter.num_drafts :] for rows in own])
        return drafter.logits(drafted).view(len(paths), drafter.num_drafts, -1)

    def _outputs(self, pairs: Tensor, first: int, num_text: int, sizes: Sequence[int]) -> Tensor:
        """Append a text's rows from `first` on, and blocks'; outputs [1 + k, H] of the text's last row and these."""
        block, early = self._drafter.block, num_text - 1
        behind = [num_text + row for size in sizes for row in range(size)]
        positions = first + torch.tensor([*range(num_text), *behind], device=self._device)
        if early > _FEW_ROWS:
            block.append_kv(pairs[:early], block.shape.rope(positions[:early]), self._cache)
            pairs, positions, num_text = pairs[early:], positions[early:], 1
        held = self._cache.length
        of = [-1] * num_text + [number for number, size in enumerate(sizes) for _ in range(size)]
        blocks = torch.tensor(of, device=self._device)
        # Causal, and no row of a block sees another block's.
        seen = ((blocks == -1) | (blocks[:, None] == blocks)).tril()
        seen = torch.cat((seen.new_ones(len(seen), held), seen), dim=1)
        return block.run(pairs, block.shape.rope(positions), self._cache, seen)[num_text - 1 :]


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
    network = files.build(lambda: PEagle(sizes), also_known=BESIDE)
    shared_layout.check_vocabulary(files, sizes.eagle.draft_vocab, target.vocab)
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
    stated = shared_layout.speculative_tokens(files) or config_int(files.config, NUM_DEPTHS, NUM_DRAFTS)
    num_drafts = files.options.get(DRAFTS) or stated
    return PEagleSizes(eagle, shared_layout.mask_token(files, target, MASK_TOKENS), shape, min(num_drafts, MAX_LEVELS))


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> PEagleDrafter:
    network = load_network(files, target.sizes)
    return PEagleDrafter(network, target, shared_layout.best_first_or_chain(files, network.num_drafts))


FAMILY = replace(
    EAGLE3,
    name=NAME,
    trees="chain",
    recognizes=lambda files: files.config.get(KIND) == NAME or not files.names.isdisjoint(MASKS),
    drafter=_load_drafter,
    tap=lambda files, target, like: make_tap(load_network(files, target), target, like),
    asked=0,  # before EAGLE-3, which also recognizes these files
    options=("rope_theta", "embedding", "target_layers", "draft_vocab", "ddtree", DRAFTS),
)
