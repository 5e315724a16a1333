"""Data-parallel training: the same batches, the same updates, one set of files."""

import multiprocessing
import os
from dataclasses import replace
from importlib import resources

import pytest
import torch

from outrider_lab.training import recipe as recipe_module
from outrider_lab.training.corpus_source import CorpusSource
from outrider_lab.training.recipe import RecipeOptions, train_recipe
from outrider_models.training.data.texts import make_batch
from outrider_models.training.data_parallel import DataParallel
from outrider_proto.addresses import free_port


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
def test_two_processes_resume_their_masks(tiny_target, tmp_path):
    """MoA draws its masks: each process goes on with its own."""
    recipe = tmp_path / "moa.toml"
    shipped = (resources.files("outrider_lab") / "recipes" / "moa.toml").read_text()
    for large, small in (("shard_samples = 8192", "shard_samples = 24"), ("batch_tokens = 2048", "batch_tokens = 512")):
        assert large in shipped
        shipped = shipped.replace(large, small)
    recipe.write_text(shipped)
    for name, parts in (("whole", (2,)), ("parts", (1, 1))):
        for number, updates in enumerate(parts):
            options = RecipeOptions(str(recipe), tmp_path / name, str(tiny_target))
            in_two_processes(options, bool(number), updates)
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts


def in_two_processes(options, resume, updates):
    """As torchrun does it, but forked from a process that has everything imported."""
    forks, port = multiprocessing.get_context("forkserver"), free_port()
    forks.set_forkserver_preload([recipe_module.__name__])
    ranks = [forks.Process(target=train, args=(rank, port, options, resume, updates)) for rank in range(2)]
    for process in ranks:
        process.start()
    for process in ranks:
        process.join(300)
    assert [process.exitcode for process in ranks] == [0, 0]


def train(rank, port, options, resume, updates):
    os.environ |= {"RANK": str(rank), "LOCAL_RANK": str(rank), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    torch.set_num_threads(1)
    # Every run ends with a validation by the leader, which changes no weight.
    recipe_module._IN_RECIPES["validation"] = replace(recipe_module._IN_RECIPES["validation"], new_tokens=2)
    train_recipe(options, resume=resume, stop_after_updates=updates)
