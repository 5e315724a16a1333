"""Hydra++: its prefix layer on the server and its heads on the client, against transformers' own Llama layer run anew
over the whole text every time."""

import json
from dataclasses import dataclass, replace
from pathlib import Path

import pytest
import torch
from heads_place import near as close
from safetensors.torch import save_file
from torch import Tensor
from transformers import LlamaConfig, LlamaModel

from outrider_drafters import Activations, TargetWeights, load_drafter, load_tap
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.contracts.tap import Tap, TapState
from outrider_drafters.families.family import like
from outrider_drafters.families.hydra.family import FAMILY
from outrider_proto.tree import ROOT

TARGET = "target_vicuna_tiny"
E, V, HEADS, BLOCKS = 64, 256, 3, 2


@dataclass
class Reference:
    """The published layout, and the slow way to what it computes."""

    tensors: dict[str, Tensor]
    prefix: LlamaModel
    embed: Tensor

    @torch.inference_mode()
    def features(self, hidden: Tensor) -> Tensor:
        return self.prefix(inputs_embeds=hidden[None], use_cache=False).last_hidden_state[0]

    def after(self, feature: Tensor, line: list[int]) -> Tensor:
        """Of head len(line) - 1, whose input is the feature and the tokens since."""
        head = len(line) - 1
        z = torch.cat((feature, self.embed[line].flatten()))
        for block in range(BLOCKS):
            name = f"hydra_mlp.{head}.{2 * block + 1}."
            mixed = self.tensors[name + "linear.weight"] @ z + self.tensors[name + "linear.bias"]
            if block == 0:
                z = self.tensors[name + "res_connection.weight"] @ z + self.tensors[name + "res_connection.bias"]
            z = z + mixed * mixed.sigmoid()
        return self.tensors[f"hydra_lm_head.{head}.1.weight"] @ z + self.tensors[f"hydra_lm_head.{head}.1.bias"]


def reference(frozen: TargetWeights, theta: float = 10000.0) -> Reference:
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
    with torch.random.fork_rng():
        torch.manual_seed(11)
        prefix = LlamaModel(config).eval().requires_grad_(False)
        for parameter in prefix.parameters():
            torch.nn.init.normal_(parameter, std=0.3)
        shapes = {}
        for head in range(HEADS):
            shapes |= {f"hydra_mlp.{head}.1.{part}": (head + 2) * E for part in ("linear", "res_connection")}
            shapes |= {f"hydra_mlp.{head}.3.linear": E, f"hydra_lm_head.{head}.1": E}
        tensors = {}
        for name, columns in shapes.items():
            rows = V if "lm_head" in name else E
            tensors |= {f"{name}.weight": torch.randn(rows, columns) * 0.2, f"{name}.bias": torch.randn(rows)}
    return Reference(tensors, prefix, frozen.embed)


def write(path: Path, made: Reference) -> Path:
    path.mkdir()
    prefix = {f"prefix_embeding_layer.{name}": tensor for name, tensor in made.prefix.state_dict().items()}
    buffer = {"prefix_embeding_layer.layers.0.self_attn.rotary_emb.inv_freq": torch.zeros(8)}
    copies = {"input_embed_fn.weight": made.embed.clone()}
    save_file(made.tensors | prefix | buffer | copies, path / "hydra_lm_head.safetensors")
    config = {"hydra_head_arch": "prefix-mlp", "hydra_num_heads": 4, "hydra_num_layers": 4, "grounded_heads": True}
    (path / "config.json").write_text(json.dumps(config))
    return path


@pytest.fixture(scope="module")
def made(frozen) -> Reference:
    return reference(frozen)


@pytest.fixture(scope="module")
def drafter_dir(tmp_path_factory, made) -> Path:
    return write(tmp_path_factory.mktemp("hydra") / "drafter", made)


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


def test_drafts_as_a_fresh_prefill_would(drafter_dir, frozen, tap, made, hidden):
    """Cycle by cycle, with rejected drafts, features that lag, and a rollback of both sides; then each node against the
    slow reference."""
    generator = torch.Generator().manual_seed(8)
    drafter = load_drafter(drafter_dir, frozen)
    state, server, tokens = drafter.new_state(), tap.new_state(), [1, 2, 3, 4, 5]
    state.append(tokens)
    processed = 0
    for cycle in range(12):
        if cycle == 7:
            del tokens[9:]
            state.rollback(9)
            server.truncate(8)
            processed = 8
        rows = shown(server, hidden[processed : len(tokens) - 1])
        processed = len(tokens) - 1
        if cycle % 4 != 3:  # else this cycle's row is late
            state.add_features(processed - 1, rows[-1:])
        newest = state.num_features - 1
        if state.max_levels:
            check(state, made, made.features(hidden[: newest + 1])[-1], tokens[newest + 1 :])
        more = torch.randint(V, (1 + cycle % 2,), generator=generator).tolist()
        tokens += more
        state.append(more)


def check(state, made, feature, since):
    """Root, two children and two grandchildren."""
    levels = state.max_levels
    close(state.root_logits(), made.after(feature, since))
    if levels > 1:
        for token, logits in zip([7, 9], state.expand([7, 9], [ROOT, ROOT]), strict=True):
            close(logits, made.after(feature, [*since, token]))
    if levels > 2:
        for path, logits in zip([[9, 5], [7, 5]], state.expand([5, 5], [1, 0]), strict=True):
            close(logits, made.after(feature, [*since, *path]))


def test_rope_is_of_base_10000_whatever_the_targets_is(drafter_dir, frozen, made, hidden):
    """The published code ignores rope_theta; an option says otherwise."""
    files = DrafterFiles.open(DrafterSource.parse(drafter_dir))
    sizes = replace(frozen.sizes, rope_theta=500000.0)
    tap = FAMILY.tap(files, sizes, like(torch.float32, "cpu"))
    close(shown(tap.new_state(), hidden[:30]), made.features(hidden[:30]))
    asked = DrafterFiles.open(DrafterSource.parse(f"{drafter_dir},rope_theta=500000"))
    other = FAMILY.tap(asked, sizes, like(torch.float32, "cpu"))
    close(shown(other.new_state(), hidden[:30]), reference(frozen, theta=500000.0).features(hidden[:30]))
    assert other.info.fingerprint != tap.info.fingerprint
