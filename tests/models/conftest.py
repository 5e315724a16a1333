"""A tokenizer and a recipe small enough to train in a second."""

from dataclasses import replace

import pytest

from outrider_models.core.tokenizer import corpus_texts, train_tokenizer
from outrider_models.training.recipes.recipe import read_recipe


@pytest.fixture(scope="session")
def tokenizer():
    return train_tokenizer(corpus_texts(seed=1, per_family=60), vocab_size=512)


@pytest.fixture(scope="session")
def tiny_recipe():
    recipe = read_recipe("target")
    return replace(
        recipe,
        shape=replace(
            recipe.shape, vocab_size=512, hidden_size=32, num_layers=2, num_heads=4, intermediate_size=48,
            tokenizer_samples=40,
        ),
        stream=replace(recipe.stream, shard_samples=48, batch_tokens=512, total_tokens=20_000),
    )  # fmt: skip
