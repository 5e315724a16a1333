"""What drafts: two matrices make the next feature from a token and the feature before it."""

from pathlib import Path

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from outrider_drafters import (
    DrafterFiles,
    DrafterOption,
    Family,
    FeatureDrafter,
    FeatureRows,
    LastHiddenTap,
    TargetSizes,
    TargetWeights,
    write_model,
)

ARCHITECTURE = "OutriderToyDrafter"
STRENGTH = DrafterOption.number("strength", "factor of what a step adds to a feature (1)", most=2)


class Toy(nn.Module):
    def __init__(self, hidden: int, width: int) -> None:
        super().__init__()
        self.up = nn.Linear(2 * hidden, width, bias=False)
        self.down = nn.Linear(width, hidden, bias=False)

    def forward(self, embeds: Tensor, features: Tensor, strength: float = 1.0) -> Tensor:  # each [..., hidden]
        added: Tensor = self.down(F.silu(self.up(torch.cat((embeds, features), dim=-1))))
        return features + strength * added

    def export(self, directory: Path) -> None:
        write_model(directory, {"architectures": [ARCHITECTURE]}, self.state_dict(), torch.bfloat16)


class ToyDrafter(FeatureDrafter):
    family = "toy"

    def __init__(self, network: Toy, target: TargetWeights, strength: float = 1.0) -> None:
        super().__init__(target, LastHiddenTap(target.sizes.hidden).info)
        self.network = network
        self.strength = strength

    def step(self, rows: FeatureRows) -> Tensor:
        outputs: Tensor = self.network(F.embedding(rows.tokens, self.embed), rows.features, self.strength)
        return outputs


def load(files: DrafterFiles, target: TargetWeights) -> ToyDrafter:
    files.need(frozenset({"up.weight"}))
    width, inputs = files.checkpoint.matrix("up.weight")
    files.need_equal("hidden size", inputs // 2, target.sizes.hidden)
    with torch.device("meta"):
        network = Toy(target.sizes.hidden, width)
    strength = files.options.get(STRENGTH)
    return ToyDrafter(files.fill(network, target.embed), target, 1.0 if strength is None else strength)


def load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> LastHiddenTap:
    return LastHiddenTap(target.hidden)


FAMILY = Family(
    name="toy",
    features="the target's last hidden state",
    offline="goes on",
    trees="dynamic",
    recognizes=lambda files: files.config.get("architectures") == [ARCHITECTURE],
    drafter=load,
    tap=load_tap,
    options=(STRENGTH, "draft_vocab"),
)
