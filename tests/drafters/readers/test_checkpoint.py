"""A directory's tensors: which files are read, and what of a file is refused."""

import json
import pickle
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from outrider_drafters.readers.checkpoint import HEADS, Checkpoint, write_model
from outrider_proto.errors import UsageError

ONES = {"a": torch.ones(2, 3)}


class Bomb:
    def __reduce__(self):
        return print, ("code of a file must not run",)


def index(directory: Path, kind: str, places: dict) -> None:
    (directory / f"{kind}.index.json").write_text(json.dumps({"weight_map": places}))


@pytest.mark.parametrize("name", [name for name in HEADS if name.endswith(".pt")])
def test_heads_in_a_pickle_are_found(tmp_path, name):
    torch.save(ONES, tmp_path / name)
    checkpoint = Checkpoint(tmp_path)
    assert checkpoint.names == {"a"}
    assert checkpoint.shape("a") == (2, 3)
    assert torch.equal(checkpoint.read("a"), ONES["a"])


def test_of_heads_beside_a_whole_model_the_reader_says_which(tmp_path):
    save_file({"model": torch.zeros(1)}, tmp_path / "model.safetensors")
    save_file({"heads": torch.zeros(1)}, tmp_path / "medusa_lm_head.safetensors")
    assert Checkpoint(tmp_path).names == {"model"}
    assert Checkpoint(tmp_path, heads_first=True).names == {"heads"}


def test_shards_of_pickles_are_read(tmp_path):
    torch.save({"a": torch.ones(1)}, tmp_path / "one.bin")
    torch.save({"b": torch.zeros(1)}, tmp_path / "two.bin")
    index(tmp_path, "pytorch_model.bin", {"a": "one.bin", "b": "two.bin"})
    checkpoint = Checkpoint(tmp_path)
    assert [checkpoint.read(name).item() for name in ("a", "b")] == [1, 0]


@pytest.mark.parametrize(
    ("places", "message"),
    [
        ({"a": "one.bin", "b": "one.bin"}, r"places b in one\.bin, which does not hold it"),
        ({"a": "../one.bin"}, r"places tensors in '\.\./one\.bin': need a file beside it"),
        ({"a": 3}, "places tensors in 3"),
    ],
)
def test_an_index_that_lies_is_refused(tmp_path, places, message):
    torch.save({"a": torch.ones(1)}, tmp_path / "one.bin")
    index(tmp_path, "pytorch_model.bin", places)
    with pytest.raises(UsageError, match=message):
        Checkpoint(tmp_path)


def refused(path: Path, message: str) -> None:
    with pytest.raises(UsageError, match=rf"medusa_lm_head\.pt: {message}"):
        Checkpoint(path.parent)


@pytest.mark.parametrize("protocol", [2, 4])
@pytest.mark.parametrize("wrapped", [True, False])
def test_a_pickle_with_code_is_refused_and_does_not_run(tmp_path, capsys, wrapped, protocol):
    path = tmp_path / "medusa_lm_head.pt"
    if wrapped:
        torch.save({"a": Bomb()}, path, pickle_protocol=protocol)
    else:
        path.write_bytes(pickle.dumps(Bomb(), protocol=protocol))
    refused(path, "not a plain file of tensors: .*convert")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize("kept", [0, 1, 60, 0.5, 0.95])
def test_a_truncated_pickle_is_refused(tmp_path, kept):
    torch.save({"a": torch.ones(500)}, path := tmp_path / "medusa_lm_head.pt")
    content = path.read_bytes()
    path.write_bytes(content[: kept if isinstance(kept, int) else int(len(content) * kept)])
    refused(path, "not a plain file of tensors: cut short, damaged, or not written by torch.save")


def test_a_file_of_something_else_is_refused(tmp_path):
    path = tmp_path / "medusa_lm_head.pt"
    path.write_bytes(b"<html>not found</html>" * 20)
    refused(path, "not a plain file of tensors: cut short, damaged")
    for content in ([torch.ones(1)], torch.ones(1), {"state_dict": ONES}, {1: torch.ones(1)}):
        torch.save(content, path)
        refused(path, "need a dict of tensors; save a state_dict")


def test_a_tensor_of_two_names_is_written_under_both(tmp_path):
    shared = torch.ones(2)
    write_model(tmp_path, {}, {"a": shared, "b": shared}, torch.float32, "medusa_lm_head.safetensors")
    assert load_file(tmp_path / "medusa_lm_head.safetensors").keys() == {"a", "b"}
