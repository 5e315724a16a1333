"""EAGLE-1/2 and HASS from published files, and their declaration.

SafeAILab, HASS   fc.*, layers.N.*: flat config.json
speculators       fusion_fc.*, transformer.*, perhaps embedding_layernorm and pre_lm_head_layernorm; the Llama part of
                  its config in transformer_layer_config. What it was converted from may still bear the older names.
"""

from dataclasses import replace
from itertools import count

import torch
from torch import Tensor

from outrider_drafters.blocks.fused import FusedBlock, FusedLayers
from outrider_drafters.blocks.layers import WEIGHTS, stored_shape
from outrider_drafters.blocks.packed_linear import PackedLinear
from outrider_drafters.blocks.rope import RopeScaling, rope_entry, rope_scaling
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION, EMBEDDING_OPTION, ROPE_THETA_OPTION
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tap import LastHiddenTap, last_hidden_info
from outrider_drafters.families.eagle2.network import NAME, Eagle2, Eagle2Sizes
from outrider_drafters.families.family import Family
from outrider_drafters.families.feature_drafter import PairDrafter
from outrider_drafters.families.shared_layout import EMBEDDING, STEPS
from outrider_drafters.readers.checkpoint import Checkpoint
from outrider_drafters.readers.config import (
    KIND,
    NESTED,
    SPECULATORS_KEYS,
    Config,
    config_int,
    config_number,
    flattened,
)
from outrider_proto.errors import UsageError

TOLERANT_STEPS = 8  # steps of training that let it draft on late features as well as on fresh ones: docs/features.md


class Eagle2Drafter(PairDrafter):
    """Client half: fc and the block, between the target's embedding and its lm_head. LastHiddenTap is the other."""

    family = NAME

    def __init__(self, eagle: Eagle2, target: TargetWeights, embed: Tensor | None = None, steps: int = 1) -> None:
        super().__init__(target, last_hidden_info(target.sizes.hidden), embed)
        self.stale_tolerant = steps >= TOLERANT_STEPS
        self.fc = PackedLinear(eagle.fc.weight.detach(), eagle.fc.bias, packed=None)
        blocks = [FusedBlock(block) for block in eagle.blocks]
        self.block = blocks[0] if len(blocks) == 1 else FusedLayers(blocks)
        self.embed_norm, self.output_norm = eagle.embedding_layernorm, eagle.pre_lm_head_layernorm

    def pairs(self, embeds: Tensor, features: Tensor) -> Tensor:
        if self.embed_norm is not None:
            embeds = self.embed_norm(embeds)
        return self.fc(torch.cat((embeds, features), dim=-1))

    @property
    def shared_output(self) -> object:
        return self.target if self.output_norm is None else self

    def logits(self, outputs: Tensor) -> Tensor:
        # Normed for lm_head alone: what is fed back is the block's output, as in every head of EAGLE-1.
        return self.target.logits(outputs if self.output_norm is None else self.output_norm(outputs))


BLOCK = "layers.{}."
FIRST = BLOCK.format(0)
PARTS = ("fc.", FIRST)
UNSAID_THETA = 10000.0
SPECULATORS = "eagle"  # speculators' name for all three
FUSION = "fusion_fc."
EMBED_NORM, INPUT_NORM, OUTPUT_NORM = NORMS = (
    "embedding_layernorm.weight",
    FIRST + "input_layernorm.weight",
    "pre_lm_head_layernorm.weight",
)
RENAMED = {  # vllm-project/speculators, convert/eagle/eagle_converter.py until its pull request 672
    "embed_layernorm.weight": EMBED_NORM,
    "hidden_layernorm.weight": INPUT_NORM,
    "lm_head_layernorm.weight": OUTPUT_NORM,
}
SETTINGS = frozenset((*SPECULATORS_KEYS, "transformer_layer_architecture", "layernorms", "fusion_bias"))
LAYERS = ("auto", "LlamaDecoderLayer", "MistralDecoderLayer", "Qwen2DecoderLayer")
REQUIRED = frozenset({"fc.weight"} | {FIRST + name for name in WEIGHTS if name != "input_layernorm.weight"})


def recognizes(files: DrafterFiles) -> bool:
    return files.config.get(KIND) == SPECULATORS or any(name.startswith((*PARTS, FUSION)) for name in files.names)


def canonical(files: DrafterFiles) -> DrafterFiles:
    """Rename tensors to SafeAILab's names and flatten the config. Raises UsageError for two tensors of one name."""
    return replace(files, config=flattened(files.config), checkpoint=files.checkpoint.renamed(_canonical))


def _canonical(name: str) -> str:
    if name.startswith("transformer."):
        return FIRST + name.removeprefix("transformer.")
    return "fc." + name.removeprefix(FUSION) if name.startswith(FUSION) else RENAMED.get(name, name)


