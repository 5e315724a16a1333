"""Training: batches, schedule, resume to the bit, and a model that plain transformers reads."""

import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from outrider_models.corpus import FAMILIES
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.recipes.data import collate, shard_batches, shard_samples
from outrider_models.training.recipes.probe import answers, probe_samples
from outrider_models.training.recipes.recipe import Exercise, Rates
from outrider_models.training.recipes.target import TargetTask, rescale_features
from outrider_models.training.recipes.trainer import RecipeTrainer, RunTiming, progress_of

QUIET = {"probe_samples": 1, "clock": lambda: 0.0}


def run_of(recipe, directory, **timing):
    directory.mkdir(exist_ok=True)
    reporter = ProgressReporter(directory, "test", Console(quiet=True))
    return RecipeTrainer(
        TargetTask(recipe, directory), recipe.stream, recipe.rates, directory, reporter, RunTiming(**QUIET | timing)
    )


def trained(recipe, directory, steps):
    run = run_of(recipe, directory, stop_after_steps=steps)
    run.finish()
    return list(run.task.network.parameters())


def log_of(directory):
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


def test_resume_is_bit_identical(tiny_recipe, tmp_path):
    whole = trained(tiny_recipe, tmp_path / "whole", 9)
    trained(tiny_recipe, tmp_path / "parts", 4)
    parts = trained(tiny_recipe, tmp_path / "parts", 5)
    assert all(torch.equal(a, b) for a, b in zip(whole, parts, strict=True))
    shorter = trained(tiny_recipe, tmp_path / "short", 8)
    assert not any(torch.equal(a, b) for a, b in zip(whole, shorter, strict=True))  # control


def test_the_loss_falls_and_the_export_loads(tiny_recipe, tmp_path):
    stream = replace(tiny_recipe.stream, shard_samples=400, batch_tokens=1024)
    rates = replace(tiny_recipe.rates, muon_lr=0.03, adamw_lr=0.02)
    run = run_of(replace(tiny_recipe, stream=stream, rates=rates), tmp_path)
    held_out = collate(run.task.tokenizer, probe_samples(2), prompt_weight=0.0)
    before = float(run.task.loss(held_out)[0].detach())
    run.finish()
    assert float(run.task.loss(held_out)[0].detach()) < before - 0.5
    assert set(log_of(tmp_path)[-1]["scores"]) == {*FAMILIES, "copying"}
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


def test_rescaling_features_changes_no_logit(tiny_recipe, tmp_path):
    network = run_of(tiny_recipe, tmp_path).task.network
    tokens = torch.arange(30)[None]
    with torch.no_grad():
        for parameter in network.parameters():
            parameter.add_(torch.randn_like(parameter) * 0.1)  # at the start layers add nothing
        before = network(tokens)
        network.load_state_dict(rescale_features(network.state_dict()))
        after = network(tokens, output_hidden_states=True)
    torch.testing.assert_close(after.logits, before.logits, atol=1e-2, rtol=0)  # the norms' epsilon
    size = after.hidden_states[-1].pow(2).mean().sqrt()
    assert 1 < size < 4


def test_greedy_answers_equal_generate_one_by_one(tiny_recipe, tmp_path):
    run = run_of(tiny_recipe, tmp_path)
    samples = probe_samples(1)
    batched = answers(run.task.network, run.task.tokenizer, samples)
    alone = [answers(run.task.network, run.task.tokenizer, [sample])[0] for sample in samples]
    assert batched == alone


def test_batches_hold_what_was_asked(tiny_recipe, tokenizer):
    batches = shard_batches(tiny_recipe.stream, tokenizer, shard=0)
    for batch in batches:
        assert batch.inputs.shape == batch.labels.shape == batch.weights.shape
        assert (batch.inputs.shape[1] + 1) * len(batch.inputs) <= tiny_recipe.stream.batch_tokens or len(
            batch.inputs
        ) == 1
        assert torch.equal(batch.inputs[:, 1:], batch.labels[:, :-1])
        assert not batch.weights[batch.labels == 2].any()  # padding
    again = shard_batches(tiny_recipe.stream, tokenizer, shard=0)
    assert all(torch.equal(a.inputs, b.inputs) for a, b in zip(batches, again, strict=True))


def test_exercises_come_and_go(tiny_recipe):
    exercises = (Exercise("short", 0.5, 0.0, 0.5), Exercise("long", 0.25, 0.3, 1.0))
    stream = replace(tiny_recipe.stream, exercises=exercises, total_tokens=tiny_recipe.stream.shard_samples * 75 * 10)
    kinds = [
        {sample.key for sample in shard_samples(stream, shard) if sample.family == "copying"} for shard in (0, 4, 8, 10)
    ]
    assert ["copying:long" in kind for kind in kinds] == [False, True, True, False]
    assert [bool(kind - {"copying:long"}) for kind in kinds] == [True, True, False, False]
    assert all(len(shard_samples(stream, shard)) == pytest.approx(stream.shard_samples, abs=4) for shard in (0, 4, 10))


def test_progress_is_the_further_of_tokens_and_time():
    assert progress_of(50, 100, 10.0, None) == 0.5
    assert progress_of(50, 100, 80.0, 100.0) == 0.8
    assert progress_of(500, 100, 80.0, 100.0) == 1.0


@pytest.mark.parametrize(("progress", "factor"), [(0.05, 0.501), (0.1, 1.0), (0.8, 1.0), (0.9, 0.5), (1.0, 0.0)])
def test_rates_follow_a_trapezoid(progress, factor):
    rates = Rates(muon_lr=1, adamw_lr=1, weight_decay=0, clip_norm=1, warmup=0.1, decay=0.2)
    assert rates.factor(progress) == pytest.approx(factor)


def test_a_run_with_a_time_budget_ends_in_time(tiny_recipe, tmp_path):
    ticks = iter(range(10**6))
    run_of(tiny_recipe, tmp_path, budget_s=5.0, clock=lambda: float(next(ticks))).finish()
    assert log_of(tmp_path)[-1]["step"] == 5


def test_a_run_saves_and_probes_on_its_way(tiny_recipe, tmp_path):
    ticks = iter(range(10**6))
    clock = {"clock": lambda: float(next(ticks)), "checkpoint_s": 2.0, "probe_s": 3.0}
    run_of(tiny_recipe, tmp_path, stop_after_steps=7, **clock).finish()
    assert [entry["step"] for entry in log_of(tmp_path)] == [3, 6, 7]
    assert not list(tmp_path.glob("*.partial"))
    assert torch.load(tmp_path / "checkpoint.pt", weights_only=True).keys() == {
        *("position", "torch_rng", "model", "optimiser")  # runs of older versions can be resumed
    }
