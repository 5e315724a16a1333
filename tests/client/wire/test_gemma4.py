"""A Gemma-4 target and its assistant through the client's own loop and the real server: exact, whatever is drafted."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
import torch
from safetensors.torch import save_file
from transformers.models.gemma4 import Gemma4ForCausalLM, Gemma4TextConfig

from outrider_bench.core.pair import in_process
from outrider_client import ClientConfig
from outrider_client.core.events import Cycle
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.families.gemma4.network import Assistant, AssistantSizes, LentShape
from outrider_drafters.load import load_tap
from outrider_proto.frames import Draft
from outrider_server.config.config import LimitsConfig
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.hf_model import eager_attention
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target

from ...marks import slow

NEW, VOCABULARY, WINDOW = 40, 64, 9
PROMPT = tuple(range(10, 50))
SMALL = {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 8, "sliding_window": WINDOW}
TYPES = ["sliding_attention", "full_attention"]


@pytest.fixture(scope="module", params=[2, 0], ids=["shared", "own"])
def target_dir(request, tmp_path_factory) -> Path:
    """Of four layers, the last two of which read the K/V of the first two, or keep their own."""
    place = tmp_path_factory.mktemp("target")
    torch.manual_seed(0)
    config = Gemma4TextConfig(
        **SMALL,
        vocab_size=VOCABULARY,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=4,
        global_head_dim=16,
        layer_types=TYPES * 2,
        num_kv_shared_layers=request.param,
        vocab_size_per_layer_input=VOCABULARY,
        hidden_size_per_layer_input=8,
        final_logit_softcapping=4.0,
        max_position_embeddings=256,
        initializer_range=0.1,
        eos_token_id=2,
        pad_token_id=0,
    )
    Gemma4ForCausalLM(config).save_pretrained(place)
    return place


@pytest.fixture(scope="module", params=[0, 16], ids=["plain", "ordered"])
def assistant(request, tmp_path_factory) -> Path:
    """Untrained; with as many clusters."""
    place = tmp_path_factory.mktemp("assistant")
    lent = {"sliding_attention": LentShape(2, 8, 1e4, 4), "full_attention": LentShape(2, 16, 1e6, 2)}
    sizes = AssistantSizes(
        32, 24, 4, 20, 1e-6, tuple(TYPES), lent, WINDOW, VOCABULARY, VOCABULARY, request.param, min(request.param, 4)
    )
    torch.manual_seed(1)
    network = Assistant(sizes)
    if network.masked_embedding is not None:
        network.masked_embedding.token_ordering.copy_(torch.randperm(VOCABULARY))
    stored = {
        "model.embed_tokens.weight"
        if name == "lm_head.weight"
        else f"model.{name}"
        if name[:4] in ("laye", "norm")
        else name: tensor
        for name, tensor in network.state_dict().items()
    }
    save_file(stored, place / "model.safetensors")
    text = SMALL | {"layer_types": TYPES, "vocab_size": VOCABULARY, "hidden_size": 24, "global_head_dim": 16}
    config = {"model_type": "gemma4_assistant", "backbone_hidden_size": 32, "centroid_intermediate_top_k": 4}
    (place / "config.json").write_text(json.dumps(config | {"text_config": text}))
    return place


@pytest.fixture(scope="module")
def plain(target_dir) -> tuple[int, ...]:
    return tuple(plain_greedy(Target.load(str(target_dir)), PROMPT, NEW))


@pytest.mark.parametrize(
    ("mode", "layout"),
    [("stop-and-wait", "contiguous"), *slow(("proactive", "paged"), ("pipelined", "contiguous"), ("stream", "paged"))],
)
async def test_greedy_answers_are_the_plain_loops(target_dir, assistant, plain, mode, layout):
    config = ClientConfig(
        target=target_dir, drafter=assistant, max_new_tokens=NEW, mode=mode, shape=TreeShape(3, 4, 12)
    )
    async with in_process(target_dir, config, limits=LimitsConfig(kv_layout=layout)) as pair, pair.client() as client:
        events = [event async for event in client.generate(PROMPT)]
        completion = await client.complete(PROMPT)
    assert completion.token_ids == plain
    if mode != "stream":
        trees = [one.request.tree for one in events if isinstance(one, Cycle) and isinstance(one.request, Draft)]
        assert any(len(tree) for tree in trees)


@torch.inference_mode()
def test_the_server_lends_what_transformers_hands_to_an_assistant(target_dir, assistant):
    target, tap = Target.load(str(target_dir)), load_tap(assistant, target_dir)
    sequence, engine = Sequence(target.kv, tap), Engine(target)
    (result,) = engine.verify([StepInput(sequence, list(PROMPT))])
    engine.commit(result)
    engine.tap([sequence])
    with eager_attention(target.model):
        out = target.model(
            torch.tensor([PROMPT]),
            use_cache=True,
            output_hidden_states=True,
            return_shared_kv_states=True,
            logits_to_keep=torch.tensor([0]),
        )
    # transformers 5.23 hands over nothing where the target shares nothing; its cache has a window's newest rows then.
    last = dict(zip(TYPES, out.past_key_values.layers[-2:], strict=True))
    lent = out.shared_kv_states or {kind: (layer.keys, layer.values) for kind, layer in last.items()}
    rows, first = sequence.features(0)[1], 0
    for kind in TYPES:
        for part in lent[kind]:
            expected = part[0].transpose(0, 1).flatten(1).numpy()
            np.testing.assert_allclose(rows[-len(expected) :, first : first + expected.shape[1]], expected, atol=2e-5)
            first += expected.shape[1]
    np.testing.assert_allclose(rows[:, first:], out.hidden_states[-1][0].numpy(), atol=2e-5)
