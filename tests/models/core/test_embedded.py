"""What ships: every drafter is there, loads, and goes by its name."""

import pytest

from outrider_drafters import TargetWeights, load_drafter, load_tap
from outrider_models.core.embedded import DRAFTERS, drafter_dir, drafter_source, model_dirs, target_dir
from outrider_proto.errors import UsageError

MAX_PACKAGE_BYTES = 24_000_000


@pytest.fixture(scope="module")
def frozen() -> TargetWeights:
    return TargetWeights.load(target_dir())


@pytest.mark.parametrize("name", DRAFTERS)
def test_both_halves_of_every_drafter_load_and_agree(name, frozen):
    drafter, tap = load_drafter(drafter_dir(name), frozen), load_tap(drafter_dir(name), target_dir())
    assert drafter.tap.fingerprint == ("" if tap is None else tap.info.fingerprint)


def test_the_models_stay_small():
    files = [file for directory in model_dirs().values() for file in directory.iterdir()]
    assert model_dirs().keys() == {"target", *DRAFTERS}
    assert sum(file.stat().st_size for file in files) < MAX_PACKAGE_BYTES


def test_a_name_stands_for_its_directory_and_keeps_its_options():
    assert drafter_source("medusa,rope_theta=5") == f"{drafter_dir('medusa')},rope_theta=5"
    assert drafter_source("./medusa") == "./medusa"
    assert drafter_source("lookup,ngram=2") == "lookup,ngram=2"


def test_an_unknown_name_is_refused_with_those_there_are():
    with pytest.raises(UsageError, match="moa, eagle2"):
        drafter_dir("nobody")