def sizes_of(checkpoint: Checkpoint, config: Config, theta: float | None = None) -> Eagle2Sizes:
    """Read the sizes from a file that holds all REQUIRED tensors; `theta` overrides RoPE's base.

    Raises UsageError for RoPE scalings other than linear: the published code refuses them, or lets them depend on the
    length so far (`dynamic`). Heads of speculators have them all.
    """
    # Biases by presence: the config's `bias` is often missing or wrong, and published loaders then leave a random one.
    # speculators' own class rotates as its verifier does; its heads were trained, and run in vLLM, by their config.
    is_speculators = NESTED in config
    scaling = rope_scaling(config) if is_speculators else _scaling(config)
    block = stored_shape(checkpoint, FIRST, config)
    theta = theta or (block.rope_theta if scaling is None or is_speculators else _scaled_theta(config))
    return Eagle2Sizes(
        replace(block, width=checkpoint.matrix("fc.weight")[0], rope_theta=theta, rope_scaling=scaling, qk_norm=False),
        fc_bias="fc.bias" in checkpoint.names,
        layers=_num_layers(checkpoint),
        norms=config.get("layernorms") is True or EMBED_NORM in checkpoint.names or OUTPUT_NORM in checkpoint.names,
    )


def _scaling(config: Config) -> RopeScaling | None:
    kind = rope_entry(config).get("rope_type") or rope_entry(config).get("type") or "default"
    if kind not in ("default", "linear"):
        raise UsageError(f"config.json: rope_scaling of type {kind}: EAGLE-1/2 heads are known with linear alone")
    return rope_scaling(config)


def _scaled_theta(config: Config) -> float:
    # With linear scaling the published code builds RoPE without the config's rope_theta (cnets1.py, `_init_rope`).
    return config_number(rope_entry(config), "rope_theta", UNSAID_THETA)


def _num_layers(checkpoint: Checkpoint) -> int:
    """Count the layers."""
    # Not from the config: some published heads ship the target's.
    return next(i for i in count() if f"{BLOCK.format(i)}{WEIGHTS[1]}" not in checkpoint.names)


def _check_settings(files: DrafterFiles) -> None:
    """Raise UsageError for a setting of speculators' that the tensors contradict, or another kind of layer."""
    for key, name in (("fusion_bias", "fc.bias"), ("layernorms", OUTPUT_NORM)):
        said = files.config.get(key)
        if said is not None and type(said) is not bool:
            raise files.fault(f"{key}={said}: need true or false")
        if said is True:
            files.need(frozenset({name} if key == "fusion_bias" else NORMS))
        if said is False and name in files.names:
            raise files.fault(f"{key}={said}: it holds {name}")
    kind = files.config.get("transformer_layer_architecture") or LAYERS[0]
    if kind not in LAYERS:
        raise files.fault(f"transformer_layer_architecture={kind}: need one of {', '.join(LAYERS)}")


def _load(files: DrafterFiles, target: TargetSizes, like: Tensor) -> Eagle2:
    if NESTED in files.config:
        files.need_understood(SETTINGS)
    files = canonical(files)
    files.need_vocabulary(target)
    _check_settings(files)
    if EMBEDDING in files.names and files.options.get(EMBEDDING_OPTION) != "target":
        rows, width = files.checkpoint.matrix(EMBEDDING)
        files.need_equal(f"rows of {EMBEDDING}", rows, target.vocab)
        files.need_equal(f"width of {EMBEDDING}", width, target.hidden)
    files.need(REQUIRED)
    sizes = sizes_of(files.checkpoint, files.config, files.options.get(ROPE_THETA_OPTION))
    files.need_equal("hidden size", sizes.block.width, target.hidden)
    return files.build(lambda: Eagle2(sizes), like, also_known=frozenset({EMBEDDING}))


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> Eagle2Drafter:
    eagle, steps = _load(files, target.sizes, target.embed), config_int(files.config, STEPS, 1)
    return Eagle2Drafter(eagle, target, _own_embedding(files, target), steps)


def _own_embedding(files: DrafterFiles, target: TargetWeights) -> Tensor | None:
    """Return the drafter's own embedding, as the published code takes it; None if it has none, or the target's."""
    if files.options.get(EMBEDDING_OPTION) == "target":
        return None
    if EMBEDDING not in files.names:
        if files.options.get(EMBEDDING_OPTION) == "own":
            raise files.fault(f"embedding=own: it has no tensor {EMBEDDING}")
        return None
    own = files.checkpoint.read(EMBEDDING).to(target.embed)
    return None if torch.equal(own, target.embed) else own


FAMILY = Family(
    name=NAME,
    features="the target's last hidden state",
    offline="goes on",
    trees="dynamic",
    recognizes=recognizes,
    drafter=_load_drafter,
    tap=lambda files, target, like: LastHiddenTap(_load(files, target, like).sizes.block.width),
    asked=2,  # fc.* and layers.0.* are also in DFlash, DSpark, and EAGLE-3 in vLLM's layout
    options=(ROPE_THETA_OPTION, EMBEDDING_OPTION, DRAFT_VOCAB_OPTION),
)
