"""Recipes: complete, typed, or refused with the key's name."""

from importlib import resources

import pytest

from outrider_models.training.config import parse_recipe, read_recipe
from outrider_proto.errors import UsageError


def test_the_shipped_target():
    shape = read_recipe("target").drafter
    assert shape.vocab_size == 2048
    kv_width = shape.hidden_size // shape.num_heads * shape.num_kv_heads
    assert shape.hidden_size == 4 * kv_width  # as Llama-3


def test_the_shipped_drafters_differ_in_kind_only():
    moa, eagle = read_recipe("moa"), read_recipe("eagle2")
    assert (moa.data, moa.schedule, moa.drafter.losses) == (eagle.data, eagle.schedule, eagle.drafter.losses)


@pytest.mark.parametrize("name", ["nothing", "nothing.toml", "../target", "."])
def test_a_missing_recipe(name):
    with pytest.raises(UsageError, match="recipe"):
        read_recipe(name)


def test_a_file_that_is_not_toml(tmp_path):
    path = tmp_path / "bad.toml"
    path.write_text("seed = = 1")
    with pytest.raises(UsageError, match=r"bad\.toml"):
        read_recipe(str(path))


def test_a_directory_is_no_recipe(tmp_path):
    path = tmp_path / "folder.toml"
    path.mkdir()
    with pytest.raises(UsageError, match=r"folder\.toml"):
        read_recipe(str(path))


BAD_LINES = {
    "seed = 1": ("", "missing keys seed"),
    "seed = 1 ": ("seed = 1\ncolor = 3", "unknown keys color"),
    "seed = 1  ": ("seed = 'one'", "seed='one'"),
    "seed = 1   ": ("seed = true", "seed=True"),
    "num_layers = 8": ("num_layers = 0", "num_layers=0"),
    "num_heads = 8": ("num_heads = 7", "num_heads=7"),
    "warmup = 0.01": ("warmup = 0.9", "warmup=0.9"),
    "batch_tokens = 2048": ("batch_tokens = 0", "batch_tokens=0"),
    "code = 1.5": ("poetry = 1.5", "poetry"),
    'kind = "short"': ('kind = "odd"', "exercise 'odd'"),
    "end = 0.5": ("end = 0.0", "begin < end"),
    'kind = "target"': ('kind = "oracle"', "kind='oracle'"),
}


@pytest.mark.parametrize(("line", "change", "message"), [(k.strip(), *v) for k, v in BAD_LINES.items()])
def test_a_wrong_value_is_named(tmp_path, line, change, message):
    text = (resources.files("outrider_models") / "recipes" / "target.toml").read_text()
    path = tmp_path / "changed.toml"
    path.write_text(text.replace(line, change))
    assert path.read_text() != text
    with pytest.raises(UsageError, match=message):
        read_recipe(str(path))


@pytest.mark.parametrize("table", [{}, {"kind": "target"}, {"kind": "moa", "shape": 3}, {"kind": ["moa"]}])
def test_an_incomplete_table_is_refused(table):
    with pytest.raises(UsageError, match="recipe"):
        parse_recipe(table)
