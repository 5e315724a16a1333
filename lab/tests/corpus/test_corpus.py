"""Generators: deterministic, split by composition, and right by their own checks."""

import pytest

from outrider_lab.corpus import generate, split_of
from outrider_lab.corpus.check import score_all
from outrider_lab.corpus.sample import HiddenTests
from outrider_models.core.held_out import FAMILIES
from outrider_proto.errors import UsageError


@pytest.mark.parametrize("family", FAMILIES)
def test_reference_answers_pass_their_checks(family):
    samples = [*generate(family, "train", 1, 60), *generate(family, "test", 1, 60)]
    assert all(score_all(samples, [sample.answer for sample in samples]))


@pytest.mark.parametrize("family", FAMILIES)
def test_an_answer_to_another_prompt_fails(family):
    samples = list(generate(family, "test", 2, 60))
    shifted = [sample.answer for sample in samples[1:]] + [samples[0].answer]
    assert sum(score_all(samples, shifted)) <= 6  # a few answers are right by accident


@pytest.mark.parametrize("family", FAMILIES)
def test_splits_share_no_composition(family):
    train = {sample.key for sample in generate(family, "train", 3, 300)}
    test = {sample.key for sample in generate(family, "test", 3, 100)}
    assert not train & test
    assert {split_of(key) for key in train} == {"train"}
    assert {split_of(key) for key in test} == {"test"}


@pytest.mark.parametrize("family", FAMILIES)
def test_samples_depend_on_seed_and_index_only(family):
    ten = list(generate(family, "test", 4, 10))
    assert ten[:5] == list(generate(family, "test", 4, 5))
    assert ten != list(generate(family, "test", 5, 10))


def test_code_has_eight_tests_and_tells_wrong_functions_apart():
    samples = list(generate("code", "test", 6, 40))
    assert all(isinstance(sample.check, HiddenTests) and len(sample.check.cases) == 8 for sample in samples)
    broken = [sample.answer.rsplit("\n", 1)[0] + "\n    return None" for sample in samples]
    assert not any(score_all(samples, broken))


@pytest.mark.parametrize(("family", "split"), [("poetry", "train"), ("code", "dev")])
def test_unknown_names_are_refused(family, split):
    with pytest.raises(UsageError, match="choose one of"):
        next(generate(family, split, 1, 1))
