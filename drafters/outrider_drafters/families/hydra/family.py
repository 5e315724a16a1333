"""Hydra and Hydra++ from published files, and their declaration. network.py has the formulas.

kind         blocks                       output                       besides
mlp          hydra_mlp.H.L                hydra_lm_head.H
prefix-mlp   hydra_mlp.H.1, .3, .5 ...    hydra_lm_head.H.1            prefix_embeding_layer [sic]

Copies of the target's embedding (input_embed_fn, the prefix layer's) are ignored.
"""

import re
from collections import defaultdict

from torch import Tensor

from outrider_drafters.blocks.layers import WEIGHTS, BlockShape, stored_shape
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION, ROPE_THETA_OPTION
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.families.family import Family
from outrider_drafters.families.heads import NewestHiddenTap
from outrider_drafters.families.hydra.drafter import NAME, HydraDrafter
from outrider_drafters.families.hydra.network import OWN_OUTPUT, Hydra, HydraPrefixTap, HydraSizes, tap_info
from outrider_drafters.readers.checkpoint import Checkpoint

PREFIX = "prefix_embeding_layer."

PREFIX_BLOCK = PREFIX + "layers.0."

EMBEDDINGS = ("input_embed_fn.weight", PREFIX + "embed_tokens.weight")

ROPE_THETA = 10000.0  # of the prefix layer: the published code ignores the target's rope_theta

KINDS = ("mlp", "prefix-mlp")

BLOCK = re.compile(r"hydra_mlp\.(\d+)\.(\d+)\.(linear|res_connection)\.(weight|bias)")

FIRST_BLOCK = "hydra_mlp.0.0.linear.weight"

HEAD = "hydra_lm_head.0.weight"  # all heads' outputs have its shape

OUTPUT = re.compile(r"hydra_lm_head\.(\d+)\.(?:\d+\.)?(weight|bias)")


def recognizes(files: DrafterFiles) -> bool:
    by_name = any(BLOCK.fullmatch(name) or OUTPUT.fullmatch(name) for name in files.names)
    return by_name or "hydra_head_arch" in files.config


def _load(files: DrafterFiles, target: TargetSizes) -> Hydra:
    """Read the network as stored."""
    files.need_vocabulary(target)
    kind = files.config.get("hydra_head_arch") or ("prefix-mlp" if _has_prefix(files) else "mlp")
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


def _has_prefix(files: DrafterFiles) -> bool:
    return any(name.startswith(PREFIX) for name in files.names)


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
    info = tap_info(hydra)  # before the cast: the fingerprint is of the values as stored
    tokens = None
    if _has_outputs(files):
        tokens = files.with_checkpoint(renumber_blocks(files.checkpoint)).row_tokens(HEAD, target.sizes.vocab)
    tokens = None if tokens is None else tokens.to(target.embed.device)
    return HydraDrafter(hydra.to(target.embed.device, target.embed.dtype), target, info, tokens)


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> NewestHiddenTap | HydraPrefixTap:
    hydra = _load(files, target)
    if hydra.prefix is None:
        return NewestHiddenTap(hydra.sizes.hidden, hydra.sizes.offset)
    info = tap_info(hydra)
    return HydraPrefixTap(hydra.prefix.to(like.device, like.dtype), info, hydra.sizes.offset)


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
