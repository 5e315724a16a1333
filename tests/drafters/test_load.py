"""What the loader takes and what it refuses, naming the offender."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from heads_place import begun
from safetensors.torch import load_file, save_file
from spoiled import SpoiledHead

from outrider_drafters import LastHiddenTap, TargetWeights, load_drafter, load_tap
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


def test_stored_rope_buffer_is_ignored(eagle):
    eagle.tensors["layers.0.self_attn.rotary_emb.inv_freq"] = torch.zeros(8)
    eagle.load()


def test_keys_and_values_of_another_target_are_refused(moa):
    config = json.loads((moa.target / "config.json").read_text())
    other = moa.path.parent / "target"
    shutil.copytree(moa.target, other, copy_function=shutil.copyfile)
    (other / "config.json").write_text(json.dumps(config | {"num_key_value_heads": 4}))
    moa.target = other
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


def test_options_of_other_families_are_refused(golden):
    with pytest.raises(UsageError, match="independent takes tie_to_target"):
        load_drafter(golden / "target_vicuna_tiny,rope_theta=5", TargetWeights.load(golden / "target_tiny"))
    with pytest.raises(UsageError, match="lookup: option tli: family lookup takes ngram"):
        load_drafter("lookup,tli=1", TargetWeights.load(golden / "target_tiny"))


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


@pytest.mark.parametrize(("flag", "held"), [(True, True), (False, True), (True, False), (None, False)])
def test_presence_decides_on_fc_bias(eagle, flag, held):
    eagle.config["bias"] = flag
    if not held:
        del eagle.tensors["fc.bias"]
    assert (eagle.load().fc.bias is not None) == held


def test_qkv_biases_of_a_qwen2_drafter(eagle):
    for name, rows in (("q", 64), ("k", 32), ("v", 32)):
        eagle.tensors[f"layers.0.self_attn.{name}_proj.bias"] = torch.ones(rows)
    assert eagle.load().block.shape.qkv_bias
    del eagle.tensors["layers.0.self_attn.v_proj.bias"]
    eagle.refused("lacks tensors layers.0.self_attn.v_proj.bias")


def test_embedding_may_be_absent_or_a_copy_or_its_own(eagle):
    drafter = eagle.load()
    assert drafter.embed is drafter.target.embed  # the copy is dropped
    embed = eagle.tensors.pop("embed_tokens.weight")
    drafter = eagle.load()
    assert drafter.embed is drafter.target.embed
    eagle.tensors["embed_tokens.weight"] = embed + 1
    assert torch.equal(eagle.load().embed, embed + 1)


def test_missing_rope_theta_means_ten_thousand(eagle):
    assert "rope_theta" not in eagle.config
    assert eagle.load().block.shape.rope_theta == 10000.0
    eagle.config["rope_parameters"] = {"rope_type": "default", "rope_theta": 7.0}
    assert eagle.load().block.shape.rope_theta == 7.0


def test_type_of_the_target_is_taken(directory):
    directory.tensors = {name: tensor.bfloat16() for name, tensor in directory.tensors.items()}
    directory.save()
    for dtype in (torch.float32, torch.bfloat16):
        drafter = load_drafter(directory.path, TargetWeights.load(directory.target, dtype))
        state = begun(drafter, [1, 2], torch.ones(1, drafter.tap.width))
        assert state.root_logits().dtype == torch.float32
        linear = drafter.fc if drafter.family == "eagle2" else drafter.ekv2e
        assert linear.weight.dtype == dtype


def test_pickled_file(eagle):
    torch.save(eagle.tensors, eagle.path / "pytorch_model.bin")
    (eagle.path / "model.safetensors").unlink()
    assert load_drafter(eagle.path, TargetWeights.load(eagle.target)).family == "eagle2"


class Bomb:
    def __reduce__(self):
        return print, ("code of a file must not run",)


@pytest.mark.parametrize("content", [[1, 2], {"fc.weight": 3}, {"fc.weight": Bomb()}])
def test_pickled_file_of_anything_else_is_refused(eagle, content, capsys):
    torch.save(content, eagle.path / "pytorch_model.bin")
    (eagle.path / "model.safetensors").unlink()
    with pytest.raises(UsageError, match=r"pytorch_model\.bin: (not a plain file of tensors|need a dict of tensors)"):
        load_drafter(eagle.path, TargetWeights.load(eagle.target))
    assert capsys.readouterr().out == ""


def test_eagle_tap_needs_no_weights(eagle):
    tap = load_tap(eagle.path, eagle.target)
    assert isinstance(tap, LastHiddenTap)
    assert tap.info == load_drafter(eagle.path, TargetWeights.load(eagle.target)).tap
    assert tap.info.fingerprint == "last-hidden:64"


MTP_LAYOUTS = {
    "mtp.fc.weight": r"heads \(mtp\.\*\) are not supported: they belong to targets with linear attention",
    "model.mtp.layers.0.input_layernorm.weight": r"heads \(mtp\.\*\)",
    "model.layers.4.eh_proj.weight": r"layer \(eh_proj\) is not supported: its latent attention and experts",
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
