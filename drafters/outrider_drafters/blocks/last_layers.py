"""A target's last layers and final norm, read from the target's own checkpoint and target.

The input is the residual stream entering layer L - N, Hugging Face's hidden_states[-1 - N]; the output is the
target's last hidden state after its final norm.
"""

import re
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from outrider_drafters.blocks.layers import BlockShape, LlamaBlock, RMSNorm, causal_mask, stored_shape
from outrider_drafters.blocks.rope import rope_scaling
from outrider_drafters.readers.checkpoint import Checkpoint, need_finite
from outrider_drafters.readers.config import Config, config_int, is_sliding
from outrider_proto.errors import UsageError

KINDS = ("llama", "mistral", "qwen2", "qwen3")  # model types whose layers are the block of blocks/layers.py
IGNORED = "rotary_emb.inv_freq"


@dataclass(frozen=True, slots=True, eq=False)
class LastLayersOutput:
    """The output of a teacher-forced pass through the last layers."""

    entering: Tensor  # [b, n, E] the input: the target's own states at sync points, predicted ones elsewhere
    hidden: Tensor  # [b, n, E] after the final norm, ready for lm_head


class LastLayers(nn.Module):
    """The plain form, for training; moa/family.py runs it fused. `windows`: sliding ones by layer, None: none."""

    def __init__(self, shape: BlockShape, windows: tuple[int | None, ...]) -> None:
        super().__init__()
        self.shape = shape
        self.windows = windows
        self.layers = nn.ModuleList(LlamaBlock(shape) for _ in windows)
        self.norm = RMSNorm(shape.width, shape.eps)

    @property
    def blocks(self) -> list[LlamaBlock]:
        return [layer for layer in self.layers if isinstance(layer, LlamaBlock)]

    def forward_train(self, predicted: Tensor, entering: Tensor, sync: Tensor) -> LastLayersOutput:
        """Run MoA's training pass (HEBO, moa_spec/models/train/moa_spec.py): causal over mixed states.

        predicted [b, n, E] stands in for the target's own `entering` [b, n, E], except at sync points, where
        sync [b, n] int64 names the position itself.
        """
        # K/V between sync points are the drafter's own even before the latest one, where drafting has the target's.
        # The published code trains so; exact K/V would take a pass for each sync point.
        positions = torch.arange(predicted.shape[1], device=predicted.device)
        mixed = torch.where((sync == positions).unsqueeze(-1), entering.to(predicted.dtype), predicted)
        return LastLayersOutput(mixed, self.norm(self.before_norm(mixed)))

    def before_norm(self, entering: Tensor) -> Tensor:
        """Run the layers, causally, over the states [b, n, E] that enter them; return what enters the final norm."""
        positions = torch.arange(entering.shape[1], device=entering.device)
        rope, hidden = self.shape.rope(positions), entering
        for block, window in zip(self.blocks, self.windows, strict=True):
            mask = causal_mask(len(positions), positions.device)
            hidden = block.self_attend(hidden, rope, mask if window is None else mask & mask.triu(1 - window))
        return hidden


def read_last_layers(config: Config, checkpoint: Checkpoint, stem: str, count: int, like: Tensor) -> LastLayers:
    """Read the last `count` layers, like `like`; `stem` begins the names of tensors. Raises UsageError."""
    total, kind = config_int(config, "num_hidden_layers"), config.get("model_type")
    if not 1 <= count <= total:
        raise UsageError(f"{checkpoint.directory}: last {count} layers: the target has {total}")
    if kind not in KINDS:
        raise UsageError(
            f"{checkpoint.directory}: layers of model_type {kind} cannot run on the client; need one of "
            f"{', '.join(KINDS)}, or a drafter with TLI 0"
        )
    if (activation := config.get("hidden_act") or "silu") != "silu":
        raise UsageError(f"{checkpoint.directory}: hidden_act={activation}: need silu")
    numbers = range(total - count, total)
    shape = stored_shape(checkpoint, f"{stem}layers.{numbers[0]}.", config)
    with torch.device("meta"):
        layers = LastLayers(replace(shape, rope_scaling=rope_scaling(config)), _windows(config, numbers))
    # Names in the file by ours: the first of these layers is number 0 here.
    theirs = {
        name: stem + re.sub(r"(?<=layers\.)\d+", lambda number: str(numbers[int(number[0])]), name)
        for name in layers.state_dict()
    }
    prefixes = tuple(f"{stem}layers.{number}." for number in numbers)
    stored = {name for name in checkpoint.names if name.startswith(prefixes) and not name.endswith(IGNORED)}
    if unknown := sorted(stored - set(theirs.values())):
        raise UsageError(f"{checkpoint.directory}: layer with unknown tensor {unknown[0]} cannot run on the client")
    tensors = {ours: _read(checkpoint, theirs[ours], wanted).to(like) for ours, wanted in layers.state_dict().items()}
    need_finite(checkpoint.directory, ((theirs[ours], tensor) for ours, tensor in tensors.items()))
    layers.load_state_dict(tensors, assign=True)
    layers.eval().requires_grad_(False)
    return layers


def _read(checkpoint: Checkpoint, name: str, wanted: Tensor) -> Tensor:
    if (shape := checkpoint.shape(name)) != tuple(wanted.shape):
        raise UsageError(f"{checkpoint.directory}: tensor {name} has shape {list(shape)}: need {list(wanted.shape)}")
    return checkpoint.read(name)


def _windows(config: Config, layers: range) -> tuple[int | None, ...]:
    """Read the sliding windows of these layers as transformers does."""
    # Mistral: all layers. Qwen: only if use_sliding_window is set.
    everywhere = config.get("model_type") == "mistral"
    # An explicit null turns windows off; a missing key means the default of 4096.
    if config.get("sliding_window", 0) is None or not (everywhere or config.get("use_sliding_window")):
        return (None,) * len(layers)
    window = config_int(config, "sliding_window", 4096)
    return tuple(window if everywhere or is_sliding(config, layer) else None for layer in layers)
