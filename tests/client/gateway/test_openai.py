"""OpenAI's client against a real gateway and a real server: the text is the target's."""

from __future__ import annotations

import asyncio
import contextlib

import openai as openai_library
import pytest
from openai import AsyncOpenAI

from outrider_client.core.gateway_config import GatewayConfig

QUESTION = "Mia has 4 boxes with 4 cards each. Mia makes 4 new ones. Later Mia keeps half. How many are there?"
MODES = ["auto", "stop-and-wait", "proactive", "pipelined", "stream"]


def ask(question: str = QUESTION, **more) -> dict:
    return {"model": "outrider", "messages": [{"role": "user", "content": question}], "temperature": 0, **more}


def joined(chunks) -> str:
    return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)


def test_models(openai, models):
    assert [model.id for model in openai.models.list()] == ["outrider", "embedded"]
    for name in ("outrider", "embedded"):
        model = openai.models.retrieve(name)
        assert (model.id, model.owned_by, model.root, model.parent) == (name, "outrider", "embedded", None)
        assert model.max_model_len == models.max_context == 1024
        assert openai.chat.completions.create(**ask(max_tokens=1) | {"model": name}).model == name
    with pytest.raises(openai_library.NotFoundError, match="outrider, embedded"):
        openai.models.retrieve("another/one")


@pytest.mark.parametrize("mode", MODES)
def test_a_chat_is_the_targets_text(openai, plain, mode):
    tokens, text = plain(QUESTION, 40)
    answer = openai.chat.completions.create(**ask(max_tokens=40), extra_body={"outrider": {"mode": mode}})
    choice = answer.choices[0]
    assert choice.message.content == text
    assert choice.finish_reason == ("stop" if len(tokens) < 40 else "length")
    assert (answer.usage.prompt_tokens, answer.usage.completion_tokens) == (len_of_prompt(openai), len(tokens))
    assert answer.usage.total_tokens == answer.usage.prompt_tokens + answer.usage.completion_tokens
    assert answer.outrider["statistics"]["new_tokens"] == len(tokens)
    assert "".join(span["text"] for span in answer.outrider["spans"]) == text


def len_of_prompt(openai) -> int:
    return openai.chat.completions.create(**ask(max_tokens=1)).usage.prompt_tokens


