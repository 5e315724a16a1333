"""Scores of a model in training: its greedy answers to a few held-out prompts of each family."""

from collections.abc import Callable, Sequence
from typing import cast

import torch
from tokenizers import Tokenizer
from torch import Tensor
from transformers import LlamaForCausalLM

from outrider_models.core.tokenizer import ASSISTANT, BOS, EOS, PAD, USER, special_id
from outrider_models.corpus import FAMILIES, Sample, exercises, generate
from outrider_models.corpus.check import Score, score_by_family

MAX_NEW_TOKENS = 130


def probe_samples(per_family: int, seed: int = 7_777) -> list[Sample]:
    """Draw held-out samples of every family, and copying exercises of a seed that training never uses."""
    held_out = [sample for family in FAMILIES for sample in generate(family, "test", seed, per_family)]
    return [*held_out, *exercises("short", -seed, per_family)]


def probe(model: LlamaForCausalLM, tokenizer: Tokenizer, samples: Sequence[Sample]) -> dict[str, Score]:
    """Score the model's greedy answers by family."""
    return score_by_family(samples, answers(model, tokenizer, samples))


@torch.inference_mode()
def answers(
    model: LlamaForCausalLM, tokenizer: Tokenizer, samples: Sequence[Sample], batch_size: int = 48
) -> list[str]:
    """Return greedy answers, batched by prompt length so that little of a batch is padding."""
    was_training = model.training
    model.train(False)
    prompts = [prompt_ids(tokenizer, sample) for sample in samples]
    order = sorted(range(len(samples)), key=lambda i: len(prompts[i]))
    texts: dict[int, str] = {}
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        outputs = _generate(model, tokenizer, [prompts[i] for i in rows])
        texts |= dict(zip(rows, tokenizer.decode_batch(outputs), strict=True))
    model.train(was_training)
    return [texts[i] for i in range(len(samples))]


def prompt_ids(tokenizer: Tokenizer, sample: Sample) -> list[int]:
    """Encode the prompt as the chat template writes it, with the opening of the reply."""
    ids = [special_id(tokenizer, BOS)]
    for message in sample.messages:
        reply = message.role == "assistant"
        ids += [special_id(tokenizer, ASSISTANT if reply else USER), *tokenizer.encode(message.content).ids]
        ids += [special_id(tokenizer, EOS)] if reply else []
    return [*ids, special_id(tokenizer, ASSISTANT)]


def _generate(model: LlamaForCausalLM, tokenizer: Tokenizer, prompts: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, prompts))
    pad, eos = special_id(tokenizer, PAD), special_id(tokenizer, EOS)
    # Padding on the left: generation continues from the last column of every row.
    ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    generate_ids = cast(Callable[..., Tensor], model.generate)  # type: ignore[misc]  # its protocol wants more of self
    output = generate_ids(
        input_ids=ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    return [[t for t in row if t not in (pad, eos)] for row in output[:, longest:].tolist()]
