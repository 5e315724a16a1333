"""What ships: every drafter is there, loads, and goes by its name."""

import shutil
from dataclasses import replace

import pytest

from outrider_drafters import TargetWeights, load_drafter, load_tap
from outrider_drafters.checkpoints.catalog import catalog, installed_file
from outrider_drafters.checkpoints.fingerprint import TARGET_FINGERPRINT_KEY
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_drafters.load import open_drafter
from outrider_drafters.readers.config import read_config
from outrider_models.core import embedded
from outrider_models.core.embedded import (
    DRAFTERS,
    default_target,
    drafter_dir,
    drafter_source,
    model_dirs,
    shipped_drafters,
    target_dir,
)
from outrider_proto.errors import UsageError

MAX_PACKAGE_BYTES = 24_000_000
MAX_HEAD_BYTES, MAX_HEADS_BYTES = 12_000_000, 40_000_000  # for a target of the catalog


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


@pytest.mark.parametrize("target", catalog())
def test_drafters_for_targets_to_get_stay_small_and_say_what_they_are_for(target):
    names = shipped_drafters(target)
    sizes = [sum(file.stat().st_size for file in drafter_dir(name).iterdir()) for name in names]
    assert all(size <= MAX_HEAD_BYTES for size in sizes), dict(zip(names, sizes, strict=True))
    assert sum(sizes) <= MAX_HEADS_BYTES
    made_for = {read_config(drafter_dir(name)).get(TARGET_FINGERPRINT_KEY) for name in names}
    assert None not in made_for
    assert len(made_for) <= 1
    assert not names or names[0] == catalog()[target].drafter  # the best one is there
    for name in names:
        open_drafter(DrafterSource(str(drafter_dir(name))))  # its family is recognized


def test_a_name_stands_for_its_directory_and_keeps_its_options():
    assert drafter_source("medusa,rope_theta=5") == f"{drafter_dir('medusa')},rope_theta=5"
    assert drafter_source("./medusa") == "./medusa"
    assert drafter_source("lookup,ngram=2") == "lookup,ngram=2"


@pytest.fixture
def heads(tmp_path, monkeypatch):
    """A package in which eagle3 and moa ship for smollm2, made for the embedded target in truth; nothing installed."""
    monkeypatch.setitem(catalog(), "smollm2", replace(catalog()["smollm2"], drafter="smollm2/moa"))
    shutil.copytree(drafter_dir("eagle3"), tmp_path / "smollm2" / "eagle3")
    shutil.copytree(drafter_dir("moa"), tmp_path / "smollm2" / "moa")
    for directory in model_dirs().values():
        (tmp_path / directory.name).symlink_to(directory)
    monkeypatch.setattr(embedded, "_ROOT", tmp_path)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return tmp_path / "smollm2"


def test_the_drafters_of_a_target_by_its_name_the_best_first(heads):
    assert shipped_drafters("smollm2") == ("smollm2/moa", "smollm2/eagle3")
    assert shipped_drafters() == DRAFTERS
    assert drafter_dir("smollm2/eagle3") == heads / "eagle3"
    assert drafter_source("smollm2", target_dir()) == f"{heads / 'moa'}"
    assert drafter_source("smollm2/moa,tli=1") == f"{heads / 'moa'},tli=1"
    assert drafter_source("moa", "smollm2") == "moa"  # a name of the embedded target's


def test_the_drafters_of_a_target_by_its_weights(heads, tmp_path):
    shutil.copytree(target_dir(), tmp_path / "copy")
    assert shipped_drafters(tmp_path / "copy") == DRAFTERS
    for file in heads.glob("*/config.json"):
        file.write_text(file.read_text().replace('_fingerprint": "', '_fingerprint": "00'))
    assert shipped_drafters("smollm2") == ("smollm2/moa", "smollm2/eagle3")
    (tmp_path / "moa").unlink()
    shutil.copytree(heads / "moa", tmp_path / "moa")  # the embedded ones, of another target now
    assert shipped_drafters(tmp_path / "copy") == ()


def test_the_default_target_is_the_installed_one(heads):
    assert default_target() == default_target(["lookup"]) == "embedded"
    assert default_target(["lookup", "smollm2/eagle3,rope_theta=5"]) == "smollm2"
    installed_file("smollm2").parent.mkdir(parents=True)
    installed_file("smollm2").touch()
    assert default_target() == default_target(["lookup"]) == "smollm2"
    assert default_target(["medusa"]) == "embedded"
    shutil.rmtree(heads)
    assert default_target() == "smollm2"  # with lookup as its drafter


def test_names_that_nothing_stands_behind(heads):
    with pytest.raises(UsageError, match=r"drafter 'smollm2/mtp': those for smollm2 are smollm2/moa, smollm2/eagle3"):
        drafter_source("smollm2/mtp")
    with pytest.raises(UsageError, match=r"^smollm2: not installed: outrider-models get smollm2$"):
        resolve_dir("smollm2")
    shutil.rmtree(heads)
    with pytest.raises(UsageError, match=r"drafter 'smollm2': none ships for smollm2: --drafter lookup needs no"):
        drafter_source("smollm2,tli=1")
