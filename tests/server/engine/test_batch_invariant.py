"""Batch-invariant passes: a token's logits are the same bits in a decode, a chunk, a tree, alone and among others."""

from dataclasses import replace
from functools import lru_cache
from itertools import pairwise

import numpy as np
import pytest
import torch
from tiny_targets import CONFIGS, FakeRequest, build, in_int8, random_tokens, tree_around

from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.hf_model import BatchInvariance
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target
from outrider_server.kv.memory import KVMemory

from ...marks import needs_int8

HALVES = (torch.bfloat16, torch.float16)
TYPES = (*HALVES, pytest.param(torch.int8, marks=needs_int8))
# gpt-oss rounds its softmax, too: the router of so small a model then takes other experts than on slots.
NAMES = [
    pytest.param(name, marks=() if name in ("llama", "gemma2") else pytest.mark.slow)
    for name in CONFIGS
    if name != "gpt-oss"
]


@lru_cache(maxsize=2)
def target(name: str, dtype: torch.dtype, *, invariant: bool = True) -> Target:
    model = build(name, hidden_size=96, intermediate_size=160)
    if dtype == torch.int8:
        return Target.of(in_int8(model))
    return Target.of(model.to(dtype), fused=False, batch_invariant=invariant)


def logits(on: Target, texts: list[list[int]], cuts: list[int], *, share: bool) -> list[torch.Tensor]:
    """Logits of all tokens of all texts, run side by side in chunks, after a beginning that they may share."""
    seen: list[list[torch.Tensor]] = [[] for _ in texts]
    forward = type(on).forward

    def watched(self, tokens, positions, slots, keep, hidden):
        output = forward(self, tokens, positions, slots, list(range(len(tokens))), hidden)
        for rows, part in zip(seen, torch.split(output.logits, [len(tokens) // len(texts)] * len(texts)), strict=True):
            rows.append(part)
        return type(output)(output.logits[keep], output.hidden)

    memory, engine = KVMemory(on.kv, sharing="all" if share else "none", small_bytes=0), Engine(on)
    sequences = [Sequence(memory, None, payer=str(number)) for number in range(len(texts))]
    for sequence, text in zip(sequences, texts, strict=True):
        sequence.begin(FakeRequest(), 0, text[: cuts[0]], len(text))
        if sequence.num_uncomputed:
            engine.commit(engine.verify([StepInput(sequence, sequence.uncomputed)])[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(on), "forward", watched)
        for first, stop in pairwise(cuts):
            for result in engine.verify(
                [StepInput(each, text[first:stop]) for each, text in zip(sequences, texts, strict=True)]
            ):
                engine.commit(result)
    return [torch.cat(rows) for rows in seen]


@pytest.mark.parametrize("dtype", TYPES, ids=str)
@pytest.mark.parametrize("name", NAMES)
def test_a_token_has_the_same_logits_in_every_pass(name, dtype):
    if dtype == torch.int8 and name.startswith("mixtral"):
        pytest.skip("its experts are no linear layers")
    rng = np.random.default_rng(1)
    beginning = random_tokens(rng, 40)
    texts = [beginning + random_tokens(rng, 50) for _ in range(3)]
    on = target(name, dtype)
    alone = logits(on, texts[:1], list(range(40, 91)), share=False)[0]
    assert torch.equal(logits(on, texts, [40, 90], share=True)[0], alone)
    assert torch.equal(logits(on, texts, [40, 41, 43, 76, 90], share=True)[0], alone)


def test_without_the_switch_they_differ():
    rng = np.random.default_rng(1)
    text = random_tokens(rng, 90)
    on = target("llama", torch.bfloat16, invariant=False)
    alone = logits(on, [text], list(range(40, 91)), share=False)[0]
    assert not torch.equal(logits(on, [text], [40, 90], share=False)[0], alone)


@pytest.mark.parametrize("sampling", [Sampling(), Sampling(temperature=1.5, seed=3)], ids=["greedy", "sampled"])
@pytest.mark.parametrize("dtype", [torch.bfloat16, pytest.param(torch.int8, marks=needs_int8)], ids=str)
@pytest.mark.parametrize("name", ["llama", "mistral-window", "gemma2"])
def test_drafted_answers_are_the_plain_ones(name, dtype, sampling):
    rng = np.random.default_rng(2)
    prompt, engine = random_tokens(rng, 20), Engine(replace(target(name, dtype), eos_token_ids=()))

    def answered(drafts: list[int]) -> list[int]:
        """The answer with drafts of so many nodes, in turn, half of them right."""
        sequence = Sequence(engine.target.kv, None)
        sequence.begin(FakeRequest(), 0, [], 200)
        chain, turn = prompt, 0
        while len(sequence.tokens) < 80:
            count = drafts[turn % len(drafts)]
            tree = tree_around(rng, plain[len(sequence.tokens) + len(chain) :][:count], count, count)
            (result,) = engine.verify([StepInput(sequence, chain, tree if count else DraftTree(), Sampler(sampling))])
            engine.commit(result)
            chain, turn = [result.accepted.bonus], turn + 1
        return sequence.tokens[:80]

    plain: list[int] = []
    plain = answered([0])
    assert answered([4, 0, 9]) == plain


def test_what_cannot_be_made_invariant_is_refused():
    model = build("llama", hidden_size=96, intermediate_size=160).to(torch.bfloat16)
    # In bfloat16 alone: of float32 the check before would complain.
    narrow = torch.bfloat16
    model.lm_head.register_forward_hook(lambda _, __, x: x * (1 + 0.005 * x.shape[1] * (x.dtype == narrow)))
    with pytest.raises(UsageError, match="llama: its passes cannot be made batch-invariant here"):
        Target.of(model, fused=False, batch_invariant=True)


def test_a_mean_does_not_hang_on_the_order_of_its_sum():
    """On a GPU the number of rows decides it."""
    values = torch.tensor([1e8, 1, -1e8, 1])
    with BatchInvariance():
        means = [values[torch.randperm(4)].mean(-1).item() for _ in range(20)]
        assert values.to(torch.bfloat16).mean(-1, keepdim=True).dtype == torch.bfloat16
    assert set(means) == {0.5}
