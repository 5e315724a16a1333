"""Several answers to one request: each the target's own, under its index, with one usage for all."""

from __future__ import annotations

import openai as openai_library
import pytest

from outrider_client.core.gateway_config import GatewayConfig

QUESTION = "Write about the sea and the moon."
PROMPTS = ["Q: Oscar has 10 melons.", "def add(a, b):", "Q: What is 3 + 4?", "def add(a, b):"]


def ask(**more) -> dict:
    return {"model": "outrider", "messages": [{"role": "user", "content": QUESTION}], "max_tokens": 12, **more}


def by_index(chunks, text) -> dict[int, str]:
    texts: dict[int, str] = {}
    for chunk in chunks:
        for choice in chunk.choices:
            texts[choice.index] = texts.get(choice.index, "") + text(choice)
    return texts


def test_each_has_the_seed_behind_the_one_before(openai):
    """So the answers of one request are those of several that name these seeds."""
    several = openai.chat.completions.create(**ask(n=3, temperature=2.0, seed=7))
    assert [choice.index for choice in several.choices] == [0, 1, 2]
    alone = [openai.chat.completions.create(**ask(temperature=2.0, seed=seed)) for seed in (7, 8, 9)]
    assert [choice.message for choice in several.choices] == [answer.choices[0].message for answer in alone]
    assert len({choice.message.content for choice in several.choices}) > 1
    assert several.usage.prompt_tokens == alone[0].usage.prompt_tokens
    assert several.usage.completion_tokens == sum(answer.usage.completion_tokens for answer in alone)
    unseeded = openai.chat.completions.create(**ask(n=4, temperature=2.0)).choices
    assert len({choice.message.content for choice in unseeded}) > 1
    for choice in several.choices:
        assert "".join(span["text"] for span in choice.outrider["spans"]) == choice.message.content


def test_more_than_there_are_sessions_take_turns(start_gateway, server):
    """None is refused, although nobody may wait."""
    with start_gateway(server, GatewayConfig(sessions=2, queue=0)) as gateway, gateway.openai() as openai:
        answers = openai.chat.completions.create(**ask(n=7, temperature=1.0, seed=1)).choices
        assert [choice.index for choice in answers] == list(range(7))


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("as_tokens", [False, True])
def test_several_prompts(openai, plain, models, stream, as_tokens):
    """Equal ones count each."""
    given = [models.encode(prompt, raw=True) for prompt in PROMPTS] if as_tokens else PROMPTS
    answer = openai.completions.create(model="outrider", prompt=given, max_tokens=9, n=2, stream=stream)
    if stream:
        texts = by_index(answer, lambda choice: choice.text)
        found = [texts[index] for index in range(8)]
    else:
        found = [choice.text for choice in answer.choices]
        lengths = [len(models.encode(prompt, raw=True)) for prompt in PROMPTS]
        assert answer.usage.prompt_tokens == sum(lengths)
    assert found == [plain(prompt, 9, raw=True)[1] for prompt in PROMPTS for _ in range(2)]


@pytest.mark.parametrize("stream", [False, True])
def test_an_echo_goes_in_front(openai, models, stream):
    tokens = models.encode(PROMPTS[1], raw=True)
    for prompt in (PROMPTS[0], [PROMPTS[0], PROMPTS[2]], tokens):
        asked = {"model": "outrider", "prompt": prompt, "max_tokens": 6}
        answers = openai.completions.create(**asked).choices
        echoed = openai.completions.create(**asked, echo=True, stream=stream)
        texts = by_index(echoed if stream else [echoed], lambda choice: choice.text)
        fronts = [PROMPTS[1]] if prompt is tokens else [prompt] if isinstance(prompt, str) else prompt
        assert texts == {one.index: front + one.text for one, front in zip(answers, fronts, strict=True)}


@pytest.mark.parametrize(
    ("fields", "message"),
    [
        ({"prompt": "a", "echo": True, "logprobs": 1}, "a prompt has no log probabilities"),
        ({"prompt": ["a", "b"], "n": 17}, "n: 17 for each prompt are more than 32 answers"),
        ({"prompt": ["a", "b " * 1100], "max_tokens": 4}, "context is 1024"),
    ],
)
def test_what_cannot_be_answered_whole_is_refused(openai, fields, message):
    with pytest.raises(openai_library.BadRequestError, match=message):
        openai.completions.create(model="outrider", **fields)
    assert openai.completions.create(model="outrider", prompt="a", max_tokens=1).choices
