"""Hydra and Hydra++ from published files, and their declaration. network.py has the formulas.

kind         blocks                       output                       besides
mlp          hydra_mlp.H.L                hydra_lm_head.H
prefix-mlp   hydra_mlp.H.1, .3, .5 ...    hydra_lm_head.H.1            prefix_embeding_layer [sic]

Copies of the target's embedding (input_embed_fn, the prefix layer's) are ignored.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from outrider_drafters.blocks.layers import WEIGHTS, BlockShape, stored_shape
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION, ROPE_THETA_OPTION
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.families.family import Family
from outrider_drafters.families.heads import HeadsDrafter, NewestHiddenTap, TokenPath, default_choices
from outrider_drafters.families.hydra.network import OWN_OUTPUT, Hydra, HydraPrefixTap, HydraSizes, tap_info
from outrider_drafters.readers.checkpoint import Checkpoint

NAME = "hydra"
PREFIX = "prefix_embeding_layer."
PREFIX_BLOCK = PREFIX + "layers.0."
EMBEDDINGS = ("input_embed_fn.weight", PREFIX + "embed_tokens.weight")
ROPE_THETA = 10000.0  # of the prefix layer: the published code ignores the target's rope_theta
KINDS = ("mlp", "prefix-mlp")
BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")
FIRST_BLOCK = "hydra_mlp.0.0.linear.weight"
HEAD = "hydra_lm_head.0.weight"  # all heads' outputs have its shape
OUTPUT = re.compile(r"hydra_lm_head\.(\d+)\.(?:\d+\.)?(weight|bias)")


class HydraDrafter(HeadsDrafter):
    """Client half; the server half is NewestHiddenTap, or HydraPrefixTap for Hydra++."""

    family = NAME

    def __init__(self, hydra: Hydra, target: TargetWeights, row_tokens: Tensor | None = None) -> None:
        """`row_tokens` [rows]: what the outputs' rows stand for; None if every token has one."""
        count = hydra.sizes.heads
        super().__init__(target, tap_info(hydra), count, default_choices(count))
        self.knows_next = hydra.prefix is None and hydra.sizes.offset == 0
        self.grounded = hydra.sizes.grounded
        hydra = hydra.to(self.like.device, self.like.dtype)  # after tap_info(), which is of the weights as stored
        # Not the network itself: its outputs would stay beside the rows of a draft vocabulary.
        self.blocks = [blocks for blocks, _ in hydra.heads]
        self.heads = [
            target.head_for(None) if one is None else target.head_for(one.weight, row_tokens, one.bias.detach())
            for _, one in hydra.heads
        ]

    def after(self, feature: Tensor, lines: Sequence[TokenPath], held: dict[TokenPath, Tensor]) -> Tensor:
        head = len(lines[0]) - 1
        if not self.grounded:
            return self.logits(head, feature).expand(len(lines), -1)
        tokens = torch.tensor(lines, dtype=torch.int64, device=feature.device)
        embeds = F.embedding(tokens, self.target.embed).flatten(1)
        return self.logits(head, torch.cat((feature.expand(len(lines), -1), embeds), dim=-1))

    def logits(self, head: int, x: Tensor) -> Tensor:
        """Compute a head's logits [n, V] float32 from x [n, inputs x E]."""
        for block in self.blocks[head]:
            x = block(x)
        return self.heads[head].logits(x)


def recognizes(files: DrafterFiles) -> bool:
    by_name = any(BLOCK.fullmatch(name) or OUTPUT.fullmatch(name) for name in files.names)
    return by_name or "hydra_head_arch" in files.config


def _load(files: DrafterFiles, target: TargetSizes) -> Hydra:
    """Read the network as stored."""
    files.need_vocabulary(target)
    has_prefix = any(name.startswith(PREFIX) for name in files.names)
    kind = files.config.get("hydra_head_arch") or KINDS[has_prefix]
    if kind not in KINDS:
        raise files.fault(f"hydra_head_arch={kind}: Hydra heads of this kind are not supported, need mlp or prefix-mlp")
    files = files.with_checkpoint(renumber_blocks(files.checkpoint))
    for name in EMBEDDINGS:
        if name in files.names:
            rows, width = files.checkpoint.matrix(name)
            files.need_equal(f"rows of {name}", rows, target.vocab)
            files.need_equal(f"width of {name}", width, target.hidden)
    sizes = _sizes(files, target, kind)
    return files.build(lambda: Hydra(sizes), also_known=frozenset(EMBEDDINGS))


