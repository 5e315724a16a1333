"""MoA from its files: the published training layout, vLLM's `moa_spec`, and our own export of the former.

The client half is Ekv2E, SA, CA and the target's last layers, between its embedding and its lm_head.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters.blocks.fused import FusedBlock, FusedLayers
from outrider_drafters.blocks.last_layers import LastLayers
from outrider_drafters.blocks.layers import WEIGHTS, BlockShape, Rope, stored_shape
from outrider_drafters.blocks.rope import rope_scaling
from outrider_drafters.blocks.row_buffer import JointCache, RowBuffer
from outrider_drafters.blocks.token_state import TokenState, TreeMask
from outrider_drafters.checkpoints.draft_vocabulary import split_logits
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION, DrafterOption
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.drafter import Drafter, WithTokenState
from outrider_drafters.contracts.tap import LastHiddenTap, Tap
from outrider_drafters.families.family import Family
from outrider_drafters.families.moa.network import LSA_HEADS, NAME, MoA, MoASizes, MoATap, tap_info, unpack_kv
from outrider_drafters.readers.checkpoint import join_names
from outrider_drafters.readers.config import config_int
from outrider_drafters.trees.grow import Level
from outrider_proto.tree import DraftTree

_NO_TREE = DraftTree()


class MoADrafter(Drafter):
    """Client half of MoA, whose weights take the target's type. It reads the last layers unless `last` is given."""

    family = NAME
    stale_tolerant = True  # its T-step mask trains it for that
    tree_in_one_pass = True

    def __init__(self, moa: MoA, target: TargetWeights, last: LastLayers | None = None) -> None:
        sizes = moa.sizes
        self.target = target
        self.tap = tap_info(moa, target.sizes)  # of the weights as stored: before the cast
        moa = moa.to(target.embed.device, target.embed.dtype)
        self.vocab_size = target.sizes.vocab
        self.mixed_width = sizes.mixed_width
        self.ekv2e = moa.Ekv2E if sizes.lsa else nn.Identity()
        self.sa, self.ca = FusedBlock(moa.self_attention), FusedBlock(moa.cross_attention)
        last = target.last_layers(sizes.tli) if sizes.tli and last is None else last
        self.tail = FusedLayers([FusedBlock(block) for block in last.blocks], last.windows, last.norm) if last else None
        self._one_rope = sizes.sa.rope_scaling is None

    def new_state(self) -> MoAState:
        return MoAState(self)

    def ropes(self, positions: Tensor) -> tuple[Rope, Rope]:
        """Return SA's and CA's rotations."""
        # Only SA is scaled, as in the published training: see MoASizes.
        rope = self.ca.shape.rope(positions)
        return (rope if self._one_rope else self.sa.shape.rope(positions)), rope


class LastLayersState:
    """K/V of one text in the target's last layers: target layer inference (arXiv 2410.03804, 3.2).

    position   0 .. t-1            t .. root                      drafted
    K/V        the target's own    made here, and rebuilt when    made here, dropped with
               (features)          more features come             the next root
    """

    def __init__(self, layers: FusedLayers, like: Tensor) -> None:
        self.cache, shape = layers.new_cache(), layers.shape
        width = len(self.cache.layers) * 2 * shape.kv_heads * shape.head_dim
        self.features = RowBuffer(width=width, dtype=like.dtype, device=like.device)  # packed K/V of the target
        self._num_true = 0  # rows of the caches that are the target's own
        self._num_text_rows = 0  # those and the rows made here for text tokens; drafted rows follow

    def rollback(self, num_tokens: int) -> None:
        self.features.truncate(num_tokens)
        self._num_true = min(self._num_true, num_tokens)
        self._num_text_rows = min(self._num_text_rows, num_tokens)

    def begin(self, usable: int, root: int) -> int:
        """Drop drafted rows and take over K/V of `usable` positions; return the first to be run, at most the root."""
        if usable != self._num_true:
            self._take(min(self._num_true, usable), usable)
        start = min(self._num_text_rows, root)
        self.cache.truncate(start)
        self._num_text_rows = root + 1
        return start

    def _take(self, first: int, end: int) -> None:
        self.cache.truncate(first)
        keys_values = unpack_kv(self.features.all[first:end], len(self.cache.layers), self.cache.keys.shape[1])
        for cache, keys, values in zip(self.cache.layers, *keys_values, strict=True):
            cache.append(keys, values)
        self._num_true = self._num_text_rows = end


