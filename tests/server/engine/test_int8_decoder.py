"""The compiled int8 pass gives the bits of the plain one, wherever keys lie and whatever a pass holds."""

import sys
from dataclasses import replace

import numpy as np
import pytest
import torch
from tiny_targets import FakeRequest, build, in_int8, random_tokens, random_tree

from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_proto.tree import DraftTree
from outrider_server.engine import int8_decoder
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.fused_decoder import FusedDecoder
from outrider_server.engine.int8_decoder import Int8Decoder
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target
from outrider_server.int8 import kernels
from outrider_server.kv.memory import KVMemory

from ...marks import needs_int8

pytestmark = needs_int8
WANTED = frozenset({0, 1, -1, BEFORE_NORM})


@pytest.fixture(params=["llama", "mistral-window", "qwen2", "qwen3"])
def target(request):
    served = Target.of(in_int8(build(request.param, hidden_size=96, intermediate_size=160)))
    assert isinstance(served.fused, Int8Decoder)
    return served


def outputs(target: Target, *, layout: str, seed: int) -> list[torch.Tensor]:
    """Logits and states of passes over sessions that share a beginning: chunks, single tokens, trees."""
    rng, seen, forward = np.random.default_rng(seed), [], type(target).forward

    def watched(self, tokens, positions, slots, keep, hidden):
        output = forward(self, tokens, positions, slots, list(range(len(tokens))), WANTED)
        seen.extend([output.logits, *(output.hidden[layer] for layer in sorted(WANTED))])
        return type(output)(output.logits[keep], output.hidden)

    memory, engine = KVMemory(target.kv, sharing="all", small_bytes=0, layout=layout), Engine(target)
    beginning = random_tokens(rng, 70)
    sequences = [Sequence(memory, None, payer=str(number)) for number in range(3)]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(type(target), "forward", watched)
        for number, sequence in enumerate(sequences):
            sequence.begin(FakeRequest(), 0, beginning + random_tokens(rng, number + 1), 200)
            engine.commit(engine.verify([StepInput(sequence, sequence.uncomputed)])[0])
        for size in (1, 9, 40, 1):
            trees = [random_tree(rng, size), DraftTree(), random_tree(rng, 5)]
            chains = [random_tokens(rng, count) for count in (1, size, 3)]
            for result in engine.verify(list(map(StepInput, sequences, chains, trees))):
                engine.commit(result)
    return seen


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
def test_it_gives_the_bits_of_the_plain_pass(target, layout, monkeypatch):
    # By several threads, however few rows there are.
    monkeypatch.setattr(int8_decoder, "_WORTH_A_THREAD", 100)
    monkeypatch.setattr(int8_decoder, "_WORTH_TWO_THREADS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)
    plain = replace(target, fused=FusedDecoder(target.model, packed=False))
    compiled, by_torch = (outputs(each, layout=layout, seed=1) for each in (target, plain))
    assert len(compiled) == len(by_torch) > 20
    assert all(map(torch.equal, compiled, by_torch))


def test_a_pass_of_few_small_products_leaves_the_number_of_threads_as_it_is(target, monkeypatch):
    seen, threads, to_codes = [], torch.get_num_threads(), kernels.to_codes
    monkeypatch.setattr(kernels, "to_codes", lambda *args: (seen.append(torch.get_num_threads()), to_codes(*args)))
    torch.set_num_threads(2)
    outputs(target, layout="contiguous", seed=2)
    assert (set(seen), torch.get_num_threads()) == ({1}, 2)
    torch.set_num_threads(threads)


def test_what_is_no_number_stays_with_its_row():
    codes, scales = np.empty((3, 64), np.uint8), np.empty(3, np.float32)
    rows = np.ones((3, 64), np.float32)
    rows[0, 5], rows[1, 63] = np.nan, np.inf
    kernels.to_codes(rows, codes, scales)
    assert np.isnan(scales).tolist() == [True, True, False]


def test_layers_without_a_step_of_their_own_take_the_plain_pass():
    target = Target.of(in_int8(build("llama", attention_bias=True)))
    assert type(target.fused) is FusedDecoder


def test_without_numba_int8_serves_and_says_what_to_install(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "outrider_server.engine.int8_decoder", None)
    target = Target.of(in_int8(build("llama")))
    assert type(target.fused) is FusedDecoder
    assert "pip install numba" in caplog.text
