"""DFlash and DSpark from GGUF files of llama.cpp's converter: the drafters they were made from, and what is refused."""

import json
import shutil
from pathlib import Path

import pytest
import torch
from gguf_dflash import DFlashWriter
from heads_place import begun
from safetensors.torch import load_file, save_file
from torch import Tensor

from outrider_drafters import TargetWeights, load_drafter, load_tap
from outrider_drafters.families.dflash.family import DFlashDrafter
from outrider_proto.errors import UsageError

TARGET = "target_l8"
TOKENS = [3, 1, 4, 1, 5, 9, 2, 6]
SLIDING = {
    "layer_types": ["sliding_attention", "full_attention", "sliding_attention"],
    "sliding_window": 3,
    "use_sliding_window": True,
}
MASKS = {"full": {}, "sliding": SLIDING, "not causal": SLIDING | {"is_causal": False}, "causal": {"is_causal": True}}


def copy_of(golden: Path, case: str, tmp_path: Path, **settings: object) -> Path:
    """A copy of a golden drafter, with other settings."""
    directory = Path(shutil.copytree(golden / case / "drafter", tmp_path / "drafter"))
    config = json.loads((directory / "config.json").read_text())
    (directory / "config.json").write_text(json.dumps(config | settings))
    return directory


@pytest.fixture
def dflash(golden, tmp_path) -> DFlashWriter:
    return DFlashWriter(golden / "dflash_zlab" / "drafter", tmp_path / "drafter.gguf")


@pytest.fixture
def dspark(golden, tmp_path) -> DFlashWriter:
    return DFlashWriter(golden / "dspark_deepspec" / "drafter", tmp_path / "drafter.gguf")


def answers(drafter: object) -> Tensor:
    """Logits of the root and of a chain behind it."""
    assert isinstance(drafter, DFlashDrafter)
    state = begun(drafter, TOKENS, torch.randn(7, 64, generator=torch.Generator().manual_seed(2)))
    rows = [state.root_logits(), *(state.expand([token], [row - 1])[0] for row, token in enumerate([8, 7, 6]))]
    return torch.stack([torch.as_tensor(row) for row in rows])