def _sizes(files: DrafterFiles, target: TargetSizes, kind: str) -> HydraSizes:
    blocks = [match for name in files.names if (match := BLOCK.fullmatch(name))]
    outputs = [match for name in files.names if (match := OUTPUT.fullmatch(name))]
    own_output = _has_outputs(files)
    files.need(frozenset({FIRST_BLOCK, *([HEAD] if own_output else [])}))
    hidden, _ = files.checkpoint.matrix(FIRST_BLOCK)
    vocab = 0
    if own_output:
        vocab, hidden = files.checkpoint.matrix(HEAD)
        files.row_tokens(HEAD, target.vocab)
    files.need_equal("hidden size", hidden, target.hidden)
    return HydraSizes(
        hidden=hidden,
        vocab=vocab,
        heads=len({match[1] for match in (*blocks, *outputs)}),
        blocks=len({match[2] for match in blocks}),
        grounded=any(match[3] == "res_connection" for match in blocks),
        prefix=_prefix_shape(files, target) if kind == "prefix-mlp" else None,
        offset=_offset(files, target),
        tied=False,
    )


def _prefix_shape(files: DrafterFiles, target: TargetSizes) -> BlockShape:
    """Read the prefix layer's sizes; heads and eps come from the target, since Hydra's config does not repeat them."""
    files.need(frozenset(PREFIX_BLOCK + name for name in WEIGHTS))
    theta = files.options.get(ROPE_THETA_OPTION) or ROPE_THETA
    config = {"num_attention_heads": target.heads, "rms_norm_eps": target.eps, "rope_theta": theta}
    shape = stored_shape(files.checkpoint, PREFIX_BLOCK, config)
    files.need_equal("width of the prefix layer", shape.width, target.hidden)
    return shape


def _offset(files: DrafterFiles, target: TargetSizes) -> int:
    offset = files.config.get("hidden_state_offset") or 0
    if not isinstance(offset, int) or not 0 <= offset <= target.layers:
        raise files.fault(f"hidden_state_offset={offset}: need 0 to {target.layers}, the target's layers")
    return offset


def _has_outputs(files: DrafterFiles) -> bool:
    # By the config, not by the tensors: a published file without outputs is a damaged one.
    return files.config.get(OWN_OUTPUT) is not False


def renumber_blocks(checkpoint: Checkpoint) -> Checkpoint:
    """Number each head's blocks 0, 1, ... and drop its output's number. Raises UsageError for two outputs of a head."""
    # The numbers of prefix-mlp skip modules for dropout, which older files lack: only their order counts.
    numbers_of: defaultdict[str, set[int]] = defaultdict(set)
    for name in checkpoint.names:
        if match := BLOCK.fullmatch(name):
            numbers_of[match[1]].add(int(match[2]))
    order = {head: sorted(numbers) for head, numbers in numbers_of.items()}

    def rename(name: str) -> str:
        if match := BLOCK.fullmatch(name):
            head, number, layer, leaf = match.groups()
            return f"hydra_mlp.{head}.{order[head].index(int(number))}.{layer}.{leaf}"
        match = OUTPUT.fullmatch(name)
        return name if match is None else f"hydra_lm_head.{match[1]}.{match[2]}"

    return checkpoint.renamed(rename)


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> HydraDrafter:
    hydra = _load(files, target.sizes)
    tokens = None
    if _has_outputs(files):
        tokens = files.with_checkpoint(renumber_blocks(files.checkpoint)).row_tokens(HEAD, target.sizes.vocab)
    return HydraDrafter(hydra, target, tokens)


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> NewestHiddenTap | HydraPrefixTap:
    hydra = _load(files, target)
    if hydra.prefix is None:
        return NewestHiddenTap(hydra.sizes.hidden, hydra.sizes.offset)
    return HydraPrefixTap(hydra.prefix, like, hydra.sizes.offset)


FAMILY = Family(
    name=NAME,
    features="the target's last hidden state, newest only; of Hydra++ after its prefix layer",
    offline="as far as its heads",
    trees="fixed choices",
    recognizes=recognizes,
    drafter=_load_drafter,
    tap=_load_tap,
    keep_unquantized=lambda name: name.startswith(PREFIX),
    is_head=lambda name: OUTPUT.fullmatch(name) is not None,
    options=(ROPE_THETA_OPTION, DRAFT_VOCAB_OPTION),
)
