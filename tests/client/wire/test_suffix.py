"""Suffix decoding and hybrids through the client's own loop: every answer the target's own, and what a history does."""

from __future__ import annotations

import contextlib
import threading
from dataclasses import replace
from pathlib import Path

import pytest

from outrider_bench.core.pair import InProcessPair, in_process
from outrider_client import AsyncClient, ClientConfig
from outrider_client.core.events import Cycle, Finished, Warned
from outrider_client.core.prompt import Segment
from outrider_client.models.draft_history import DraftHistory
from outrider_client.models.local_models import LocalModels
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

from ...marks import in_turn

NEW = 32
PROMPTS = (tuple(range(10, 50)), (5, 6, 7, 8, 9, 5, 6, 7), tuple(range(10, 40)) * 2)
DRAFTERS = ("suffix", "EAGLE,suffix=1", "EAGLE,copy=2,suffix=1", "EAGLE,copy=3")


@pytest.fixture(params=DRAFTERS)
def config(request, golden) -> ClientConfig:
    drafter = request.param.replace("EAGLE", str(golden / "eagle2_llama/drafter"))
    return ClientConfig(target=golden / "target_l4", drafter=drafter, max_new_tokens=NEW, mode="stop-and-wait")


def embedded(**fields) -> ClientConfig:
    fields = {"mode": "stop-and-wait", "drafter": f"{drafter_dir('moa')},copy=3,suffix=1"} | fields
    return ClientConfig(target=target_dir(), max_new_tokens=NEW, **fields)


def history_in(folder: Path, models: LocalModels) -> DraftHistory:
    return DraftHistory("here:1", models.tokenizer_fingerprint, models.vocab_size, 1, folder / "history")


@contextlib.asynccontextmanager
async def client_of(pair: InProcessPair, folder: Path | None = None):
    """A client with a history in a folder, if there is one."""
    history = None if folder is None else history_in(folder, pair.models)
    models = replace(pair.models, history=history)
    async with AsyncClient(pair.config, models=models, transport=pair.transport()) as client:
        yield client


@pytest.mark.parametrize(
    ("config", "mode"), in_turn(DRAFTERS, ["stop-and-wait", "proactive", "pipelined", "auto"]), indirect=["config"]
)
async def test_greedy_answers_are_the_plain_loops(config, mode, tmp_path):
    """Without a history, then twice with one that the same answers have filled."""
    target = Target.load(str(config.target))
    plain = [tuple(plain_greedy(target, prompt, NEW)) for prompt in PROMPTS]
    async with in_process(config.target, config) as pair:
        for folder in (None, tmp_path, tmp_path):
            async with client_of(pair, folder) as client:
                for prompt, expected in zip(PROMPTS, plain, strict=True):
                    assert (await client.complete(prompt, mode=mode)).token_ids == expected
        assert history_in(tmp_path, pair.models).texts().tokens.tolist().count(-1) == 2 * len(PROMPTS)


async def test_what_goes_wrong_with_keeping_an_answer_is_told_before_its_end(tmp_path, room_for):
    async with in_process(target_dir(), embedded(drafter="suffix")) as pair, client_of(pair, tmp_path) as client:
        await client.complete(PROMPTS[0])
        with room_for(1000):
            events = [event async for event in client.generate(PROMPTS[0])]
    told = [event.message for event in events if isinstance(event, Warned)]
    assert len(told) == 1
    assert "drafting without the history" in told[0]
    assert isinstance(events[-1], Finished)


async def test_the_end_of_an_answer_does_not_wait_until_its_history_is_read_again(tmp_path, monkeypatch):
    is_told, read = threading.Event(), DraftHistory._read

    def read_then(history):
        assert is_told.wait(60)
        return read(history)

    monkeypatch.setattr(DraftHistory, "_read", read_then)
    async with in_process(target_dir(), embedded()) as pair, client_of(pair, tmp_path) as client:
        async for event in client.generate(SHOWN):
            if isinstance(event, Finished):
                is_told.set()
    assert history_in(tmp_path, pair.models).texts().tokens.size


async def trees_of(client: AsyncClient, prompt, **overrides) -> list:
    return [event.request.tree async for event in client.generate(prompt, **overrides) if isinstance(event, Cycle)]


PRIVATE = [Segment("Write a Python function that doubles "), Segment("a number", private=True), Segment(".")]
SHOWN = "Write a Python function that doubles [PRIVATE_1]."


async def test_conversations_over_placeholders_neither_read_nor_fill_it(tmp_path):
    """Their drafts are those of a client without a history, even right after an open answer to the same tokens."""
    async with in_process(target_dir(), embedded(drafter="suffix")) as pair:
        async with client_of(pair) as client:
            without = await trees_of(client, SHOWN)
        history = history_in(tmp_path, pair.models)
        async with client_of(pair, tmp_path) as client:
            await client.complete(SHOWN)
            with_history = await trees_of(client, SHOWN)
            kept = history.texts().tokens.tolist()
            assert await trees_of(client, PRIVATE, privacy="placeholder") == without
            assert await trees_of(client, SHOWN) == with_history
    assert with_history != without
    assert len(kept) * 3 == 2 * history.texts().tokens.size  # two answers, then the third open one


async def test_private_answers_neither_read_nor_fill_it(tmp_path):
    async with in_process(target_dir(), embedded()) as pair:
        async with client_of(pair) as client:
            without = await client.complete(PRIVATE, privacy="local")
        history = history_in(tmp_path, pair.models)
        async with client_of(pair, tmp_path) as client:
            await client.complete(SHOWN)
            kept = history.texts().tokens.tolist()
            assert (await client.complete(PRIVATE, privacy="local")).token_ids == without.token_ids
    assert kept
    assert history.texts().tokens.tolist() == kept


async def test_only_approved_tokens_are_kept(tmp_path):
    config = embedded(mode="offline", raw=True)
    async with in_process(config.target, config) as pair, client_of(pair, tmp_path) as client:
        assert (await client.complete((5, 6, 7))).token_ids
        assert not history_in(tmp_path, pair.models).texts().tokens.size
