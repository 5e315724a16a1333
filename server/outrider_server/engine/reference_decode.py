"""Reference decoding: the target alone, one token a pass, with transformers' own cache and attention."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor

from outrider_drafters.contracts.token_draw import choose_tokens
from outrider_proto.frames import Finish, Sampling
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.hf_model import eager_attention
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence as SlotSequence
from outrider_server.engine.target import Target

# Eager attention holds heads x new tokens x tokens values, several times over: gigabytes for 8k at once.
PROMPT_TOKENS_AT_ONCE = 1024


def plain_greedy(
    target: Target,
    ids: Sequence[int],
    max_new_tokens: int,
    at_once: int = PROMPT_TOKENS_AT_ONCE,
    step: Callable[[], None] = lambda: None,
) -> list[int]:
    """Do as plain_decode(), greedily."""
    return plain_decode(target, ids, max_new_tokens, Sampling(), at_once, step)


@torch.inference_mode()
def plain_decode(
    target: Target,
    ids: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling,
    at_once: int = PROMPT_TOKENS_AT_ONCE,
    step: Callable[[], None] = lambda: None,
) -> list[int]:
    """Return the new tokens after `ids`, up to and including an end of text. Not while the target serves.

    `sampling`: its rules are left out, and typical acceptance gives argmaxes. `at_once`: tokens of the prompt a pass.
    `step` is called after every token.
    """
    answer: list[int] = []
    tokens, cache = list(ids), None
    with eager_attention(target.model):
        while len(answer) < max_new_tokens:
            out = _read(target, tokens, cache, at_once)
            cache = out.past_key_values
            answer += choose_tokens(out.logits[0, -1:], sampling, [len(ids) + len(answer)])
            step()
            if answer[-1] in target.eos_token_ids:
                break
            tokens = answer[-1:]
    return answer


def plain_greedy_on_slots(target: Target, ids: Sequence[int], max_new_tokens: int) -> list[int]:
    """Do as plain_greedy() in the passes that serve: what batch-invariant answers must be, bit for bit."""
    return _decode_on_slots(target, ids, max_new_tokens, Sampling(), lambda: None)


def plain_answer(
    target: Target,
    ids: Sequence[int],
    max_new_tokens: int,
    sampling: Sampling | None = None,
    step: Callable[[], None] = lambda: None,
) -> list[int]:
    """Return what the target's answer must be: greedy, or drawn as `sampling` says. Not while the target serves."""
    if target.batch_invariant:
        return _decode_on_slots(target, ids, max_new_tokens, sampling or Sampling(), step)
    return plain_decode(target, ids, max_new_tokens, sampling or Sampling(), step=step)


def _decode_on_slots(
    target: Target, ids: Sequence[int], max_new_tokens: int, sampling: Sampling, step: Callable[[], None]
) -> list[int]:
    engine, sequence, sampler = Engine(target), SlotSequence(target.kv, None), Sampler(sampling)
    chain, answer = list(ids), list[int]()
    while len(answer) < max_new_tokens:
        (result,) = engine.verify([StepInput(sequence, chain, sampler=sampler)])
        engine.commit(result)
        step()
        if result.accepted is None or result.accepted.bonus is None:
            break
        chain = [result.accepted.bonus]
        answer += chain
        if result.accepted.finish is not Finish.NOT_YET:
            break
    return answer


@torch.inference_mode()
def plain_logits(target: Target, ids: Sequence[int], count: int = 1) -> Tensor:  # [count, vocab] float32
    """Return the logits at the last `count` of `ids`, as the plain loop computes them. Not while the target serves."""
    with eager_attention(target.model):
        before, last = ids[: len(ids) - count], ids[len(ids) - count :]
        cache = _read(target, before, None).past_key_values if before else None
        logits: Tensor = _read(target, last, cache, count, count).logits[0]
    return logits.float()


def _read(target: Target, ids: Sequence[int], cache: Any, at_once: int = PROMPT_TOKENS_AT_ONCE, keep: int = 1) -> Any:
    """Return the last pass's output (Any: transformers' classes are untyped), with logits of `keep` tokens."""
    out = None
    for part in torch.split(torch.tensor([list(ids)], device=target.kv.device), at_once, dim=1):
        # An index, not a number: see Target.forward().
        kept = torch.arange(max(part.shape[1] - keep, 0), part.shape[1], device=part.device)
        out = target.model(part, past_key_values=cache, use_cache=True, logits_to_keep=kept)
        cache = out.past_key_values
    return out
