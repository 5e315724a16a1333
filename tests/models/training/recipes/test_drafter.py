"""Drafter training: masks, what counts, equal sizes, resume, and files that the drafters room loads."""

import json
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from rich.console import Console

from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.families.moa.network import pack_kv
from outrider_drafters.load import load_drafter, load_tap
from outrider_drafters.readers.checkpoint import Checkpoint
from outrider_drafters.trees.grow import grow_tree
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_models.training.core.interfaces import TeacherRequest
from outrider_models.training.core.losses import soft_cross_entropy
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.families.moa import Blocks, sync_points
from outrider_models.training.recipes.data import collate
from outrider_models.training.recipes.probe import probe_samples
from outrider_models.training.recipes.recipe import read_recipe, shipped_recipes
from outrider_models.training.recipes.target import TargetTask
from outrider_models.training.recipes.train import make_task
from outrider_models.training.recipes.trainer import RecipeTrainer, RunTiming

KINDS = ("moa", "eagle2")


@pytest.fixture(scope="module")
def target(tiny_recipe, tmp_path_factory):
    directory = tmp_path_factory.mktemp("target")
    TargetTask(tiny_recipe, directory).export(directory)
    return directory


def small(kind):
    recipe = read_recipe(kind)
    return replace(recipe, stream=replace(recipe.stream, shard_samples=60, batch_tokens=512, total_tokens=6000))


def run_of(kind, target, directory, **timing):
    recipe = small(kind)
    directory.mkdir(exist_ok=True)
    timing = RunTiming(**{"probe_samples": 1, "clock": lambda: 0.0} | timing)
    reporter = ProgressReporter(directory, "test", Console(quiet=True))
    return RecipeTrainer(make_task(recipe, directory, target), recipe.stream, recipe.rates, directory, reporter, timing)


@pytest.mark.parametrize("kind", KINDS)
def test_the_loss_falls_and_the_probe_scores_each_family(kind, target, tmp_path):
    run = run_of(kind, target, tmp_path)
    held_out = collate(run.task.tokenizer, probe_samples(1), prompt_weight=0.0)
    before = float(run.task.loss(held_out)[0].detach())
    run.finish()
    assert float(run.task.loss(held_out)[0].detach()) < before
    scores = json.loads((tmp_path / "log.jsonl").read_text())["scores"]
    assert all(0 <= float(share) <= 1 for share in scores.values())


@pytest.mark.parametrize("kind", KINDS)
def test_resume_is_bit_identical(kind, target, tmp_path):
    run_of(kind, target, tmp_path / "whole", stop_after_steps=4).finish()
    run_of(kind, target, tmp_path / "parts", stop_after_steps=2).finish()
    run_of(kind, target, tmp_path / "parts", stop_after_steps=2).finish()
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts


def test_a_recipe_starts_from_given_weights():
    task = make_task(small("hass"), Path(), None, str(drafter_dir("eagle2")))
    given = Checkpoint(drafter_dir("eagle2"))
    assert all(torch.equal(tensor, given.read(name).float()) for name, tensor in task.network.state_dict().items())


def test_the_target_stays_as_it_is(target, tmp_path):
    run = run_of("moa", target, tmp_path, stop_after_steps=2)
    before = [parameter.clone() for parameter in run.task.teacher.model.parameters()]
    run.finish()
    assert all(torch.equal(a, b) for a, b in zip(before, run.task.teacher.model.parameters(), strict=True))


HEADS = [name for name in shipped_recipes() if name != "target"]


@pytest.mark.parametrize("name", HEADS)
def test_every_shipped_recipe_takes_a_step_and_its_drafter_drafts(name, tmp_path):
    run = run_of(name, target_dir(), tmp_path, stop_after_steps=1)
    run.finish()
    drafter = load_drafter(tmp_path, TargetWeights.load(target_dir()))
    state = drafter.new_state()
    state.append([5, 6, 7])
    if drafter.tap.width:
        state.add_features(0, torch.zeros(2, drafter.tap.width))
    assert len(grow_tree(state, TreeShape.chain(3)).tokens) == 3


def test_the_shipped_recipes_train_equally_many_parameters_on_the_same_batches():
    recipes = {name: read_recipe(name) for name in HEADS}
    sizes = {
        name: sum(p.numel() for p in make_task(recipe, target_dir(), None).network.parameters() if p.requires_grad)
        for name, recipe in recipes.items()
    }
    larger = sizes.pop("hydra")  # its fourth head alone reads five rows
    assert max(sizes.values()) / min(sizes.values()) < 1.05
    assert larger < 3 * min(sizes.values())
    del recipes["eagle2_late"]  # it starts from eagle2, for half as long
    streams = {name: replace(recipe.stream, family_weights={"code": 1.0}) for name, recipe in recipes.items()}
    assert len(set(map(str, streams.values()))) == 1
    assert len({str(recipe.rates) for recipe in recipes.values()}) == 1
    same = [recipe.stream for name, recipe in recipes.items() if name not in ("eagle2_math", "eagle2_chat")]
    assert all(stream == same[0] for stream in same)


@pytest.mark.parametrize("kind", KINDS)
def test_drafting_continues_what_training_saw(kind, target, tmp_path):
    """Root logits of a loaded drafter equal the teacher-forced row that predicts the same token."""
    task = make_task(small(kind), tmp_path, target)
    task.export(tmp_path)
    tokens = collate(task.tokenizer, probe_samples(1)[:1], prompt_weight=0.0).inputs
    n = tokens.shape[1]
    state = load_drafter(tmp_path, TargetWeights.load(target)).new_state()
    state.append(tokens[0].tolist())
    acts = task.teacher.activations(tokens[:, :-1], needs_kv=True, hidden_layers=(-1,))
    state.add_features(0, load_tap(tmp_path, target).rows(acts))
    task.network.load_state_dict({k: v.bfloat16().float() for k, v in task.network.state_dict().items()})
    output = task.teacher.run(tokens, TeacherRequest(kv=True))
    embeds = torch.nn.functional.embedding(tokens, output.embed)
    with torch.no_grad():
        if kind == "moa":
            starts = torch.full((1, n), n - 2)
            drafted = task.network.forward_train(embeds, pack_kv(output.keys, output.values), starts)
        else:
            drafted = task.network.forward_train(embeds[:, 1:], output.hidden[-1][:, :-1])
        wanted = drafted[0, -1] @ output.lm_head.T
    torch.testing.assert_close(state.root_logits(), wanted, atol=1e-4, rtol=1e-4)


def test_eagle_counts_all_tokens_of_a_reply(target, tmp_path):
    task = make_task(small("eagle2"), tmp_path, target)
    batch = collate(task.tokenizer, probe_samples(1)[:1], prompt_weight=0.0)
    assert len(task.forward(batch).main) == int(batch.weights.sum())
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


def test_soft_cross_entropy_is_least_at_the_wanted_distribution():
    wanted = torch.randn(4, 9)
    other = wanted + torch.randn(4, 9)
    entropy = torch.distributions.Categorical(logits=wanted).entropy()
    torch.testing.assert_close(soft_cross_entropy(wanted, wanted), entropy)
    assert (soft_cross_entropy(other, wanted) > entropy).all()
