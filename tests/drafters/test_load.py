"""What the loader takes and what it refuses, naming the offender."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from spoiled import SpoiledHead

from outrider_drafters import TargetWeights, load_drafter, load_tap
from outrider_drafters.load import FAMILIES as FAMILIES_OF_OUTRIDER
from outrider_drafters.load import options_of
from outrider_proto.errors import UsageError


@pytest.fixture(params=["moa", "eagle2"])
def directory(request, tmp_path, golden) -> SpoiledHead:
    return SpoiledHead(tmp_path / "drafter", golden, request.param)


@pytest.fixture
def eagle(tmp_path, golden) -> SpoiledHead:
    return SpoiledHead(tmp_path / "drafter", golden, "eagle2")


@pytest.fixture
def moa(tmp_path, golden) -> SpoiledHead:
    return SpoiledHead(tmp_path / "drafter", golden, "moa")


def test_keys_and_values_of_another_target_are_refused(moa):
    config = json.loads((moa.target / "config.json").read_text())
    other = moa.path.parent / "target"
    shutil.copytree(moa.target, other, copy_function=shutil.copyfile)
    (other / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 4}))
    moa.target, moa.frozen = other, TargetWeights.load(other)
    moa.refused("width of packed K/V is 32, the target's 64")


@pytest.mark.parametrize("content", ["{", "[1]"])
def test_broken_config_is_named(directory, content):
    (directory.path / "config.json").write_text(content)
    with pytest.raises(UsageError, match=r"config\.json: (cannot be read as JSON|need a JSON object)"):
        load_drafter(directory.path, TargetWeights.load(directory.target))


def test_what_no_family_knows_is_refused(eagle):
    eagle.tensors = {"encoder.weight": torch.zeros(2)}
    eagle.config["architectures"] = ["BertModel"]
    eagle.refused(r"drafter: not a drafter directory \(architectures=\['BertModel'\]\); need one of .*encoder\.weight")


def test_a_whole_model_is_an_independent_drafter_where_nothing_else_claims_it(golden, eagle):
    frozen = TargetWeights.load(golden / "target_l4")
    assert load_drafter(golden / "target_l4", frozen).family == "independent"
    eagle.tensors |= load_file(golden / "target_l4" / "model.safetensors")
    eagle.refused("holds unknown tensors lm_head.weight")  # EAGLE's, though it holds a whole model
    eagle.save()
    with pytest.raises(UsageError, match="holds unknown tensors"):
        load_drafter(f"{eagle.path},family=independent", frozen)


def test_another_family_than_was_asked_for_is_refused(golden):
    frozen = TargetWeights.load(golden / "target_l4")
    assert load_drafter(f"{golden}/eagle2_llama/drafter,family=eagle2", frozen).family == "eagle2"
    with pytest.raises(UsageError, match="family eagle2, not moa"):
        load_drafter(f"{golden}/eagle2_llama/drafter,family=moa", frozen)
    with pytest.raises(UsageError, match="family=nobody: need one of"):
        load_drafter(f"{golden}/eagle2_llama/drafter,family=nobody", frozen)


def test_what_is_no_drafter_directory_is_refused(tmp_path, golden):
    target = golden / "target_tiny"
    frozen = TargetWeights.load(target)
    with pytest.raises(UsageError, match="a file: need a model directory"):
        TargetWeights.load(target / "config.json")
    for place, message in (
        (target / "config.json", "a file: need a model directory"),
        (tmp_path / "nowhere", "no such directory"),
        (tmp_path, r"has no config\.json"),
    ):
        with pytest.raises(UsageError, match=message):
            load_drafter(place, frozen)
    (tmp_path / "config.json").write_text("{}")
    with pytest.raises(UsageError, match=r"has neither model\.safetensors nor"):
        load_drafter(tmp_path, frozen)


MTP_LAYOUTS = {
    "mtp.fc.weight": r"heads of targets with linear attention, which the server does not run \(mtp\.fc\.weight\)",
    "model.mtp.layers.0.input_layernorm.weight": "heads of targets with linear attention",
    "model.layers.4.eh_proj.weight": r"layer, whose latent attention and experts .*eh_proj\.weight\): not supported",
}


@pytest.mark.parametrize("name", list(MTP_LAYOUTS))
def test_multi_token_prediction_layers_are_refused_by_name(name, golden, tmp_path):
    target = golden / "target_tiny"
    tensors = load_file(target / "model.safetensors") | {name: torch.zeros(2, 2)}
    save_file(tensors, tmp_path / "model.safetensors", metadata={"format": "pt"})
    (tmp_path / "config.json").write_bytes((target / "config.json").read_bytes())
    with pytest.raises(UsageError, match=MTP_LAYOUTS[name]):
        load_drafter(tmp_path, TargetWeights.load(target))
    with pytest.raises(UsageError, match=MTP_LAYOUTS[name]):
        load_tap(tmp_path, target)
    with pytest.raises(UsageError, match=f"holds unknown tensors {name}"):
        load_drafter(f"{tmp_path},family=independent", TargetWeights.load(target))


def test_every_option_is_in_the_documentation():
    page = (Path(__file__).parents[2] / "docs" / "drafters.md").read_text()
    table = page.partition("| option | family | meaning |")[2].partition("\n\n")[0]
    listed = {line.partition("`")[2].partition("=")[0]: line for line in table.splitlines() if "`" in line}
    declared = {option.name for family in FAMILIES_OF_OUTRIDER for option in options_of(family)}
    assert listed.keys() == declared | {"family"}
    for family in FAMILIES_OF_OUTRIDER:
        for option in family.declared_options:
            assert "all" in listed[option.name] or family.name in listed[option.name], (family.name, option.name)
