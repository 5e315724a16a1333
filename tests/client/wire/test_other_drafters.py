"""Drafters without features, and one that wants several layers, through the client's own loop and the real server."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outrider_bench.core.pair import in_process
from outrider_client import ClientConfig
from outrider_client.core.events import Cycle, Unverified
from outrider_drafters.blocks.layers import BlockShape
from outrider_drafters.families.dflash.layer_masks import LayerMask
from outrider_drafters.families.dflash.network import DFlash, DFlashSizes
from outrider_proto.frames import Draft
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

NEW = 40
PROMPT = tuple(range(10, 50))


@pytest.fixture
def dflash(tmp_path) -> Path:
    """Untrained, for target_tiny."""
    with torch.random.fork_rng():
        torch.manual_seed(1)
        sizes = DFlashSizes(BlockShape(64, 4, 2, 16, 32, qk_norm=True), (LayerMask(),), (1, 4), block=6, mask_token=255)
        save_file(DFlash(sizes).state_dict(), tmp_path / "model.safetensors")
    inner = {"mask_token_id": 255, "target_layer_ids": [0, 3], "block_size": 6}
    config = {"architectures": ["DFlashDraftModel"], "num_attention_heads": 4, "dflash_config": inner}
    (tmp_path / "config.json").write_text(json.dumps(config))
    return tmp_path


@pytest.fixture(params=["lookup", "lookup,ngram=2", "independent", "dflash"])
def config(request, golden, dflash) -> ClientConfig:
    directories = {"independent": golden / "target_vicuna_tiny", "dflash": dflash}
    drafter = directories.get(request.param, request.param)
    return ClientConfig(target=golden / "target_tiny", drafter=drafter, max_new_tokens=NEW, mode="stop-and-wait")


def plain(config: ClientConfig) -> tuple[int, ...]:
    return tuple(plain_greedy(Target.load(str(config.target)), PROMPT, NEW))


async def test_greedy_answers_are_the_plain_loops(config, dflash):
    async with in_process(config.target, config) as pair:
        async with pair.client() as client:
            completion = await client.complete(PROMPT)
        assert completion.token_ids == plain(config)
        assert completion.statistics.mean_acceptance_length > 1 or config.drafter == dflash


async def test_no_features_are_asked_for_and_none_come(golden):
    config = ClientConfig(target=golden / "target_tiny", drafter="lookup", max_new_tokens=NEW, mode="stop-and-wait")
    async with in_process(config.target, config) as pair:
        assert pair.models.open_frame().tap == ""
        assert [tap.family for tap in pair.verifier.describe().taps] == ["last-hidden"]
        async with pair.client() as client:
            requests = [event.request async for event in client.generate(PROMPT) if isinstance(event, Cycle)]
    assert all(isinstance(request, Draft) for request in requests)
    assert any(len(request.tree) for request in requests)


@pytest.mark.parametrize("name", ["lookup", "independent"])
async def test_writes_alone_without_a_link(name, golden):
    drafter = golden / "target_vicuna_tiny" if name == "independent" else name
    config = ClientConfig(target=golden / "target_tiny", drafter=drafter, max_new_tokens=8, mode="offline", raw=True)
    prompt = (5, 6, 7, 8, 9, 5, 6)
    async with in_process(config.target, config) as pair, pair.client() as client:
        events = [event async for event in client.generate(prompt)]
    written = [token for event in events if isinstance(event, Unverified) for token in event.tokens]
    assert written
    if name == "lookup":
        assert written[:6] == [7, 8, 9, 5, 6, 7]
