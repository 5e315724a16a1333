"""Data-parallel training: the same batches, the same updates, one set of files."""

from dataclasses import replace
from importlib import resources

import pytest
import torch

from outrider_lab.training.corpus_source import CorpusSource
from outrider_lab.training.recipe import _IN_RECIPES, RecipeOptions, train_recipe
from outrider_models.training.data.texts import make_batch
from outrider_models.training.data_parallel import DataParallel

TINY = """
kind = "target"
[shape]
vocab_size = 512
hidden_size = 32
num_layers = 1
num_heads = 4
num_kv_heads = 2
intermediate_size = 48
max_positions = 256
rope_theta = 10000.0
embedding_std = 0.3
tokenizer_samples = 20
qkv_bias = false
[stream]
seed = 1
shard_samples = 40
batch_tokens = 512
total_tokens = 3000
prompt_weight = 0.15
family_weights = {math = 1.0, qa = 1.0}
exercises = []
[rates]
muon_lr = 0.01
adamw_lr = 3e-3
weight_decay = 0.1
clip_norm = 1.0
warmup = 0.1
decay = 0.5
"""


def test_parts_of_an_update_add_up(tiny_recipe, tiny_task):
    task = tiny_task()
    texts = CorpusSource(tiny_recipe.data, task.tokenizer).updates(0)[3]
    assert len(texts) >= 3
    whole = gradients(task, [texts])
    parts = [gradients(task, DataParallel(rank, 3).share(texts, 0)) for rank in range(3)]
    for i, gradient in enumerate(whole):
        scale = float(gradient.abs().max()) or 1.0
        summed = sum(part[i] for part in parts)
        torch.testing.assert_close(summed / scale, gradient / scale, atol=0.02, rtol=0.05)  # bfloat16 products


def gradients(task, parts):
    task.network.zero_grad()
    for part in parts:
        task.loss(make_batch(part, "cpu")).total.backward()
    return [parameter.grad.clone() for parameter in task.network.parameters()]


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    weights = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        train_recipe(RecipeOptions(str(recipe), out), processes=processes)
        weights.append(torch.load(out / "checkpoint.pt", weights_only=True)["model"])
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, atol=0.03, rtol=0)


@pytest.mark.slow
def test_two_processes_resume_their_masks(tiny_target, tmp_path, monkeypatch):
    """MoA draws its masks: each process goes on with its own."""
    recipe = tmp_path / "moa.toml"
    shipped = (resources.files("outrider_lab") / "recipes" / "moa.toml").read_text()
    for large, small in (("shard_samples = 8192", "shard_samples = 60"), ("batch_tokens = 2048", "batch_tokens = 512")):
        assert large in shipped
        shipped = shipped.replace(large, small)
    recipe.write_text(shipped)
    # Every run ends with a validation by the leader, which changes no weight.
    monkeypatch.setitem(_IN_RECIPES, "validation", replace(_IN_RECIPES["validation"], new_tokens=2))
    for name, parts in (("whole", (4,)), ("parts", (2, 2))):
        for number, updates in enumerate(parts):
            options = RecipeOptions(str(recipe), tmp_path / name, str(tiny_target))
            train_recipe(options, resume=number > 0, processes=2, stop_after_updates=updates)
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
