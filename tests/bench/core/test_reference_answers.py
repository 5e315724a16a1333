"""Where answers depart from the plain loop's, and whether rounding explains it."""

import json
import shutil
from pathlib import Path

import pytest
import torch

from outrider_bench.core.reference_answers import (
    LEAST_MARGIN,
    ROUNDINGS,
    Departure,
    GenerateModel,
    departure,
    is_on_a_border,
)
from outrider_bench.load.control import GenerateControl
from outrider_bench.studies.pair.verify_cost import random_target
from outrider_drafters.contracts.token_draw import distribution, uniforms
from outrider_models.core.embedded import target_dir
from outrider_models.distillation.writer import TargetWriter
from outrider_models.training.core.teacher import Teacher
from outrider_proto.frames import Sampling
from outrider_server.engine.reference_decode import plain_decode, plain_logits
from outrider_server.engine.target import Target


def test_the_first_difference_is_named():
    assert departure("q", (1, 2, 3), (1, 2, 3)) is None
    assert departure("q", (1, 5, 3), (1, 2, 4)) == Departure("q", 1, expected=2, found=5)
    assert departure("q", (1,), (1, 2)) == Departure("q", 1, expected=2, found=None)
    assert departure("q", (1, 2, 3), (1, 2)) == Departure("q", 2, expected=None, found=3)


def test_near_ties_are_near_in_both_types_and_have_two_tokens():
    near = LEAST_MARGIN["bfloat16"]
    assert Departure("q", 0, 1, 2, near, -near, 0.0).is_near_tie("bfloat16")
    assert not Departure("q", 0, 1, 2, near, 2 * near, 0.0).is_near_tie("bfloat16")
    assert not Departure("q", 0, 1, 2, 2 * near, near, 0.0).is_near_tie("bfloat16")
    assert Departure("q", 0, 1, 2, near, 2 * near, 2 * near / ROUNDINGS).is_near_tie("bfloat16")
    assert not Departure("q", 0, 1, None).is_near_tie("bfloat16")


def test_the_rounding_is_what_sets_two_types_apart_beside_a_shift_of_all():
    exact, error = torch.linspace(20, 0, 200), torch.tensor([0.25, -0.25] * 100)
    measured = Departure("q", 0, 3, 5).measured(exact + error + 1, exact)
    assert measured.margin_float32 == pytest.approx(float(exact[3] - exact[5]), abs=1e-5)
    assert measured.margin == pytest.approx(float(exact[3] - exact[5]), abs=1e-5)
    assert measured.rounding == pytest.approx(0.25, rel=0.01)
    assert Departure("q", 0, None, 5).measured(exact, exact) == Departure("q", 0, None, 5)


def test_rounding_explains_a_draw_on_a_border_and_no_other():
    target, prompt = Target.load(str(target_dir())), (1, 2, 3)
    ends = distribution(plain_logits(target, prompt), Sampling(temperature=2.0))[0].cumsum(-1)
    found = set()
    for seed in range(2000):
        sampling = Sampling(temperature=2.0, seed=seed)
        (number,) = uniforms(seed, [len(prompt)])
        token = int((ends <= number).sum())
        is_near = float(ends[token]) - number < 5e-4
        if token + 1 == len(ends) or (not is_near and float(ends[token]) - number < 2e-3) or is_near in found:
            continue
        found.add(is_near)
        plain = plain_decode(target, prompt, 2, sampling)
        assert plain[0] == token
        assert is_on_a_border(target, prompt, plain, (token + 1, plain[1]), sampling) is is_near
        assert not is_on_a_border(target, prompt, plain, plain[:1], sampling)  # it has ended elsewhere
    assert found == {True, False}


LOADERS = {
    "generate": lambda path: GenerateModel.load(path)._model,
    "load's control": lambda path: GenerateControl(path, "float32", "cpu", ())._model,
    "load's control of int8": lambda path: GenerateControl(path, "int8", "cpu", ())._model,
    "verify-cost": lambda path: random_target(str(path), "float32", "cpu").model,
    "training": lambda path: Teacher.load(path, torch.float32).model,
    "distill": lambda path: TargetWriter.load(path, 1, "float32").model,
}


@pytest.mark.parametrize("load", LOADERS.values(), ids=LOADERS)
def test_a_targets_config_names_no_code_to_whoever_loads_it(tmp_path: Path, load):
    shutil.copytree(target_dir(), tmp_path, dirs_exist_ok=True)
    path = tmp_path / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"_attn_implementation": "somebody/kernel"}))
    assert load(tmp_path).config._attn_implementation != "somebody/kernel"
