"""Drafter training: masks, what counts, equal sizes, resume, and files that the drafters room loads."""

from dataclasses import replace

import pytest
import torch
from rich.console import Console
from tokenizers import Tokenizer, models

from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_drafter
from outrider_drafters.trees.grow import grow_tree
from outrider_lab.training.recipe import RecipeOptions, read_recipe, recipe_job, shipped_recipes, train_recipe
from outrider_models.core.embedded import target_dir
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.families.moa import Blocks, sync_points
from outrider_models.training.trainer import Trainer
from outrider_proto.errors import UsageError


def small(kind):
    recipe = read_recipe(kind)
    return replace(
        recipe,
        data=replace(recipe.data, shard_samples=60, batch_tokens=512, total_tokens=6000),
        validation=replace(recipe.validation, new_tokens=2),
    )


def trainer_of(kind, target, directory, stop=None):
    directory.mkdir(exist_ok=True)
    reporter = ProgressReporter(directory, "test", Console(quiet=True))
    return Trainer(recipe_job(small(kind), target), directory, reporter, stop_after_updates=stop, clock=lambda: 0.0)


def test_a_target_with_another_tokenizer_is_one_line(tiny_target, tmp_path):
    words = Tokenizer(models.WordLevel({"a": 0}, unk_token="a"))
    for name in ("config.json", "model.safetensors"):
        (tmp_path / name).write_bytes((tiny_target / name).read_bytes())
    words.save(str(tmp_path / "tokenizer.json"))
    with pytest.raises(UsageError, match=r"embedded tokenizer .*use --family"):
        train_recipe(RecipeOptions("moa", tmp_path / "out", str(tmp_path)))
    assert not (tmp_path / "out").exists()


HEADS = [name for name in shipped_recipes() if name != "target"]


@pytest.mark.parametrize("name", HEADS)
def test_every_shipped_recipe_takes_a_step_and_its_drafter_drafts(name, tmp_path):
    trainer_of(name, None, tmp_path, 1).finish()
    drafter = load_drafter(tmp_path, TargetWeights.load(target_dir()))
    state = drafter.new_state()
    state.append([5, 6, 7])
    if drafter.tap.width:
        state.add_features(0, torch.zeros(2, drafter.tap.width))
    assert len(grow_tree(state, TreeShape.chain(3)).tokens) == 3


def test_the_shipped_recipes_train_equally_many_parameters_on_the_same_batches():
    recipes = {name: read_recipe(name) for name in HEADS if name not in ("eagle2_wide", "target_bias")}
    sizes = {  # of variants those that test_recipe.py compares
        name: sum(p.numel() for p in recipe_job(small(name)).task.network.parameters() if p.requires_grad)
        for name in recipes
        if "_" not in name
    }
    # Hydra's fourth head alone reads five rows.
    assert sizes.pop("hydra") < 3 * min(sizes.values())
    assert max(sizes.values()) / min(sizes.values()) < 1.05
    for late in ("eagle2_late", "dspark_late"):
        del recipes[late]  # it starts from the shipped one, for half as long
    streams = {name: replace(recipe.data, family_weights={"code": 1.0}) for name, recipe in recipes.items()}
    assert len(set(map(str, streams.values()))) == 1
    assert len({str(recipe.schedule) for recipe in recipes.values()}) == 1
    same = [recipe.data for name, recipe in recipes.items() if not name.endswith(("_math", "_chat"))]
    assert all(stream == same[0] for stream in same)

    # Row t predicts token t + 2; a prompt is longer than one token, so no reply token falls off the front.


PROMPT, REPLY = 6, 40


def predicts_reply(rows):
    return torch.tensor([[False] * (PROMPT - 1) + [True] * (REPLY + 1)] * rows)


def test_prompt_positions_sync_and_replies_do_every_n_tokens():
    starts = sync_points(predicts_reply(50), Blocks(5, 15, 0.0))
    positions = torch.arange(PROMPT + REPLY)
    assert torch.equal(starts[:, :PROMPT], positions[:PROMPT].expand(50, -1))
    assert (starts <= positions).all()
    assert (positions - starts).max() == 14  # the last before a sync, at the longest block
    gaps = {int(n) for row in starts for n in row.unique()[PROMPT + 1 :].diff()}
    assert gaps == set(range(5, 16))


def test_a_blind_row_never_syncs_again():
    starts = sync_points(predicts_reply(200), Blocks(5, 5, 1.0))
    last = starts[:, -1]
    assert (starts == torch.minimum(starts, last[:, None])).all()
    assert 0.15 < (last < PROMPT + 5).float().mean() < 0.3  # those that die in the first of eight blocks, or just after
    assert not (sync_points(predicts_reply(200), Blocks(5, 5, 0.0))[:, -1] < PROMPT + REPLY - 5).any()
