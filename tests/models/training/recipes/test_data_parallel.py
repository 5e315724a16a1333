"""Data-parallel training: the same batches, the same updates, one set of files."""

import pytest
import torch

from outrider_models.training.recipes.data import shard_batches
from outrider_models.training.recipes.data_parallel import SINGLE_PROCESS, DataParallel
from outrider_models.training.recipes.target import TargetTask
from outrider_models.training.recipes.train import RecipeRunOptions, train_recipe

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


def test_parts_of_a_batch_add_up(tiny_recipe, tmp_path):
    task = TargetTask(tiny_recipe, tmp_path)
    batch = shard_batches(tiny_recipe.stream, task.tokenizer, 0)[3]
    whole = gradients(task, batch)
    assert len(batch.inputs) >= 3
    parts = [gradients(task, DataParallel(rank, 3).local_rows(batch)) for rank in range(3)]
    for i, gradient in enumerate(whole):
        torch.testing.assert_close(sum(part[i] for part in parts), gradient, atol=1e-3, rtol=0.05)  # bfloat16 products


def gradients(task, batch):
    task.network.zero_grad()
    task.loss(batch)[0].backward()
    return [parameter.grad.clone() for parameter in task.network.parameters()]


def test_a_single_process_shares_nothing(tiny_recipe, tokenizer):
    batch = shard_batches(tiny_recipe.stream, tokenizer, 0)[0]
    assert SINGLE_PROCESS.local_rows(batch) is batch
    assert SINGLE_PROCESS.broadcast(0.3) == 0.3


@pytest.mark.slow
def test_two_processes_train_what_one_does(tmp_path):
    recipe = tmp_path / "tiny.toml"
    recipe.write_text(TINY)
    weights = []
    for processes in (1, 2):
        out = tmp_path / str(processes)
        train_recipe(RecipeRunOptions(str(recipe), out), processes=processes)
        weights.append(torch.load(out / "checkpoint.pt", weights_only=True)["model"])
    for name, tensor in weights[0].items():
        torch.testing.assert_close(weights[1][name], tensor, atol=0.03, rtol=0)
