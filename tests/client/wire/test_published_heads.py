"""Heads made of the embedded ones in the layouts of several layers, P-EAGLE, speculators' EAGLE-1 and MLP speculators.

Over the real server on the embedded target: greedy text is the plain loop's, in every mode, and drafts are accepted.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider_bench.core.pair import in_process
from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.policy import Patience
from outrider_client.core.events import Unverified
from outrider_drafters.load import load_tap
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_netsim import Link, profile_named
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ...marks import in_turn, slow
from .answers import replayed, through_an_outage

NEW = 32
PROMPTS = [tuple(range(300, 330)), (5, 900, 17, 33, 1200, 64, 7, 2)]


@pytest.fixture(scope="module")
def answers() -> dict[tuple[int, ...], tuple[int, ...]]:
    target = Target.load(str(target_dir()))
    return {prompt: tuple(plain_greedy(target, prompt, NEW)) for prompt in PROMPTS}


def embedded(name: str) -> tuple[dict[str, Tensor], dict]:
    directory = drafter_dir(name)
    tensors = load_file(directory / "model.safetensors")
    config = json.loads((directory / "config.json").read_text())
    del config["outrider_target_fingerprint"]
    return {key: value.float() if value.is_floating_point() else value for key, value in tensors.items()}, config


def later_layer(number: int, like: dict[str, Tensor]) -> dict[str, Tensor]:
    """A layer that changes little."""
    generator, layer = torch.Generator().manual_seed(number), {}
    for name, tensor in like.items():
        if name.startswith("midlayer.") and "hidden_norm" not in name:
            width = 192 if name.endswith(("q_proj.weight", "k_proj.weight", "v_proj.weight")) else tensor.shape[-1]
            noise = torch.randn(*tensor.shape[:-1], width, generator=generator)
            layer[name.replace("midlayer.", f"layers.{number}.")] = 1 + 0.1 * noise if "norm" in name else noise * 0.02
    return layer


def eagle3_layers() -> tuple[dict[str, Tensor], dict]:
    tensors, config = embedded("eagle3")
    tensors |= later_layer(1, tensors) | later_layer(2, tensors)
    return {name.replace("midlayer.", "layers.0."): tensor for name, tensor in tensors.items()}, config


def peagle() -> tuple[dict[str, Tensor], dict]:
    tensors, flat = eagle3_layers()
    nested = {"model_type": "llama", "num_attention_heads": 8, "num_hidden_layers": 3, "vocab_size": 2048}
    config = {
        "speculators_model_type": "peagle",
        "transformer_layer_config": nested | {"rms_norm_eps": 1e-6, "rope_theta": 10000.0},
        "speculators_config": {"proposal_methods": [{"proposal_type": "greedy", "speculative_tokens": 4}]},
        "eagle_aux_hidden_state_layer_ids": flat["target_layers"],
        "draft_vocab_size": 768,
        "mask_token_id": 2047,
    }
    return tensors | {"mask_hidden": torch.randn(1, 1, 576, generator=torch.Generator().manual_seed(1))}, config


def eagle1() -> tuple[dict[str, Tensor], dict]:
    tensors, flat = embedded("eagle2")
    named = {
        name.replace("layers.0.", "transformer.").replace("fc.", "fusion_fc."): tensor
        for name, tensor in tensors.items()
    }
    keys = ("model_type", "num_attention_heads", "rms_norm_eps", "rope_theta", "vocab_size")
    config = {"speculators_model_type": "eagle", "fusion_bias": True, "layernorms": False}
    return named, config | {"transformer_layer_config": {key: flat[key] for key in keys}}


def mlp(texts: list[tuple[int, ...]]) -> tuple[dict[str, Tensor], dict]:
    """Heads that know which token follows which in some texts: a state marks a token, an output its successors."""
    width = 2048
    follows = torch.zeros(width, width)
    for text in texts:
        for token, after in pairwise(text):
            follows[after, token] += 1
    tensors = {
        "speculator.proj.0.weight": torch.zeros(width, 192),
        "speculator.proj.1.weight": torch.zeros(width, width),
    }
    tensors |= {"speculator.emb.0.weight": torch.eye(width), "speculator.head.0.weight": follows}
    tensors |= {"speculator.ln.0.weight": torch.ones(width), "speculator.ln.0.bias": torch.zeros(width)}
    config = {"model_type": "mlp_speculator", "vocab_size": width, "emb_dim": 192, "inner_dim": width, "n_predict": 4}
    return tensors, config | {"tie_weights": True, "scale_input": True, "top_k_tokens_per_head": [3, 2, 2, 1]}


HEADS: dict[str, tuple[Callable[..., tuple[dict[str, Tensor], dict]], str]] = {
    "eagle3 layers": (eagle3_layers, ""),
    "peagle": (peagle, ""),
    "peagle, tree": (peagle, ",ddtree=10"),
    "eagle-1 of speculators": (eagle1, ""),
    "mlp": (mlp, ""),
}


@pytest.fixture(params=list(HEADS))
def source(request, tmp_path: Path, answers) -> str:
    make, options = HEADS[request.param]
    tensors, config = make([(*prompt, *text) for prompt, text in answers.items()]) if make is mlp else make()
    save_file({name: tensor.clone().contiguous() for name, tensor in tensors.items()}, tmp_path / "model.safetensors")
    (tmp_path / "config.json").write_text(json.dumps(config))
    return f"{tmp_path}{options}"


def config_of(source: str, **changes) -> ClientConfig:
    return ClientConfig(target=target_dir(), drafter=source, max_new_tokens=NEW, raw=True, **changes)


@pytest.mark.parametrize(
    ("source", "mode"), in_turn(list(HEADS), ["stop-and-wait", "proactive", "pipelined"]), indirect=["source"]
)
async def test_greedy_answers_are_the_plain_loops(source, mode, answers):
    config = config_of(source, mode=mode)
    async with in_process(config.target, config) as pair, pair.client() as client:
        for prompt, expected in answers.items():
            completion = await client.complete(prompt)
            assert completion.token_ids == expected
            assert completion.statistics.mean_acceptance_length > 1.2


@pytest.mark.parametrize("source", ["eagle3 layers", *slow(*list(HEADS)[1:])], indirect=True)
@pytest.mark.parametrize("wait", [False, *slow(True)], ids=["features late", "features first"])
async def test_late_features_change_nothing(source, wait, answers):
    config, sampling = config_of(source, mode="stop-and-wait"), {"temperature": 0.9, "top_k": 50, "seed": 5}
    prompt, expected = next(iter(answers.items()))
    async with in_process(config.target, config) as pair, pair.client() as client:
        assert (await client.complete(prompt, wait_for_features=wait)).token_ids == expected
        drafted = await client.complete(prompt, wait_for_features=wait, **sampling)
        streamed = await client.complete(prompt, mode="stream", **sampling)
    assert drafted.token_ids == streamed.token_ids != expected


@pytest.mark.slow
async def test_what_is_written_alone_is_checked_or_rolled_back(source, answers):
    """Features end where the link is cut; the head writes on without them, and again with them."""
    prompt, expected = next(iter(answers.items()))
    config = config_of(source, mode="stop-and-wait", wait_for_link_s=30, patience=Patience(floor_s=1.0))
    verifier = Verifier(Target.load(str(target_dir())), [load_tap(source, target_dir())])
    async with (
        Server(verifier) as server,
        Link(profile_named("paper-5g"), server.address, "proxy", seed=1) as link,
        AsyncClient(replace(config, server=link.address)) as client,
    ):
        events, _ = await through_an_outage(client, link, prompt, 9, 2)
    assert tuple(replayed(events)) == expected
    assert sum(isinstance(event, Unverified) for event in events) >= 2