def test_a_stream_is_the_same_text_in_chunks(openai, plain):
    tokens, text = plain(QUESTION, 40)
    asked = ask(max_completion_tokens=40, stream=True, stream_options={"include_usage": True})
    with openai.chat.completions.create(**asked) as stream:
        chunks = list(stream)
    assert joined(chunks) == text
    assert len({chunk.id for chunk in chunks}) == 1
    assert chunks[0].choices[0].delta.role == "assistant"
    assert chunks[-1].usage.completion_tokens == len(tokens)
    assert [chunk.usage for chunk in chunks[:-1]] == [None] * (len(chunks) - 1)
    reasons = [chunk.choices[0].finish_reason for chunk in chunks[:-1]]
    assert (set(reasons[:-1]), reasons[-1]) == ({None}, "stop" if len(tokens) < 40 else "length")
    said = [chunk.outrider for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    assert {each["origin"] for each in said} <= {"accepted", "bonus"}
    assert [each["offset"] for each in said] == offsets(chunks)
    assert chunks[-2].outrider["statistics"]["new_tokens"] == len(tokens)


def offsets(chunks) -> list[int]:
    texts = [chunk.choices[0].delta.content for chunk in chunks if chunk.choices and chunk.choices[0].delta.content]
    return [sum(map(len, texts[:i])) for i in range(len(texts))]


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("mode", ["stop-and-wait", "stream"])
def test_a_stop_across_tokens_ends_the_answer_before_it(openai, plain, models, mode, stream):
    tokens, text = plain(QUESTION, 40)
    stop = text[7:13]
    first = text.index(stop)
    asked = ask(max_tokens=40, stop=[stop, "never said"], stream=stream, logprobs=True)
    with contextlib.ExitStack() as stack:
        answer = openai.chat.completions.create(**asked, extra_body={"outrider": {"mode": mode}})
        chunks = list(stack.enter_context(answer)) if stream else []
    said = joined(chunks) if stream else answer.choices[0].message.content
    reason = chunks[-1].choices[0].finish_reason if stream else answer.choices[0].finish_reason
    assert (said, reason) == (text[:first], "stop")
    choices = [choice for part in (chunks or [answer]) for choice in part.choices if choice.logprobs]
    logprobs = [each for choice in choices for each in choice.logprobs.content]
    assert len(logprobs) == max(n for n in range(len(tokens)) if len(models.decode(tokens[:n])) <= first)
    if not stream:
        enough = next(n for n in range(len(tokens)) if stop in models.decode(tokens[:n]))
        assert answer.usage.completion_tokens == enough


def test_logprobs_are_of_the_text(openai):
    asked = ask(max_tokens=6, logprobs=True, top_logprobs=2)
    choice = openai.chat.completions.create(**asked).choices[0]
    assert "".join(each.token for each in choice.logprobs.content) == choice.message.content
    for each in choice.logprobs.content:
        assert each.top_logprobs[0].token == each.token  # greedy takes the likeliest
        assert each.top_logprobs[0].logprob == each.logprob <= 0
        assert len(each.top_logprobs) == 2
    with openai.chat.completions.create(**asked, stream=True) as stream:
        received = [each for chunk in stream if chunk.choices[0].logprobs for each in chunk.choices[0].logprobs.content]
    assert [each.token for each in received] == [each.token for each in choice.logprobs.content]
    # Rounding differs with the number of rows in a pass, and how many are drafted depends on time.
    expected = [each.logprob for each in choice.logprobs.content]
    assert [each.logprob for each in received] == pytest.approx(expected, abs=1e-4)
    old = openai.completions.create(model="outrider", prompt="Mia has 4", max_tokens=4, temperature=0, logprobs=1)
    assert "".join(old.choices[0].logprobs.tokens) == old.choices[0].text
    assert len(old.choices[0].logprobs.token_logprobs) == 4


async def test_requests_beyond_the_queue_are_refused(start_gateway, server):
    with start_gateway(server, GatewayConfig(sessions=1, queue=1)) as gateway:
        async with gateway.openai(AsyncOpenAI) as client:
            many = [client.chat.completions.create(**ask(max_tokens=30)) for _ in range(4)]
            outcomes = await asyncio.gather(*many, return_exceptions=True)
        refused = [outcome for outcome in outcomes if isinstance(outcome, openai_library.RateLimitError)]
        assert len(refused) == 2
        assert refused[0].code == "rate_limit_exceeded"
        assert refused[0].response.headers["Retry-After"] == "1"
        assert len({answer.choices[0].message.content for answer in outcomes if answer not in refused}) == 1


def test_an_app_that_goes_away_frees_its_session(start_gateway, server, plain):
    long = ask("Write code.", max_tokens=900)
    with start_gateway(server, GatewayConfig(sessions=1, queue=1)) as gateway, gateway.openai() as openai:
        with openai.chat.completions.create(**long, stream=True) as stream:
            for chunk, _ in zip(stream, range(3), strict=False):
                assert not chunk.choices[0].finish_reason
        with pytest.raises(openai_library.APITimeoutError):
            openai.with_options(timeout=0.05).chat.completions.create(**long)
        assert openai.chat.completions.create(**ask(max_tokens=40)).choices[0].message.content == plain(QUESTION, 40)[1]
        metrics = gateway.get("/metrics")
    assert "outrider_num_requests_running 0.0" in metrics
    answered = [line for line in metrics.splitlines() if line.startswith("outrider_request_success_total")]
    assert len(answered) == 1


def figures(gateway) -> dict[str, str]:
    return dict(line.rsplit(" ", 1) for line in gateway.get("/metrics").splitlines() if line[0] != "#")


@pytest.mark.parametrize("marked", ["parts", "fences"])
def test_private_text_is_answered_on_the_device(openai, marked):
    """docs/privacy.md says what the server sees then; other tests look at the wire."""
    if marked == "parts":
        content = [{"type": "text", "text": "Who is "}, {"type": "text", "text": "Heidi", "private": True}]
        extension = {"privacy": "local"}
    else:
        content, extension = "Who is <<private: Heidi>>", {"fences": True}
    asked = ask(max_tokens=8) | {"messages": [{"role": "user", "content": content}]}
    answer = openai.chat.completions.create(**asked, extra_body={"outrider": extension})
    assert {span["origin"] for span in answer.outrider["spans"]} == {"private"}
    assert answer.outrider["reason"] == "private"
    assert answer.outrider["private"] == ["PRIVATE"]
    plain = openai.chat.completions.create(
        **asked | {"messages": [{"role": "user", "content": "Who is Heidi"}], "max_tokens": 1}
    )
    assert answer.usage.prompt_tokens == plain.usage.prompt_tokens


def test_metrics_do_not_reveal_the_length_of_a_private_answer(openai, gateway):
    content = [{"type": "text", "text": "Who is "}, {"type": "text", "text": "Heidi", "private": True}]
    asked = ask(max_tokens=8) | {"messages": [{"role": "user", "content": content}]}

    openai.chat.completions.create(**asked)
    before = figures(gateway)
    openai.chat.completions.create(**asked)
    changed = {name for name, value in figures(gateway).items() if before.get(name) != value}
    assert {name for name in changed if "_created" not in name and "link_rtt" not in name} == {
        'outrider_request_success_total{finished_reason="private"}'  # the link has no part in it
    }


def test_models_by_other_names(start_gateway, server):
    config = GatewayConfig(names=("gpt-4o", "lab/model"))
    with start_gateway(server, config) as gateway, gateway.openai() as openai:
        assert [(model.id, model.root) for model in openai.models.list()] == [
            ("gpt-4o", "embedded"),
            ("lab/model", "embedded"),
        ]
        for name in ("outrider", "embedded"):
            with pytest.raises(openai_library.NotFoundError, match="gpt-4o, lab/model"):
                openai.chat.completions.create(**ask() | {"model": name})
