"""Recipes: complete, typed, or refused with the key's name."""

from dataclasses import replace
from importlib import resources

import pytest

from outrider_lab.training.recipe import parse_recipe, read_recipe, recipe_job, varied
from outrider_proto.errors import UsageError


def test_the_papers_recipes_differ_from_the_shipped_ones_in_what_they_say():
    """The ablations of MoA and EAGLE-2 have one size, but for the wide one; Hydra's differ in a setting or two."""
    sizes = {
        name: num_trained(name) for name in ("moa", "moa_nolsa", "moa_tli3", "eagle2", "eagle2_deep", "eagle2_wide")
    }
    wide = sizes.pop("eagle2_wide")
    assert max(sizes.values()) < 1.002 * min(sizes.values())
    assert wide == pytest.approx(1.6 * sizes["moa"], rel=0.003)
    hydra = read_recipe("hydra")
    for name, changes in {
        "hydra_plain": {"prefix": False, "distill": False},
        "hydra_labels": {"distill": False},
        "hydra_noise": {"noise": 75.0},
        "hydra_noprefix": {"prefix": False},
    }.items():
        assert read_recipe(name) == replace(hydra, drafter=replace(hydra.drafter, **changes))


def num_trained(name):
    parameters = recipe_job(read_recipe(name)).task.network.parameters()
    return sum(parameter.numel() for parameter in parameters if parameter.requires_grad)


def test_a_recipe_with_another_seed_and_number_of_tokens_is_otherwise_the_same():
    recipe = read_recipe("moa")
    other = varied(recipe, 3, 5000)
    assert (other.data.seed, other.data.total_tokens) == (recipe.data.seed + 3, 5000)
    assert replace(other, data=recipe.data) == recipe == varied(recipe, 0, None)


@pytest.mark.parametrize("name", ["nothing", "nothing.toml", "../target", "."])
def test_a_missing_recipe(name):
    with pytest.raises(UsageError, match="recipe"):
        read_recipe(name)


BAD_LINES = {
    "seed = 1": ("", "seed: missing"),
    "seed = 1 ": ("seed = 1\ncolor = 3", "color: no such key"),
    "seed = 1  ": ("seed = 'one'", 'seed="one"'),
    "seed = 1   ": ("seed = true", "seed=true"),
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
    text = (resources.files("outrider_lab") / "recipes" / "target.toml").read_text()
    path = tmp_path / "changed.toml"
    path.write_text(text.replace(line, change))
    assert path.read_text() != text
    with pytest.raises(UsageError, match=message):
        read_recipe(str(path))


@pytest.mark.parametrize("table", [{}, {"kind": "target"}, {"kind": "moa", "shape": 3}, {"kind": ["moa"]}])
def test_an_incomplete_table_is_refused(table):
    with pytest.raises(UsageError, match="recipe"):
        parse_recipe(table)
