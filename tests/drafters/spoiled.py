"""Copies of the golden heads, and of these in other published layouts, for a test to change and load."""

import json
import shutil
from collections.abc import Callable, Mapping
from functools import cache
from pathlib import Path
from typing import Any

import torch
from heads_place import Place
from safetensors.torch import load_file
from torch import Tensor

from outrider_drafters import Drafter, TargetWeights

Tensors = dict[str, Tensor]
Config = dict[str, Any]
GONE = "gone"  # a setting or tensor that is left out

GOLDEN = {
    "moa": ("moa_tli0", "target_tiny"),
    "eagle2": ("eagle2_llama", "target_l4"),
    "eagle3": ("eagle3_llama", "target_l8"),
    "eagle3, DeepSpec": ("deepspec_eagle3_3taps", "target_l8"),
    "dflash": ("dflash_zlab", "target_l8"),
    "dspark": ("dspark_deepspec", "target_l8"),
    "peagle": ("peagle_speculators", "target_l8"),
    "medusa": ("medusa_v01", "target_vicuna_tiny"),
    "hydra": ("hydra_mlp", "target_vicuna_tiny"),
}
NESTED = "transformer_layer_config"


def eagle2_of_speculators(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    """With the norms."""
    norms = ("embedding_layernorm", "transformer.input_layernorm", "pre_lm_head_layernorm")
    renamed = {n.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): t for n, t in tensors.items()}
    del renamed["embed_tokens.weight"]
    said = {"speculators_model_type": "eagle", "fusion_bias": True, "layernorms": True, NESTED: config}
    said |= {"transformer_layer_architecture": "LlamaDecoderLayer", "architectures": ["EagleSpeculator"]}
    return renamed | {f"{norm}.weight": torch.ones(64) for norm in norms}, said


def eagle3_of_speculators(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    return tensors, {NESTED: config, "draft_vocab_size": 128}


def dspark_of_speculators(tensors: Tensors, config: Config) -> tuple[Tensors, Config]:
    """With a draft vocabulary, and a confidence head that does not read the token."""
    few, every = torch.arange(0, 256, 2), torch.arange(256)
    rows = {name: tensors[name][few].clone() for name in ("lm_head.weight", "markov_head.markov_w2.weight")}
    proj = "confidence_head.proj.weight"
    rows |= {"d2t": few - torch.arange(128), "t2d": every % 2 == 0, proj: tensors[proj][:, :64].clone()}
    own = ("block_size", "mask_token_id", "markov_rank", "markov_head_type", "confidence_head_with_markov")
    said = {key: config[key] for key in own}
    qwen3 = {key: value for key, value in config.items() if key not in (*own, "target_layer_ids", "num_anchors")}
    said |= {"speculators_model_type": "dspark", NESTED: qwen3, "draft_vocab_size": 128}
    said |= {"aux_hidden_state_layer_ids": [2, 4, 7], "enable_confidence_head": True}
    return tensors | rows, said | {"confidence_head_with_markov": False, "target_hidden_size": None}


LAYOUTS: dict[str, tuple[str, Callable[[Tensors, Config], tuple[Tensors, Config]]]] = {
    "eagle2, speculators": ("eagle2", eagle2_of_speculators),
    "eagle3, speculators": ("eagle3", eagle3_of_speculators),
    "dspark, speculators": ("dspark", dspark_of_speculators),
}
HEADS = [*GOLDEN, *LAYOUTS]


@cache
def target_of(directory: Path) -> TargetWeights:
    return TargetWeights.load(directory)


class SpoiledHead(Place):
    """A copy of the head of that name, with `tensors` and `config` to change."""

    def __init__(self, path: Path, golden: Path, name: str) -> None:
        source, layout = LAYOUTS.get(name, (name, lambda *both: both))
        case, target = GOLDEN[source]
        shutil.copytree(golden / case / "drafter", path, copy_function=shutil.copyfile)
        (stored,) = [*path.glob("*.safetensors"), *path.glob("*.pt")]
        tensors = load_file(stored) if stored.suffix == ".safetensors" else torch.load(stored, weights_only=True)
        stored.unlink()
        super().__init__(path, golden / target, target_of(golden / target), f"{stored.stem}.safetensors")
        self.tensors, self.config = layout(tensors, json.loads((path / "config.json").read_text()))
        self.save()

    @property
    def llama(self) -> Config:
        """The part of the config that is of the layers."""
        nested: Config = self.config.get(NESTED, self.config)
        return nested

    def save(self) -> None:
        self.write(self.tensors, self.config)

    def change(self, tensors: Mapping[str, Any], config: Mapping[str, Any]) -> None:
        """A tensor is one, the shape of one of zeros, or GONE."""
        made = {name: torch.zeros(value) if isinstance(value, tuple) else value for name, value in tensors.items()}
        self.tensors = {n: t for n, t in (self.tensors | made).items() if not isinstance(t, str)}
        self.config = {key: value for key, value in (self.config | dict(config)).items() if value != GONE}

    def load(self, options: str = "") -> Drafter:
        self.save()
        return super().load(options)

    def refused(self, message: str, options: str = "") -> None:
        self.save()
        super().refused(message, options)
