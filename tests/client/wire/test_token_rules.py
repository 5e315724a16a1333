"""Answers within rules over real gRPC: those of a plain loop with a matcher or penalties of its own, in every mode."""

from __future__ import annotations

import dataclasses
import functools
import json
from collections.abc import Callable
from typing import get_args

import pytest
import torch
from llguidance import LLMatcher, LLTokenizer
from llguidance.numpy import allocate_token_bitmask, fill_next_token_bitmask
from transformers import AutoModelForCausalLM
from transformers.generation.logits_process import RepetitionPenaltyLogitsProcessor

from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.policy import Patience
from outrider_client.core.config import Mode
from outrider_client.core.events import LinkChanged, RolledBack, Unverified
from outrider_client.core.prompt import Segment
from outrider_client.models.local_models import LocalModels
from outrider_drafters.contracts.token_draw import choose_tokens
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_tap
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_netsim import Link, profile_named
from outrider_proto.errors import Reason, Refusal, UsageError
from outrider_proto.frames import Sampling
from outrider_server.engine.load import load_drafters
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ...marks import slow

FAST = ("stop-and-wait", "auto")
OTHERS = tuple(mode for mode in get_args(Mode) if mode not in (*FAST, "offline"))
VOCAB = 2048
NEW = {"json": 120, "penalties": 40, "repetition": 40}  # the embedded model writes every blank that it may
QUESTION = "Oscar has 10 melons. Later Oscar keeps half of them. Later Oscar makes 3 more. How many melons is that?"
SCHEMA = {
    "type": "object",
    "properties": {
        "word": {"type": "string", "maxLength": 6},
        "kinds": {"type": "array", "items": {"enum": ["red", "green"]}, "maxItems": 1},
    },
    "required": ["word", "kinds"],
    "additionalProperties": False,
}
BLANKS = r"(\n[ \t]{0,16}| )"
RULES = {
    "json": {"json_schema": SCHEMA},
    "penalties": {"frequency_penalty": 2.0, "presence_penalty": 2.0},
    "repetition": {"repetition_penalty": 2.0},
}
SAMPLINGS = {"greedy": {}, "sampled": {"temperature": 0.9, "top_p": 0.95, "min_p": 0.02, "seed": 4}}


@functools.cache
def models() -> LocalModels:
    return LocalModels.load(config())


def config(**changes) -> ClientConfig:
    return ClientConfig(
        target="embedded",
        drafter=drafter_dir("moa"),
        max_new_tokens=NEW["json"],
        shape=TreeShape(3, 4, 10),
        wait_for_link_s=30,
        patience=Patience(floor_s=1.0),
        **changes,
    )


@functools.cache
def served():
    target = Target.load(str(target_dir()))
    drafters = load_drafters(target, target_dir(), [str(drafter_dir("moa"))])
    return target, [load_tap(str(drafter_dir("moa")), str(target_dir()))], drafters


def new_server() -> Server:
    target, taps, drafters = served()
    return Server(Verifier(target, taps, drafters=drafters))


