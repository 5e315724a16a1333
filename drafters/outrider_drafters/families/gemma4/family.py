"""Gemma-4 assistants from published files: their client half and their declaration.

The client half keeps no K/V of its own, only what the target lends. Where features lag, the tokens without them are run
like drafted ones: all stand where the first of them does. Without any feature, a hidden state of zeros starts that, and
attention adds nothing.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import cast

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.row_buffer import KVCache, RowBuffer
from outrider_drafters.blocks.token_state import TokenState
from outrider_drafters.checkpoints.draft_vocabulary import split_logits
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights, kv_sizes
from outrider_drafters.contracts.drafter import Drafter, WithTokenState
from outrider_drafters.families.family import Family
from outrider_drafters.families.gemma4.network import (
    KINDS,
    NAME,
    Assistant,
    AssistantSizes,
    Kind,
    Lent,
    LentShape,
    LentTap,
    tap_info,
)
from outrider_drafters.readers.config import config_int, config_number, config_part, rms_norm_eps
from outrider_drafters.trees.grow import Level


class AssistantDrafter(Drafter):
    """Client half: the network between the target's embedding and its own head.

    `lenders`: the target's layers whose K/V it reads. `row_tokens` [rows]: the tokens that the rows of a plain head
    stand for; None: row i is token i.
    """

    family = NAME

    def __init__(
        self, network: Assistant, target: TargetWeights, lenders: tuple[int, ...], row_tokens: Tensor | None = None
    ) -> None:
        self.network = network
        self.target = target
        self.tap = tap_info(network.sizes, lenders)
        self.vocab_size = target.sizes.vocab
        is_plain = network.masked_embedding is None
        self._head = target.head_for(network.lm_head.weight, row_tokens) if is_plain else None
        # Rounded to the weights' type, as in transformers: in bfloat16 the root of 3072 is 55.5.
        self._scale = torch.tensor(network.sizes.backbone**0.5).to(target.embed.device, network.norm.weight.dtype)

    def new_state(self) -> AssistantState:
        return AssistantState(self)

    def run(
        self, tokens: Sequence[int], before: Tensor, texts: Sequence[Lent], counts: Sequence[int]
    ) -> tuple[Tensor, Tensor]:
        """Run rows, given `before` [n, E] of the tokens before: states for the head [n, width], and theirs [n, E]."""
        embeds = F.embedding(torch.tensor(tokens, device=before.device), self.target.embed).to(before) * self._scale
        hidden = self.network.run(torch.cat((embeds, before), dim=-1), texts, counts)
        return hidden, self.network.post_projection(hidden)

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [n, V] float32 of states [n, width]."""
        return self.network.ordered_logits(hidden) if self._head is None else self._head.logits(hidden)


