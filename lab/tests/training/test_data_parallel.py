"""Data-parallel training: the same batches, the same updates, one set of files."""

import subprocess
import sys
from importlib import resources

import pytest
import torch

from outrider_lab.training.corpus_source import CorpusSource
from outrider_models.training.data.texts import make_batch
from outrider_models.training.data_parallel import DataParallel

SCRIPT = """
import sys
from dataclasses import replace
from pathlib import Path
from outrider_lab.training.recipe import _IN_RECIPES, RecipeOptions, train_recipe

recipe, out, target, resume, updates = sys.argv[1:]
# Every run ends with a validation by the leader, which changes no weight.
_IN_RECIPES["validation"] = replace(_IN_RECIPES["validation"], new_tokens=2)
options = RecipeOptions(recipe, Path(out), target)
train_recipe(options, resume=bool(int(resume)), stop_after_updates=int(updates))
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
def test_two_processes_resume_their_masks(tiny_target, tmp_path):
    """MoA draws its masks: each process goes on with its own."""
    recipe = tmp_path / "moa.toml"
    shipped = (resources.files("outrider_lab") / "recipes" / "moa.toml").read_text()
    for large, small in (("shard_samples = 8192", "shard_samples = 60"), ("batch_tokens = 2048", "batch_tokens = 512")):
        assert large in shipped
        shipped = shipped.replace(large, small)
    recipe.write_text(shipped)
    script = tmp_path / "train.py"
    script.write_text(SCRIPT)
    for name, parts in (("whole", (4,)), ("parts", (2, 2))):
        for number, updates in enumerate(parts):
            torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", "--standalone"]
            arguments = [script, recipe, tmp_path / name, tiny_target, str(number), str(updates)]
            subprocess.run([*torchrun, *arguments], check=True, timeout=300)
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