def masking() -> Callable[[torch.Tensor, list[int]], None]:
    tokenizer = LLTokenizer(str(target_dir() / "tokenizer.json"), n_vocab=VOCAB, eos_token=1)
    grammar = LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA), overrides={"whitespace_pattern": BLANKS})
    matcher = LLMatcher(tokenizer, grammar)
    mask = allocate_token_bitmask(1, VOCAB)

    def apply(logits: torch.Tensor, answer: list[int]) -> None:
        if answer:
            assert matcher.consume_token(answer[-1])
        fill_next_token_bitmask(matcher, mask, 0)
        for token in range(VOCAB):
            if not int(mask[0, token // 32]) >> (token % 32) & 1:
                logits[0, token] = -torch.inf

    return apply


def penalizing(frequency_penalty: float, presence_penalty: float) -> Callable[[torch.Tensor, list[int]], None]:
    def apply(logits: torch.Tensor, answer: list[int]) -> None:
        for token in set(answer):
            logits[0, token] -= frequency_penalty * answer.count(token) + presence_penalty

    return apply


def repeating(penalty: float, prompt: list[int]) -> Callable[[torch.Tensor, list[int]], None]:
    processor = RepetitionPenaltyLogitsProcessor(penalty)

    def apply(logits: torch.Tensor, answer: list[int]) -> None:
        logits[:] = processor(torch.tensor([prompt + answer]), logits)

    return apply


@functools.cache
def plain(rules: str, sampling: str) -> tuple[int, ...]:
    """The answer of transformers' own model, one token after the other, each over the whole text."""
    model = AutoModelForCausalLM.from_pretrained(target_dir(), dtype=torch.float32)
    prompt, answer = models().encode(QUESTION, raw=False), list[int]()
    apply = {
        "json": masking,
        "penalties": lambda: penalizing(**RULES["penalties"]),
        "repetition": lambda: repeating(2.0, prompt),
    }[rules]()
    unread, cache = prompt, None
    while len(answer) < NEW[rules] and answer[-1:] != [1]:
        with torch.no_grad():
            output = model(torch.tensor([unread]), past_key_values=cache, use_cache=True)
        logits, cache = output.logits[:, -1].clone(), output.past_key_values
        apply(logits, answer)
        chosen = Sampling(**SAMPLINGS[sampling])
        answer.append(choose_tokens(logits, chosen, [len(prompt) + len(answer)])[0])
        unread = answer[-1:]
    return tuple(answer)


@pytest.mark.parametrize("sampling", SAMPLINGS)
@pytest.mark.parametrize("rules", RULES)
@pytest.mark.parametrize("modes", [FAST, pytest.param(OTHERS, marks=pytest.mark.slow)], ids=["fast", "others"])
async def test_the_answer_is_the_plain_loops_in_every_mode(rules, sampling, modes):
    expected = plain(rules, sampling)
    async with new_server() as server, AsyncClient(at(server), models=models()) as client:
        for mode in modes:
            chosen = RULES[rules] | SAMPLINGS[sampling]
            completion = await client.complete(QUESTION, mode=mode, max_new_tokens=NEW[rules], **chosen)
            assert completion.token_ids == expected, mode
            if rules == "json":
                check(completion.text)
        free = await client.complete(QUESTION, mode="stream", max_new_tokens=NEW[rules], **SAMPLINGS[sampling])
        assert free.token_ids != expected


def check(text: str) -> None:
    answer = json.loads(text)
    assert list(answer) == ["word", "kinds"]
    assert set(answer["kinds"]) <= {"red", "green"}


def at(server: Server, **changes) -> ClientConfig:
    return dataclasses.replace(config(**changes), server=server.address)


@pytest.mark.parametrize("mode", ["stop-and-wait", *slow("pipelined", "stream", "server-draft")])
async def test_what_is_written_in_an_outage_keeps_to_the_schema(mode):
    """The drafter writes on within the schema; what the target would not have said is rolled back."""
    expected, states, written = plain("json", "greedy"), [], 0
    async with (
        new_server() as server,
        Link(profile_named("lte-edge"), server.address, "proxy") as link,
        AsyncClient(dataclasses.replace(config(), server=link.address), models=models()) as client,
    ):
        tokens: list[int] = []
        async for event in client.generate(QUESTION, mode=mode, json_schema=SCHEMA):
            match event:
                case Unverified():
                    written += 1
                    tokens[event.first :] = event.tokens
                    if len(tokens) > 12 or tokens[-1] == 1:
                        link.restore()
                case RolledBack():
                    del tokens[event.first :]
                case LinkChanged():
                    states.append(event.state.value)
                case _ if getattr(event, "tokens", None) and hasattr(event, "first"):
                    tokens[event.first :] = event.tokens
            if not link.is_cut and len(tokens) >= 2 and "offline" not in states:
                link.cut()
            if tokens and event.__class__ is Unverified:
                assert_begins(tokens)
    assert tuple(tokens) == expected
    assert written
    check(models().decode(tokens))


def assert_begins(tokens: list[int]) -> None:
    tokenizer = LLTokenizer(str(target_dir() / "tokenizer.json"), n_vocab=VOCAB, eos_token=1)
    matcher = LLMatcher(tokenizer, LLMatcher.grammar_from_json_schema(json.dumps(SCHEMA)))
    text = [token for token in tokens if token != 1]
    assert matcher.try_consume_tokens(text) == len(text)


async def test_private_text_is_answered_within_the_schema():
    prompt = (Segment("Oscar has "), Segment("10 melons", private=True), Segment(". How many melons is that?"))
    async with new_server() as server, AsyncClient(at(server), models=models()) as client:
        completion = await client.complete(prompt, privacy="local", json_schema=SCHEMA, max_new_tokens=200)
    check(completion.text)


async def test_rules_of_one_answer_are_not_those_of_the_next():
    async with new_server() as server, AsyncClient(at(server), models=models()) as client:
        free = await client.complete(QUESTION)
        for rules in RULES.values():
            assert (await client.complete(QUESTION, **rules)).token_ids != free.token_ids
            assert (await client.complete(QUESTION)).token_ids == free.token_ids


@pytest.mark.parametrize(
    ("rules", "message"),
    [
        ({"json_schema": {"type": "foo"}}, "json_schema: Invalid type: foo"),
        ({"logit_bias": {2048: 1}}, "logit_bias has token 2048: the vocabulary has 2048"),
        ({"logit_bias": {"5": 1}}, "logit_bias has token '5': the vocabulary has 2048"),
        ({"frequency_penalty": 3}, "frequency_penalty=3: need -2 to 2"),
        ({"json_schema": SCHEMA, "acceptance": "typical", "temperature": 1.0}, "acceptance=typical: takes neither"),
    ],
)
async def test_wrong_rules_cost_no_session(rules, message):
    async with new_server() as server, AsyncClient(at(server), models=models()) as client:
        await client.complete(QUESTION)
        session = client._context.session.link
        with pytest.raises(UsageError, match=message):
            await client.complete(QUESTION, **rules)
        await client.complete(QUESTION)
        assert client._context.session.link is session


@pytest.mark.parametrize("chosen", [{"json_schema": SCHEMA}, {"temperature": 1.0, "min_p": 0.1}])
async def test_a_server_that_would_pass_over_rules_gets_no_request(chosen):
    async with new_server() as server, AsyncClient(at(server), models=models()) as client:
        await client.complete(QUESTION)
        session = client._context.session
        session.limits = dataclasses.replace(session.limits, token_rules=False)
        with pytest.raises(Refusal, match="knows no json_schema") as refused:
            await client.complete(QUESTION, **chosen)
        assert refused.value.reason is Reason.BAD_SAMPLING