def same(path: Path, directory: Path, golden: Path) -> bool:
    """Whether two drafters read and draft the same, but for rounding."""
    taps = [load_tap(place, golden / TARGET) for place in (path, directory)]
    drafters = [load_drafter(place, TargetWeights.load(golden / TARGET)) for place in (path, directory)]
    assert drafters[0].family == drafters[1].family
    assert taps[0].hidden_layers == taps[1].hidden_layers
    assert taps[0].info == taps[1].info == drafters[0].tap == drafters[1].tap
    # Not to the bit: files put their tensors at other places in memory, and products round by how they are aligned.
    return torch.allclose(answers(drafters[0]), answers(drafters[1]), rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("mask", list(MASKS))
def test_is_the_dflash_that_was_converted(golden, dflash, tmp_path, mask):
    directory = copy_of(golden, "dflash_zlab", tmp_path, **MASKS[mask])
    assert same(DFlashWriter(directory, dflash.path).write(), directory, golden)
    assert same(dflash.path, golden / "dflash_zlab" / "drafter", golden) == (mask == "full")  # masks matter


def test_layers_are_hidden_states(dflash, golden):
    """target_layers are those of config.json and one more: also the embedding, and the last layer with its norm."""
    dflash.values["target_layers"] = [0, 5, 8]
    tap = load_tap(dflash.write(), golden / TARGET)
    assert tap.hidden_layers == (0, 5, -1)


def test_is_the_dspark_that_was_converted(dspark, golden):
    assert same(dspark.write(), golden / "dspark_deepspec" / "drafter", golden)


def test_a_whole_head_is_the_targets(dspark, golden, tmp_path, frozen):
    """The converter leaves out an lm_head of all tokens, and in its first version the embedding."""
    directory = copy_of(golden, "dspark_deepspec", tmp_path)
    tensors = load_file(directory / "model.safetensors")
    assert not torch.equal(tensors["lm_head.weight"], frozen.lm_head)
    save_file(tensors | {"lm_head.weight": frozen.lm_head.clone()}, directory / "model.safetensors")
    del dspark.tensors["output.weight"]
    assert same(dspark.write(), directory, golden)
    save_file(
        tensors | {"lm_head.weight": frozen.lm_head.clone(), "embed_tokens.weight": frozen.embed.clone()},
        directory / "model.safetensors",
    )
    del dspark.tensors["token_embd.weight"]
    assert same(dspark.write(), directory, golden)


def test_few_tokens_of_a_draft_vocabulary(dspark, frozen):
    """d2t holds target ids."""
    whole = answers(load_drafter(dspark.write(), frozen))
    ids = torch.arange(0, 256, 3)
    for name in ("output.weight", "markov_w2.weight"):
        dspark.tensors[name] = dspark.tensors[name][ids].contiguous()
    dspark.tensors["d2t"] = ids
    few = answers(load_drafter(dspark.write(), frozen))
    torch.testing.assert_close(few[:, ids] if few.shape == whole.shape else few, whole[:, ids])


def test_which_row_drafts_first(dspark, frozen):
    """A file that does not say drafts from the root's row, as llama.cpp does."""
    said = answers(load_drafter(dspark.write(), frozen))
    del dspark.values["sample_from_anchor"]
    assert torch.equal(answers(load_drafter(dspark.write(), frozen)), said)
    dspark.values["sample_from_anchor"] = False
    assert not torch.allclose(answers(load_drafter(dspark.write(), frozen)), said, atol=1e-3)


def test_a_confidence_head_that_lost_a_dimension(dspark, golden):
    """llama.cpp stores a matrix of one row as a vector when it quantizes a file."""
    dspark.tensors["conf_proj.weight"] = dspark.tensors["conf_proj.weight"].flatten()
    assert same(dspark.write(), golden / "dspark_deepspec" / "drafter", golden)


REST = torch.ones(16)
REFUSED = {  # what a DFlash's file has otherwise, and what the refusal says after the file's name
    "values": [
        ({"target_layers": None}, r"lacks dflash\.target_layers: convert the drafter again"),
        ({"attention.head_count": 2}, r"attention\.key_length=32: need 64, the width of a head"),
        ({"rope.dimension_count": 16}, r"rope\.dimension_count=16: need 32"),
        ({"rope.dimension_sections": [8, 4, 4, 0]}, r"rope\.dimension_sections=\[8, 4, 4, 0\]: need all pairs"),
        ({"target_layers": ["1", "5", "7"]}, r"dflash\.target_layers=\['1', '5', '7'\]: need a list"),
        ({"target_layers": [1, 5, 9]}, "taps hidden state 9, the target has 0 to 8"),
        ({"attention.sliding_window": 4}, r"dflash\.attention\.sliding_window_pattern=None: need true or false"),
        ({"hyper_connection.count": 4}, r"dflash\.hyper_connection\.count=4 is not understood"),
    ],
    "tensors": [
        ({"selector_hidden.weight": REST}, "DFlash 2: only DFlash 1 is supported"),
        ({"token_embd.weight": REST}, r"token_embd\.weight of its own: only a DSpark may have such"),
        ({"blk.0.attn_sinks.weight": REST}, r"holds unknown tensors blk\.0\.attn_sinks\.weight"),
        ({"hidden_norm.weight": REST}, r"two tensors are hidden_norm\.weight, one of them "),
        *(({name: None}, r"lacks tensors \S+\.weight$") for name in
          ("fc.weight", "enc.output_norm.weight", "output_norm.weight", "blk.0.attn_q.weight", "blk.2.ffn_up.weight")),
    ],
    "architecture": [
        *((name, rf"general\.architecture is {name}, a fork's of llama\.cpp.*: convert")
          for name in ("dflash-draft", "gemma4-dflash-draft", "dspark")),
        ("mamba", r"general\.architecture is mamba: need eagle3 or dflash or gemma2"),
    ],
    "mask_token": [
        (None, r"lacks tokenizer\.ggml\.mask_token_id"),
        (256, r"mask_token_id=256: need a row of the target's embedding"),
    ],
}  # fmt: skip


@pytest.mark.parametrize(("part", "changes", "message"), [(part, *row) for part in REFUSED for row in REFUSED[part]])
def test_it_is_refused_in_one_line_that_names_the_file(dflash, frozen, part, changes, message):
    if isinstance(changes, dict):
        changes = {key: value for key, value in (getattr(dflash, part) | changes).items() if value is not None}
    setattr(dflash, part, changes)
    with pytest.raises(UsageError, match=rf"^\S+drafter\.gguf: (config\.json: )?{message}[^\n]*$"):
        load_drafter(dflash.write(), frozen)


def test_logits_follow_the_targets_settings(golden, dflash, tmp_path):
    settings = {"input_embedding_scale": 8.0, "output_multiplier": 0.5, "final_logit_softcapping": 3.0}
    directory = copy_of(golden, "dflash_zlab", tmp_path, **settings)
    assert not same(dflash.write(), directory, golden)
    dflash.values |= {"embedding_scale": 8.0, "logit_scale": 0.5, "final_logit_softcapping": 3.0}
    assert same(dflash.write(), directory, golden)


def test_windows_of_a_dspark_are_refused(dspark, frozen):
    """Of the layouts that become such a file, only speculators has windows, and its file does not say which."""
    dspark.values |= {"attention.sliding_window": 4, "attention.sliding_window_pattern": [True, False, False]}
    with pytest.raises(UsageError, match=r"dflash\.attention\.sliding_window: files of DSpark do not say how"):
        load_drafter(dspark.write(), frozen)