class MoAState(WithTokenState):
    """SA's cache over the tokens, CA's over the features, the last layers' over both."""

    def __init__(self, drafter: MoADrafter) -> None:
        self._drafter = drafter
        self._device = drafter.target.embed.device
        self._token_state = TokenState(drafter.tap.width)
        self._sa_cache = drafter.sa.new_cache()
        self._ca_cache = drafter.ca.new_cache()
        self._tail = None if drafter.tail is None else LastLayersState(drafter.tail, drafter.target.embed)
        self._tree_mask = TreeMask(self._device)
        self._num_text_rows = 0  # rows of SA's cache that are tokens'; draft rows follow
        self._num_visible = 0  # rows of CA's cache that this drafting sees

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        start, width = self._token_state.num_features, self._drafter.mixed_width
        rows = self._token_state.add_features(first, rows).to(self._drafter.target.embed)
        positions = torch.arange(start, start + len(rows), device=self._device)
        rope = self._drafter.ca.shape.rope(positions)
        self._drafter.ca.append_kv(self._drafter.ekv2e(rows[:, :width]), rope, self._ca_cache)
        if self._tail is not None:
            self._tail.features.append(rows[:, width:])

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)
        self._num_text_rows = min(self._num_text_rows, num_tokens)
        self._ca_cache.truncate(self._token_state.num_features)
        if self._tail is not None:
            self._tail.rollback(num_tokens)

    def root_logits(self) -> Tensor:
        return self.tree_logits(_NO_TREE)[0]

    @torch.inference_mode()
    def tree_logits(self, tree: DraftTree) -> Tensor:
        self._token_state.need_root()
        self._tree_mask.clear()
        tokens, root, usable = self._token_state.tokens, self.num_tokens - 1, self._token_state.usable
        # Includes at least the root, whose query is needed.
        start = root if self._tail is None else self._tail.begin(usable, root)
        first = min(self._num_text_rows, start)
        self._sa_cache.truncate(first)
        rope, _ = self._drafter.ropes(torch.arange(first, start, device=self._device))
        self._drafter.sa.append_kv(self._embeds(tokens[first:start]), rope, self._sa_cache)
        self._num_text_rows, self._num_visible = self.num_tokens, usable
        positions = torch.arange(start, self.num_tokens, device=self._device)
        mask = _causal(positions)
        if tree.tokens:
            depths, sees = self._tree_mask.add(tree.parents, self._num_text_rows)
            positions, mask = torch.cat((positions, depths + root)), _above(mask, sees)
        hidden = _hidden([self], [[*tokens[start:], *tree.tokens]], [positions], [mask])
        return self._logits(hidden[root - start :])

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        (logits,) = self.expand_together([(self, Level(tokens, parents))])
        return logits

    @staticmethod
    @torch.inference_mode()
    def expand_together(levels: Sequence[tuple[MoAState, Level]]) -> list[Tensor]:
        states, tokens = [state for state, _ in levels], [level.tokens for _, level in levels]
        positions, masks = [], []
        for state, level in levels:
            depths, mask = state._tree_mask.add(level.parents, state._num_text_rows)
            positions.append(depths + (state.num_tokens - 1))
            masks.append(mask)
        return split_logits(states[0]._logits(_hidden(states, tokens, positions, masks)), [len(own) for own in tokens])

    def _logits(self, hidden: Tensor) -> Tensor:
        return self._drafter.target.logits(hidden)

    def _embeds(self, tokens: Sequence[int]) -> Tensor:
        return F.embedding(torch.tensor(tokens, dtype=torch.int64, device=self._device), self._drafter.target.embed)


def _hidden(
    states: Sequence[MoAState],
    tokens: Sequence[Sequence[int]],
    positions: Sequence[Tensor],
    masks: Sequence[Tensor | None],
) -> Tensor:
    """Append rows to SA's and the last layers' caches and return their states [n, E] for lm_head, text behind text.

    masks[i] [n of text i, rows of its cache] bool; None: they see all.
    """
    drafter, sizes, every = states[0]._drafter, [len(own) for own in tokens], torch.cat(list(positions))
    sa_rope, ca_rope = drafter.ropes(every)
    embeds = states[0]._embeds([token for own in tokens for token in own])
    attended = drafter.sa.run(embeds, sa_rope, JointCache([state._sa_cache for state in states], masks, sizes))
    seen = [state._ca_cache.first(state._num_visible) for state in states]
    crossed = drafter.ca.cross_attend(attended, ca_rope, seen, sizes)
    caches = [state._tail.cache for state in states if state._tail is not None]
    if drafter.tail is None:
        return crossed
    return drafter.tail.run(crossed, drafter.tail.shape.rope(every), JointCache(caches, masks, sizes))


def _above(mask: Tensor | None, sees: Tensor) -> Tensor:
    """Join the mask of text rows (None: one row that sees all of the text) with that of a tree's nodes below them."""
    num_nodes, num_rows = sees.shape
    standing = sees.new_ones(1, num_rows - num_nodes) if mask is None else mask
    return torch.cat((F.pad(standing, (0, num_nodes)), sees))


