"""A tokenizer and a recipe small enough to train in a second."""

from dataclasses import replace

import pytest
import torch

from outrider_lab.training.recipe import read_recipe
from outrider_lab.training.target import TargetTask, target_tokenizer
from outrider_lab.training.tokenizer import corpus_texts, train_tokenizer


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer(corpus_texts(seed=1, per_family=60), vocab_size=512)


@pytest.fixture(scope="session")
def tiny_recipe():
    recipe = read_recipe("target")
    return replace(
        recipe,
        drafter=replace(
            recipe.drafter, vocab_size=512, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48,
            tokenizer_samples=40,
        ),
        data=replace(recipe.data, shard_samples=48, batch_tokens=512, total_tokens=20_000),
    )  # fmt: skip


@pytest.fixture(scope="session")
def tiny_task(tiny_recipe):
    """Make a target of the tiny recipe with random weights."""
    tokenizer, data = target_tokenizer(tiny_recipe.drafter, tiny_recipe.data.seed), tiny_recipe.data
    return lambda: TargetTask(tiny_recipe.drafter, tokenizer, data.seed, data.prompt_weight)


@pytest.fixture(scope="session")
def tiny_target(tiny_task, tmp_path_factory):
    """Directory of a tiny target whose layers do something."""
    directory, task = tmp_path_factory.mktemp("target"), tiny_task()
    with torch.no_grad():
        for parameter in task.network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.2)  # at the start layers add nothing
    task.export(directory)
    return directory
