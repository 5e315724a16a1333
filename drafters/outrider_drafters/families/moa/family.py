"""MoA from its files: the published training layout, vLLM's `moa_spec`, and our own export of the former."""

from torch import Tensor

from outrider_drafters.blocks.layers import WEIGHTS, BlockShape, stored_shape
from outrider_drafters.blocks.rope import rope_scaling
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION, DrafterOption
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tap import LastHiddenTap, Tap
from outrider_drafters.families.family import Family
from outrider_drafters.families.moa.drafter import MoADrafter
from outrider_drafters.families.moa.network import LSA_HEADS, NAME, MoA, MoASizes, MoATap, tap_info
from outrider_drafters.readers.checkpoint import join_names
from outrider_drafters.readers.config import config_int

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
    return MoASizes(
        hidden=sa.width,
        heads=sa.heads,
        head_dim=sa.head_dim,
        packed_kv=lsa.width if lsa else 0,
        lsa_heads=lsa.heads if lsa else None,
        lsa_kv_heads=lsa.kv_heads if lsa else 0,
        lsa_mlp=lsa.mlp if lsa else 0,
        sa_kv_heads=sa.kv_heads,
        sa_mlp=sa.mlp,
        ca_kv_heads=ca.kv_heads,
        ca_mlp=ca.mlp,
        rope_theta=sa.rope_theta,
        eps=sa.eps,
        qkv_bias=sa.qkv_bias,
        tli=_tli(files),
        rope_scaling=rope_scaling(files.config),
    )


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
    files.need_equal("hidden size", sizes.hidden, target.hidden)
    if not target.has_equal_layers and (sizes.has_lsa or sizes.tli):
        raise files.fault(f"reads K/V of one shape: the layers of {target.model_type} differ in theirs")
    if sizes.has_lsa:
        files.need_equal("width of packed K/V", sizes.packed_kv, target.packed_kv)
    if sizes.tli > target.layers:
        raise files.fault(f"tli={sizes.tli}: the target has {target.layers} layers")
    return files.build(lambda: MoA(sizes))


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> MoADrafter:
    moa = _load(files, target.sizes)
    info = tap_info(moa, target.sizes)  # before the cast: the fingerprint is of the values as stored
    return MoADrafter(moa.to(target.embed.device, target.embed.dtype), target, info)


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> Tap:
    moa = _load(files, target)
    info = tap_info(moa, target)
    if not moa.sizes.has_lsa and not moa.sizes.tli:
        return LastHiddenTap(info.width)
    return MoATap(moa.to(like.device, like.dtype), info)


FAMILY = Family(
    name=NAME,
    features="K/V of all target layers, mixed to one row a token; with TLI those of its last layers too",
    offline="goes on",
    trees="dynamic",
    recognizes=lambda files: any(name.startswith(PARTS) for name in files.names),
    drafter=_load_drafter,
    tap=_load_tap,
    keep_unquantized=lambda name: name.startswith(LSA),
    options=(TLI, DRAFT_VOCAB_OPTION),
)