def _causal(positions: Tensor) -> Tensor | None:
    """Return the causal mask of consecutive rows over all rows up to theirs; None for a single row, which sees all."""
    if len(positions) == 1:
        return None
    rows = torch.arange(int(positions[-1]) + 1, device=positions.device)
    return rows <= positions.unsqueeze(1)


TLI = DrafterOption.whole("tli", "number of target layers that the client runs (paper, 3.2)")
LSA, SA, CA = "layer_self_attention.", "self_attention.", "cross_attention."
LSA_PARTS = (LSA, "Ekv2E.")
PARTS = (*LSA_PARTS, SA, CA)
REQUIRED = frozenset(block + name for block in (SA, CA) for name in WEIGHTS)
REQUIRED_FOR_LSA = frozenset({"Ekv2E.weight", "Ekv2E.bias"} | {LSA + name for name in WEIGHTS})


def sizes_of(files: DrafterFiles) -> MoASizes:
    """Read the sizes from the tensors, TLI from the options or the config. Raises UsageError."""
    has_lsa = _has_lsa(files)
    files.need(REQUIRED | (REQUIRED_FOR_LSA if has_lsa else frozenset()))
    sa, ca = (stored_shape(files.checkpoint, block, files.config) for block in (SA, CA))
    lsa = stored_shape(files.checkpoint, LSA, files.config, LSA_HEADS) if has_lsa else None
    _check_config_sizes(files, lsa, sa, ca)
    return MoASizes(replace(sa, rope_scaling=rope_scaling(files.config)), ca, lsa, _tli(files))


def _has_lsa(files: DrafterFiles) -> bool:
    """True if the files hold LSA's tensors. Raises UsageError if vLLM's disable_LSA contradicts them."""
    parts = sorted(name for name in files.names if name.startswith(LSA_PARTS))
    disabled = files.config.get("disable_LSA")
    if disabled and parts:
        raise files.fault(f"config.json says disable_LSA, but it holds {join_names(parts)}: remove one of both")
    return bool(parts) or disabled is False


def _tli(files: DrafterFiles) -> int:
    """Read TLI from the options or the config."""
    # Neither published layout holds it, only our own export: for published files the user has to name it.
    if (chosen := files.options.get(TLI)) is not None:
        return chosen
    stated = files.config.get("target_layer_inference") or 0
    if not isinstance(stated, int) or stated < 0:
        raise files.fault(f"config.json: target_layer_inference={stated}: need 0 or more")
    return stated


def _check_config_sizes(files: DrafterFiles, lsa: BlockShape | None, sa: BlockShape, ca: BlockShape) -> None:
    """Raise UsageError if the config's sizes are not those of the tensors."""
    # Sizes come from tensors alone: defaults of vLLM's config class, such as kv_hidden_size=1024, are often wrong.
    expected = {"hidden_size": sa.width, "head_dim": sa.head_dim}
    for block, shape in ((LSA, lsa), (SA, sa), (CA, ca)):
        if shape is not None:
            expected[f"{block[:-1]}_num_key_value_heads"] = shape.kv_heads
            expected[f"{block[:-1]}_intermediate_size"] = shape.mlp
    if lsa is not None:
        expected["kv_hidden_size"] = lsa.width
    for key, size in expected.items():
        if (stated := config_int(files.config, key, size)) != size:
            raise files.fault(f"config.json says {key}={stated}, but its tensors make it {size}")


def _load(files: DrafterFiles, target: TargetSizes) -> MoA:
    files.need_vocabulary(target)
    sizes = sizes_of(files)
    files.need_equal("hidden size", sizes.sa.width, target.hidden)
    if not target.has_equal_layers and (sizes.lsa or sizes.tli):
        raise files.fault(f"reads K/V of one shape: the layers of {target.model_type} differ in theirs")
    if sizes.lsa is not None:
        files.need_equal("width of packed K/V", sizes.lsa.width, target.packed_kv)
    if sizes.tli > target.layers:
        raise files.fault(f"tli={sizes.tli}: the target has {target.layers} layers")
    return files.build(lambda: MoA(sizes))


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> Tap:
    moa = _load(files, target)
    return MoATap(moa, target, like) if moa.sizes.lsa or moa.sizes.tli else LastHiddenTap(target.hidden)


FAMILY = Family(
    name=NAME,
    features="K/V of all target layers, mixed to one row a token; with TLI those of its last layers too",
    offline="goes on",
    trees="dynamic",
    recognizes=lambda files: any(name.startswith(PARTS) for name in files.names),
    drafter=lambda files, target: MoADrafter(_load(files, target.sizes), target),
    tap=_load_tap,
    keep_unquantized=lambda name: name.startswith(LSA),
    options=(TLI, DRAFT_VOCAB_OPTION),
)
