"""The compiled pass gives what the plain one does, in int8 its bits, wherever keys lie and whatever a pass holds."""

import sys
from dataclasses import replace
from functools import partial
from mmap import ACCESS_READ, mmap

import numpy as np
import pytest
import torch
from tiny_targets import FakeRequest, build, in_int8, random_tokens, random_tree, with_random_biases

from outrider_drafters.blocks.packed_linear import can_pack
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_proto.tree import DraftTree
from outrider_server.engine import compiled_decoder
from outrider_server.engine.compiled_decoder import CompiledDecoder
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.fused_decoder import FusedDecoder
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target
from outrider_server.kv.memory import KVMemory
from outrider_server.processor import kernels

from ...marks import needs_int8

WANTED = frozenset({0, 1, -1, BEFORE_NORM})
MODELS = ["llama", "mistral-window", "qwen2", "qwen3"]
SIZES = {"hidden_size": 96, "intermediate_size": 160}


@pytest.fixture(params=MODELS)
def target(request):
    return compiled(in_int8(build(request.param, **SIZES)))


def compiled(model) -> Target:
    served = Target.of(model)
    assert isinstance(served.fused, CompiledDecoder)
    return served


@pytest.fixture
def many_threads(monkeypatch):
    """Steps are divided among several threads, however few rows there are."""
    monkeypatch.setattr(compiled_decoder, "_WORTH_A_THREAD", 100)
    monkeypatch.setattr(compiled_decoder, "_WORTH_TWO_THREADS", 0)
    monkeypatch.setattr(torch, "get_num_threads", lambda: 3)


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


@needs_int8
@pytest.mark.parametrize("layout", ["contiguous", "paged"])
def test_in_int8_it_gives_the_bits_of_the_plain_pass(target, layout, many_threads):
    plain = replace(target, fused=FusedDecoder(target.model, packed=False))
    rows, by_torch = (outputs(each, layout=layout, seed=1) for each in (target, plain))
    assert len(rows) == len(by_torch) > 20
    assert all(map(torch.equal, rows, by_torch))


@pytest.mark.parametrize("layout", ["contiguous", "paged"])
@pytest.mark.parametrize("few_rows", [0, 8, 1000])
@pytest.mark.parametrize(
    ("name", "changes"), [*((name, {}) for name in MODELS), ("llama", {"attention_bias": True, "mlp_bias": True})]
)
def test_in_float32_it_differs_from_the_plain_pass_by_rounding_alone(
    name, changes, few_rows, layout, many_threads, monkeypatch
):
    monkeypatch.setattr(compiled_decoder, "_FEW_ROWS", few_rows)
    model = with_random_biases(build(name, **SIZES, **changes))
    target = compiled(model)
    rows, by_torch = (
        outputs(each, layout=layout, seed=1)
        for each in (target, replace(target, fused=FusedDecoder(model, packed=True)))
    )
    assert len(rows) == len(by_torch) > 20
    for ours, theirs in zip(rows, by_torch, strict=True):
        torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


@pytest.mark.skipif(not can_pack(torch.zeros(1, 1).bfloat16()), reason="no products in bfloat16 on this processor")
@pytest.mark.parametrize("few_rows", [0, 1000])
def test_in_bfloat16_it_is_as_near_to_float32_as_the_plain_pass(few_rows, many_threads, monkeypatch):
    monkeypatch.setattr(compiled_decoder, "_FEW_ROWS", few_rows)
    exact = outputs(Target.of(build("qwen3", **SIZES)), layout="contiguous", seed=1)
    target = compiled(build("qwen3", **SIZES).bfloat16())
    plain = replace(target, fused=FusedDecoder(target.model, packed=True))
    ours, theirs = (outputs(each, layout="contiguous", seed=1) for each in (target, plain))
    assert {rows.dtype for rows in ours} == {torch.bfloat16}
    errors = [sum(float((a - b).square().mean()) for a, b in zip(exact, each, strict=True)) for each in (ours, theirs)]
    assert 0 < errors[0] < 1.2 * errors[1]


def test_where_the_compiled_pass_computes_something_else_the_plain_one_serves(monkeypatch):
    monkeypatch.setattr(kernels, "store", lambda *args: None)
    assert type(Target.of(build("llama")).fused) is FusedDecoder


@pytest.mark.parametrize("openmp", [None, "torch's"])
def test_calls_are_made_once_each_in_threads_and_what_fails_is_raised(openmp, monkeypatch, tmp_path):
    """Also beside a mapped file whose name is not of one line; without torch's OpenMP in a pool."""
    (tmp_path / "a\x0c\u2028").write_bytes(b"mapped")
    if openmp is None:
        monkeypatch.setattr(compiled_decoder.Path, "read_bytes", lambda path: b"")
    team = compiled_decoder._team.__wrapped__
    monkeypatch.setattr(compiled_decoder, "_team", team)
    made = []

    def fails():
        raise MemoryError("none left")

    with (tmp_path / "a\x0c\u2028").open("rb") as file, mmap(file.fileno(), 0, access=ACCESS_READ):
        assert (team().func is compiled_decoder._in_region) == (openmp is not None)
        compiled_decoder._together([partial(made.append, number) for number in range(5)])
        with pytest.raises(MemoryError, match="none left"):
            compiled_decoder._together([lambda: None, fails])
    assert sorted(made) == [0, 1, 2, 3, 4]


@needs_int8
@pytest.mark.parametrize("has_own_cores", [False, True])
def test_a_pass_of_few_small_products_takes_one_thread_and_leaves_their_number_as_it_is(
    target, has_own_cores, monkeypatch
):
    seen, threads, put = [], torch.get_num_threads(), kernels.put
    monkeypatch.setattr(kernels, "put", lambda *args: (seen.append(torch.get_num_threads()), put(*args)))
    monkeypatch.setattr(target.fused, "has_own_cores", has_own_cores)
    torch.set_num_threads(2)
    outputs(target, layout="contiguous", seed=2)
    assert (set(seen), torch.get_num_threads()) == ({2 if has_own_cores else 1}, 2)
    torch.set_num_threads(threads)


def test_what_is_no_number_stays_with_its_row():
    codes, scales = np.empty((3, 64), np.uint8), np.empty(3, np.float32)
    rows = np.ones((3, 64), np.float32)
    rows[0, 5], rows[1, 63] = np.nan, np.inf
    kernels.put(rows, codes, scales)
    assert np.isnan(scales).tolist() == [True, True, False]


@needs_int8
def test_layers_without_a_step_of_their_own_take_the_plain_pass():
    target = Target.of(in_int8(build("llama", attention_bias=True)))
    assert type(target.fused) is FusedDecoder


def test_without_numba_the_plain_pass_serves_and_says_what_to_install(monkeypatch, caplog):
    monkeypatch.setitem(sys.modules, "outrider_server.engine.compiled_decoder", None)
    target = Target.of(build("llama"))
    assert type(target.fused) is FusedDecoder
    assert "pip install numba" in caplog.text
