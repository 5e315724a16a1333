"""Training: batches, schedule, resume to the bit, and a model that plain transformers reads."""

import json
from dataclasses import replace

import pytest
import torch
from rich.console import Console
from transformers import AutoModelForCausalLM, AutoTokenizer

from outrider_lab.training import target
from outrider_lab.training.corpus_source import CorpusSource, Exercise, encoded, held_out_samples
from outrider_lab.training.recipe import Rates, read_recipe, recipe_job
from outrider_lab.training.target import answers, rescale_features
from outrider_models.core.embedded import target_dir
from outrider_models.core.held_out import FAMILIES
from outrider_models.training.core.progress import ProgressReporter
from outrider_models.training.data.texts import make_batch
from outrider_models.training.trainer import Trainer


@pytest.fixture(autouse=True)
def few_samples(monkeypatch):
    monkeypatch.setattr(target, "_PROBED_SAMPLES", 1)


def trainer_of(recipe, directory, stop=None, **options):
    directory.mkdir(exist_ok=True)
    reporter = ProgressReporter(directory, "test", Console(quiet=True))
    options = {"clock": lambda: 0.0, "stop_after_updates": stop} | options
    return Trainer(recipe_job(recipe), directory, reporter, **options)


def trained(recipe, directory, updates):
    trainer = trainer_of(recipe, directory, updates)
    trainer.finish()
    return list(trainer.task.network.parameters())


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
    data = replace(tiny_recipe.data, shard_samples=400, batch_tokens=1024)
    rates = replace(tiny_recipe.schedule, muon_lr=0.03, adamw_lr=0.02)
    trainer = trainer_of(replace(tiny_recipe, data=data, schedule=rates), tmp_path)
    held_out = make_batch(encoded(trainer.task.tokenizer, held_out_samples(2)), "cpu")
    before = trainer.task.loss(held_out).main.mean()
    trainer.finish()
    assert trainer.task.loss(held_out).main.mean() < before - 0.5
    assert set(log_of(tmp_path)[-1]["scores"]) == {*FAMILIES, "copying"}
    model, tokenizer = AutoModelForCausalLM.from_pretrained(tmp_path), AutoTokenizer.from_pretrained(tmp_path)
    assert model.dtype == torch.bfloat16
    assert model.generation_config.eos_token_id == tokenizer.eos_token_id


@pytest.fixture(scope="module")
def biased_recipe(tiny_recipe):
    """One of a Qwen2 with the embedded target's tokenizer."""
    return replace(tiny_recipe, drafter=replace(tiny_recipe.drafter, **BIASED))


BIASED = {"qkv_bias": True, "tokenizer_samples": 0, "vocab_size": 2048}


def test_a_target_with_bias_is_a_qwen2_that_answers_the_embedded_target_s_prompts(biased_recipe, tmp_path):
    trainer = trainer_of(replace(biased_recipe, data=replace(biased_recipe.data, total_tokens=4000)), tmp_path)
    trainer.finish()
    model = AutoModelForCausalLM.from_pretrained(tmp_path)
    assert model.config.model_type == "qwen2"
    biases = [tensor for name, tensor in model.named_parameters() if name.endswith("_proj.bias")]
    assert len(biases) == 3 * model.config.num_hidden_layers
    assert all(bias.abs().sum() > 0 for bias in biases)
    for name in ("tokenizer.json", "tokenizer_config.json"):
        assert (tmp_path / name).read_bytes() == (target_dir() / name).read_bytes()
    tokens = torch.arange(20)[None]
    with torch.no_grad():  # the exported model is the trained one, but for bfloat16
        trained, exported = (one(tokens).logits.float() for one in (trainer.task.network, model.float()))
    torch.testing.assert_close(exported, trained, atol=0.05, rtol=0.05)
    moa = read_recipe("moa")
    few = replace(moa.validation, new_tokens=2)
    run = recipe_job(replace(moa, data=trainer._config.data, validation=few), str(tmp_path))
    assert run.task.drafter.network.sizes.sa.qkv_bias
    assert run.task.validate()["tau"] >= 1


@pytest.mark.parametrize("changes", [{}, BIASED])
def test_rescaling_features_changes_no_logit(changes, tiny_recipe, tmp_path):
    recipe = replace(tiny_recipe, drafter=replace(tiny_recipe.drafter, **changes))
    network = trainer_of(recipe, tmp_path).task.network
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


def test_greedy_answers_equal_generate_one_by_one(tiny_task):
    task, samples = tiny_task(), held_out_samples(1)
    batched = answers(task.network, task.tokenizer, samples)
    alone = [answers(task.network, task.tokenizer, [sample])[0] for sample in samples]
    assert batched == alone


def test_updates_hold_what_was_asked(tiny_recipe, tokenizer):
    source = CorpusSource(tiny_recipe.data, tokenizer)
    updates = source.updates(0)
    for texts in updates:
        batch = make_batch(texts, "cpu")
        assert (batch.tokens.shape[1] + 1) * len(texts) <= tiny_recipe.data.batch_tokens or len(texts) == 1
        assert source.num_tokens(texts) == int((batch.labels >= 0).sum()) + len(texts)
        assert not batch.loss_mask[batch.labels < 0].any()  # padding
    again = CorpusSource(tiny_recipe.data, tokenizer).updates(0)
    assert [[text.ids.tolist() for text in texts] for texts in updates] == [
        [text.ids.tolist() for text in texts] for texts in again
    ]


@torch.no_grad()
def test_labels_of_prompts_weigh_less_and_padding_nothing(tiny_recipe, tiny_task):
    task = tiny_task()
    texts = CorpusSource(tiny_recipe.data, task.tokenizer).updates(0)[0]
    together = float(task.loss(make_batch(texts, "cpu")).total)
    alone = [task.loss(make_batch([text], "cpu")) for text in texts]
    assert together == pytest.approx(sum(float(one.total) for one in alone), rel=0.01)
    assert all(float(one.main.sum()) < float(one.total) for one in alone)


def test_exercises_come_and_go(tiny_recipe, tokenizer):
    exercises = (Exercise("short", 0.5, 0.0, 0.5), Exercise("long", 0.25, 0.3, 1.0))
    data = replace(tiny_recipe.data, exercises=exercises, total_tokens=tiny_recipe.data.shard_samples * 75 * 10)
    shards = {shard: CorpusSource(data, tokenizer)._samples(shard) for shard in (0, 4, 8, 10)}
    kinds = [{sample.key for sample in samples if sample.family == "copying"} for samples in shards.values()]
    assert ["copying:long" in kind for kind in kinds] == [False, True, True, False]
    assert [bool(kind - {"copying:long"}) for kind in kinds] == [True, True, False, False]
    assert all(len(samples) == pytest.approx(data.shard_samples, abs=4) for samples in shards.values())


@pytest.mark.parametrize(("progress", "factor"), [(0.05, 0.501), (0.1, 1.0), (0.8, 1.0), (0.9, 0.5), (1.0, 0.0)])
def test_rates_follow_a_trapezoid(progress, factor):
    rates = Rates(muon_lr=1, adamw_lr=1, weight_decay=0, clip_norm=1, warmup=0.1, decay=0.2)
    assert rates.factor(progress) == pytest.approx(factor)


def test_a_run_with_a_time_budget_ends_in_time(tiny_recipe, tmp_path):
    ticks = iter(range(10**6))
    trainer = trainer_of(tiny_recipe, tmp_path, budget_s=5.0, clock=lambda: float(next(ticks)))
    trainer.finish()
    assert log_of(tmp_path)[-1]["update"] == 5
    assert trainer.progress == 1.0