class AssistantState(WithTokenState):
    """What the target lends of the text, and the hidden states of draft rows."""

    def __init__(self, drafter: AssistantDrafter) -> None:
        sizes, like = drafter.network.sizes, drafter.network.norm.weight
        self._drafter = drafter
        self._token_state = TokenState(sizes.feature_width)
        self._caches: dict[Kind, KVCache] = {
            kind: KVCache(sizes.lent[kind].kv_heads, sizes.lent[kind].head_dim, like.dtype, like.device)
            for kind in sizes.borrowed
        }
        self._hidden = RowBuffer(width=sizes.backbone, dtype=like.dtype, device=like.device)
        self._lent: Lent | None = None  # of the current draft
        self._position = 0  # at which it stands
        self._stale: list[Tensor] = []  # [1, E] of the tokens from there on that the root follows
        self._rows = self._hidden.all  # [1 + n, E] of the root and every draft row

    @torch.inference_mode()
    def add_features(self, first: int, rows: Tensor) -> None:
        sizes = self._drafter.network.sizes
        parts = [part for kind in sizes.borrowed for part in [sizes.lent[kind].width // 2] * 2]
        lacking = self._token_state.add_features(first, rows).to(self._hidden.all)
        *lent, hidden = torch.split(lacking, [*parts, sizes.backbone], dim=1)
        for number, (kind, cache) in enumerate(self._caches.items()):
            shape = (len(lacking), sizes.lent[kind].kv_heads, sizes.lent[kind].head_dim)
            keys, values = (part.reshape(shape).transpose(0, 1) for part in lent[2 * number : 2 * number + 2])
            cache.append(keys, values)
        self._hidden.append(hidden)

    def rollback(self, num_tokens: int) -> None:
        self._token_state.rollback(num_tokens)
        for cache in self._caches.values():
            cache.truncate(self._token_state.num_features)
        self._hidden.truncate(self._token_state.num_features)
        del self._stale[max(num_tokens - 1 - self._position, 0) :]

    @torch.inference_mode()
    def root_logits(self) -> Tensor:
        self._begin()
        assert self._lent is not None
        hidden, self._rows = self._drafter.run(self._token_state.tokens[-1:], self._before_root(), [self._lent], [1])
        return self._drafter.logits(hidden)[0]

    def expand(self, tokens: Sequence[int], parents: Sequence[int]) -> Tensor:
        (logits,) = self.expand_together([(self, Level(tokens, parents))])
        return logits

    @staticmethod
    @torch.inference_mode()
    def expand_together(levels: Sequence[tuple[AssistantState, Level]]) -> list[Tensor]:
        drafter, counts = levels[0][0]._drafter, [len(level.tokens) for _, level in levels]
        before = torch.cat([state._rows[[1 + parent for parent in level.parents]] for state, level in levels])
        texts = [state._lent for state, _ in levels if state._lent is not None]
        hidden, after = drafter.run([token for _, level in levels for token in level.tokens], before, texts, counts)
        for (state, _), own in zip(levels, torch.split(after, counts), strict=True):
            state._rows = torch.cat((state._rows, own))
        return split_logits(drafter.logits(hidden), counts)

    def _begin(self) -> None:
        """Take over what the target lends for a new draft, and run the tokens between that and the root."""
        self._token_state.need_root()
        position = self._token_state.usable
        if position != self._position:
            self._position = position
            self._stale.clear()
        self._lent = self._lend(position)
        for token in self._token_state.tokens[position + len(self._stale) : -1]:
            self._stale.append(self._drafter.run([token], self._before_root(), [self._lent], [1])[1])

    def _before_root(self) -> Tensor:
        """Return the hidden state [1, E] of the last token that has been run."""
        if self._stale:
            return self._stale[-1]
        last = self._hidden.all[: self._position][-1:]
        return last if len(last) else last.new_zeros(1, self._drafter.network.sizes.backbone)

    def _lend(self, position: int) -> Lent:
        sizes = self._drafter.network.sizes
        # transformers' bidirectional window counts from the last key and takes in both ends: window + 1 keys. With the
        # target's own cache it has one less after a pass of a single token, which no verdict's is.
        first = {"sliding_attention": max(0, position - 1 - sizes.window), "full_attention": 0}
        return Lent(
            {
                kind: (cache.keys[:, :, first[kind] : position], cache.values[:, :, first[kind] : position])
                for kind, cache in self._caches.items()
            },
            {kind: sizes.lent[kind].rope(position, self._hidden.all.device) for kind in self._caches},
        )


EMBEDDING, LM_HEAD = "model.embed_tokens.weight", "lm_head.weight"
HEADS = (EMBEDDING, LM_HEAD)
PROJECTIONS = frozenset({"pre_projection.weight", "post_projection.weight"})
CENTROIDS, ORDERING = "masked_embedding.centroids.weight", "masked_embedding.token_ordering"
ACTIVATION = "gelu_pytorch_tanh"


def canonical(files: DrafterFiles) -> DrafterFiles:
    """Return the files with names without `model.`, and one head: a tied one is the embedding."""
    tied = LM_HEAD not in files.names

    def rename(name: str) -> str | None:
        if name == EMBEDDING:
            return LM_HEAD if tied else None
        return name.removeprefix("model.")

    return files.with_checkpoint(files.checkpoint.renamed(rename))


def read_sizes(files: DrafterFiles, target: TargetSizes) -> AssistantSizes:
    """Read the sizes of canonical files. Raises UsageError for what is made for another target, or not understood."""
    config = files.config
    files.need(PROJECTIONS | {LM_HEAD, "norm.weight"} | ({CENTROIDS, ORDERING} if _is_ordered(files) else set()))
    files.need_vocabulary(target)
    width, twice = files.checkpoint.matrix("pre_projection.weight")
    backbone = config_int(config, "backbone_hidden_size", twice // 2)
    files.need_equal("backbone_hidden_size", backbone, target.hidden)
    if (activation := config.get("hidden_activation", ACTIVATION)) != ACTIVATION:
        raise files.fault(f"hidden_activation={activation}: need {ACTIVATION}")
    kinds = _kinds(files)
    heads = config_int(config, "num_attention_heads")
    rows, centroids = files.checkpoint.matrix(LM_HEAD)[0], 0
    if _is_ordered(files):
        centroids = files.checkpoint.matrix(CENTROIDS)[0]
        files.need_equal(f"rows of {LM_HEAD}", rows, target.vocab)
        files.need_equal("num_centroids", config_int(config, "num_centroids", centroids), centroids)
        if target.vocab % centroids:
            raise files.fault(f"num_centroids={centroids}: does not divide the {target.vocab} tokens")
    best = config_int(config, "centroid_intermediate_top_k", 32)
    if centroids and best > centroids:
        raise files.fault(f"centroid_intermediate_top_k={best}: there are {centroids} centroids")
    return AssistantSizes(
        backbone=backbone,
        width=width,
        heads=heads,
        mlp=files.checkpoint.matrix("layers.0.mlp.gate_proj.weight")[0],
        eps=rms_norm_eps(config),
        kinds=kinds,
        lent={kind: _lent(files, kinds.index(kind), kind, heads) for kind in KINDS if kind in kinds},
        window=config_int(config, "sliding_window", 512),
        vocab=target.vocab,
        head_rows=rows,
        centroids=centroids,
        best_centroids=best,
    )


def lenders(files: DrafterFiles, sizes: AssistantSizes, target: TargetSizes) -> tuple[int, ...]:
    """Return the target's layers that lend their K/V: of each kind the last that keeps some. Raises UsageError."""
    last = {kv.kind: layer for layer, kv in enumerate(target.kv_layers)}
    if missing := [kind for kind in sizes.borrowed if kind not in last]:
        raise files.fault(
            f"reads K/V of the target's last {missing[0]} layer, which {target.model_type or 'this target'} has not:"
            " made for a Gemma-4 target"
        )
    for kind in sizes.borrowed:
        files.need_equal(f"width of K/V of {kind}", sizes.lent[kind].width, target.kv_layers[last[kind]].width)
    return tuple(last[kind] for kind in sizes.borrowed)


def load_network(files: DrafterFiles, target: TargetSizes) -> Assistant:
    """Load the network. Raises UsageError for what is not made for this target, or not understood."""
    files = canonical(files)
    sizes = read_sizes(files, target)
    network = files.build(lambda: Assistant(sizes))
    if (clusters := network.masked_embedding) is not None:
        ids = clusters.token_ordering.to(torch.int64).sort().values
        if not torch.equal(ids, torch.arange(target.vocab)):
            raise files.fault(f"{ORDERING}: need every token of the {target.vocab} once")
    return network


def _is_ordered(files: DrafterFiles) -> bool:
    return CENTROIDS in files.names or bool(files.config.get("use_ordered_embeddings"))


def _kinds(files: DrafterFiles) -> tuple[Kind, ...]:
    """Return the kind of each stored layer."""
    stored = 1 + max(
        (int(found[1]) for name in files.names if (found := re.match(r"layers\.(\d+)\.", name))), default=-1
    )
    types = files.config.get("layer_types")
    if not isinstance(types, list) or len(types) != stored or not stored:
        raise files.fault(f"layer_types={types}: need a kind for each of the {stored} layers in the file")
    if wrong := sorted({str(kind) for kind in types} - set(KINDS)):
        raise files.fault(f"layer_types: {wrong[0]}: need {' or '.join(KINDS)}")
    return tuple(cast(Kind, kind) for kind in types)


def _lent(files: DrafterFiles, layer: int, kind: Kind, heads: int) -> LentShape:
    """Read what the layers of a kind borrow, from the first of them."""
    name = f"layers.{layer}.self_attn.q_proj.weight"
    rows, _ = files.checkpoint.matrix(name)
    if rows % heads or (head_dim := rows // heads) % 2:
        raise files.fault(f"{name}: {rows} rows do not make {heads} heads of an even width")
    kv_heads, _ = kv_sizes(files.config, layer, kind)
    if heads % kv_heads:
        raise files.fault(f"{kv_heads} K/V heads of {kind}: must divide num_attention_heads={heads}")
    rope = config_part(config_part(files.config, "rope_parameters"), kind)
    rope_type = rope.get("rope_type", "default" if kind == "sliding_attention" else "proportional")
    if rope_type not in ("default", "proportional"):
        raise files.fault(f"rope_parameters: {kind} of type {rope_type}: need default or proportional")
    theta = config_number(rope, "rope_theta", 1e4 if kind == "sliding_attention" else 1e6)
    if rope_type == "default":
        return LentShape(kv_heads, head_dim, theta, head_dim // 2)
    share = config_number(rope, "partial_rotary_factor", 1.0 if rope else 0.25)
    return LentShape(kv_heads, head_dim, theta, int(share * head_dim // 2), config_number(rope, "factor", 1.0))


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> AssistantDrafter:
    network = load_network(files, target.sizes)
    found = lenders(files, network.sizes, target.sizes)
    tokens = None
    if network.sizes.centroids:
        if target.draft_tokens is not None:
            raise files.fault("draft_vocab: its ordered head chooses its tokens itself; leave the option out")
    else:
        tokens = canonical(files).row_tokens(LM_HEAD, target.sizes.vocab)
    network = network.to(target.embed.device, target.embed.dtype)
    return AssistantDrafter(network, target, found, tokens)


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> LentTap:
    sizes = read_sizes(canonical(files), target)
    found = lenders(files, sizes, target)
    return LentTap(tap_info(sizes, found), found)


FAMILY = Family(
    name=NAME,
    features="K/V of the target's last sliding and last full layer, and its last hidden state",
    offline="goes on",
    trees="dynamic",
    recognizes=lambda files: files.names >= PROJECTIONS,
    drafter=_load_drafter,
    tap=_load_tap,
    is_head=lambda name: name in HEADS,
    options=(DRAFT_VOCAB_OPTION,),
)
