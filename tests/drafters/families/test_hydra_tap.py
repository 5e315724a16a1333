"""Hydra++: its prefix layer on the server, against transformers' own Llama layer run anew over the whole text."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from heads_place import near as close
from heads_place import random_network
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from outrider_drafters import Activations, load_tap
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.contracts.tap import Tap, TapState
from outrider_drafters.families.family import like
from outrider_drafters.families.hydra.family import FAMILY

CASE, TARGET = "hydra_mlp", "target_vicuna_tiny"
E, V = 64, 256


@dataclass
class Reference:
    """The slow way to what the prefix layer computes."""

    prefix: LlamaModel

    @torch.inference_mode()
    def features(self, hidden: Tensor) -> Tensor:
        return self.prefix(inputs_embeds=hidden[None], use_cache=False).last_hidden_state[0]


def reference(theta: float = 10000.0) -> Reference:
    config = LlamaConfig(
        vocab_size=V,
        hidden_size=E,
        intermediate_size=48,
        num_hidden_layers=1,
        num_attention_heads=4,
        rms_norm_eps=1e-6,
        rope_parameters={"rope_type": "default", "rope_theta": theta},
        attn_implementation="eager",
    )
    return Reference(random_network(11, lambda: LlamaModel(config)))


@pytest.fixture(scope="module")
def made() -> Reference:
    return reference()


@pytest.fixture(scope="module")
def drafter_dir(tmp_path_factory, case, made) -> Path:
    """The golden heads, and a prefix layer before them."""
    path = tmp_path_factory.mktemp("hydra")
    heads = torch.load(case / "drafter" / "hydra_lm_head.pt", weights_only=True)
    prefix = {f"prefix_embeding_layer.{name}": tensor for name, tensor in made.prefix.state_dict().items()}
    prefix["prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)  # an old file's buffer
    save_file(heads | prefix, path / "hydra_lm_head.safetensors")
    config = {"hydra_head_arch": "prefix-mlp", "hydra_num_heads": 4, "hydra_num_layers": 4, "grounded_heads": True}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def tap(drafter_dir, target) -> Tap:
    return load_tap(drafter_dir, target)


@pytest.fixture(scope="module")
def hidden() -> Tensor:
    return torch.randn(300, E, generator=torch.Generator().manual_seed(6))


def shown(state: TapState, hidden: Tensor) -> Tensor:
    return state.rows(Activations(torch.empty(0), torch.empty(0), {-1: hidden}))


def test_all_at_once_and_piece_by_piece(tap, made, hidden):
    expected = made.features(hidden)
    close(shown(tap.new_state(), hidden), expected)
    state, first = tap.new_state(), 0
    for count in (1, 130, 1, 4, 64, 100):  # prefill in chunks, single tokens, accepted paths
        close(shown(state, hidden[first : first + count]), expected[first : first + count])
        first += count


def test_what_was_truncated_is_forgotten(tap, made, hidden):
    state = tap.new_state()
    shown(state, hidden[:20])
    state.truncate(12)
    other = torch.cat((hidden[:12], hidden[40:47]))
    close(shown(state, other[12:]), made.features(other)[12:])
    state.truncate(0)
    close(shown(state, hidden[5:9]), made.features(hidden[5:9]))


def test_rope_is_of_base_10000_whatever_the_targets_is(drafter_dir, frozen, made, hidden):
    """The published code ignores rope_theta; an option says otherwise."""
    files = DrafterFiles.open(DrafterSource.parse(drafter_dir))
    sizes = replace(frozen.sizes, rope_theta=500000.0)
    tap = FAMILY.tap(files, sizes, like(torch.float32, "cpu"))
    close(shown(tap.new_state(), hidden[:30]), made.features(hidden[:30]))
    asked = DrafterFiles.open(DrafterSource.parse(f"{drafter_dir},rope_theta=500000"))
    other = FAMILY.tap(asked, sizes, like(torch.float32, "cpu"))
    close(shown(other.new_state(), hidden[:30]), reference(theta=500000.0).features(hidden[:30]))
    assert other.info.fingerprint != tap.info.fingerprint
