"""Recipes that a report needs, really trained, on few tokens; and what is kept of them."""

from dataclasses import replace

import pytest

from outrider_bench.core.answer_record import gather
from outrider_bench.core.pair import in_process, stop_and_wait_config
from outrider_bench.core.prompts import warm_up_question
from outrider_drafters.checkpoints.fingerprint import target_fingerprint
from outrider_lab.paper import trained as module
from outrider_lab.paper.exhibits import EXHIBITS
from outrider_lab.paper.setup import paper_setup
from outrider_lab.paper.trained import (
    ONCE,
    SECOND,
    SHIPPED,
    TRAINED,
    RecipeRun,
    missing_runs,
    train_recipes,
    trained,
)
from outrider_lab.training import recipe
from outrider_lab.training import target as target_training
from outrider_lab.training.recipe import shipped_recipes
from outrider_models.core.embedded import drafter_dir
from outrider_proto.errors import UsageError
from outrider_server.engine.reference_decode import plain_greedy

TOKENS = 2000


@pytest.fixture(autouse=True)
def quick(tmp_path, monkeypatch):
    """Keep what is trained in a folder of the test's own, and judge it by few tokens."""
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    validation = replace(recipe._IN_RECIPES["validation"], new_tokens=2)
    monkeypatch.setitem(recipe._IN_RECIPES, "validation", validation)
    monkeypatch.setattr(target_training, "_PROBED_SAMPLES", 1)


def test_what_is_trained_is_kept_and_found(tmp_path, capsys):
    assert trained("eagle2_deep", tokens=TOKENS) is None
    made = train_recipes(["eagle2_deep"], seeds=2, tokens=TOKENS)
    assert "models to train: 2, on 4,000 tokens" in capsys.readouterr().err
    assert made == [trained("eagle2_deep", seed, TOKENS) for seed in (0, 1)]
    assert all(path.parents[1] == tmp_path / "outrider" / "trained" for path in made)
    assert not any((path / "checkpoint.pt").exists() for path in made)
    first, second = ((path / "model.safetensors").read_bytes() for path in made)
    assert first != second
    assert train_recipes(["eagle2_deep"], seeds=2, tokens=TOKENS) == []
    assert "nothing is left to train" in capsys.readouterr().err
    assert trained("eagle2_deep", tokens=TOKENS + 1) is None
    assert trained("eagle2_deep") is None


def test_an_interrupted_run_goes_on(monkeypatch):
    run = RecipeRun("eagle2_deep", 1, 3 * TOKENS)
    partial = run.directory.with_name(f"{run.directory.name}.partial")
    whole = recipe.train_recipe

    def killed(options, **how):
        whole(options, **how, stop_after_updates=2)
        raise KeyboardInterrupt

    monkeypatch.setattr(recipe, "train_recipe", killed)
    with pytest.raises(KeyboardInterrupt):
        run.train()
    assert trained("eagle2_deep", 1, 3 * TOKENS) is None
    assert (partial / "checkpoint.pt").exists()
    monkeypatch.setattr(recipe, "train_recipe", whole)
    directory = run.train()
    assert (directory, partial.exists()) == (run.directory, False)
    monkeypatch.setattr(module, "_FORMAT", 2)
    assert run.directory != directory
    assert (run.train() / "model.safetensors").read_bytes() == (directory / "model.safetensors").read_bytes()


async def test_drafters_of_the_second_target_are_trained_after_it():
    made = train_recipes(["moa_bias"], tokens=TOKENS)
    assert made == [trained("target_bias", tokens=TOKENS), trained("moa_bias", tokens=TOKENS)]
    target, drafter = made
    assert target_fingerprint(target) in (drafter / "config.json").read_text()
    config = stop_and_wait_config(target=target, drafter=drafter)
    async with in_process(target, config) as pair, pair.client() as client:
        prompt = warm_up_question(pair.models).prompt
        answer = await gather(client, prompt, max_new_tokens=6)
        assert answer.cycles
        assert answer.token_ids == tuple(plain_greedy(pair.target, prompt, 6))


def test_every_recipe_is_known_and_the_shipped_ones_are_those_that_ship():
    assert {SECOND.get(name, name) for name in TRAINED} <= set(shipped_recipes())
    assert trained("moa") == drafter_dir("moa")
    assert trained("moa", 1) is None
    assert [run.name for run in missing_runs()] == list(TRAINED)
    more = missing_runs(seeds=3)
    assert {run.name for run in more} == {*TRAINED, *SHIPPED}
    assert {run.seed for run in more if run.name == "moa"} == {1, 2}
    assert {run.seed for run in more if run.name in ONCE} == {0}
    assert len({run.directory for run in more}) == len(more)
    assert [run.num_tokens for run in missing_runs(["moa_nolsa"])] == [1_200_000]


@pytest.mark.parametrize(
    ("names", "options", "said"),
    [(["nothing"], {}, "recipe 'nothing'"), ([], {"seeds": 0}, "seeds=0"), ([], {"tokens": 0}, "tokens=0")],
)
def test_what_cannot_be_trained_is_refused(names, options, said):
    with pytest.raises(UsageError, match=said):
        train_recipes(names, **options)


def test_what_is_trained_takes_its_role_in_the_tables(tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert "moa_nolsa" not in paper_setup(None, (), None, quick=False).roles
    assert not EXHIBITS["moa-table-9"].needs(paper_setup(None, (), None, quick=False))
    for name in ("moa_nolsa", "target_bias", "moa_bias", "eagle2_bias"):
        RecipeRun(name).directory.mkdir(parents=True)
    setup = paper_setup(None, (), None, quick=False)
    assert setup.roles["moa_nolsa"] == str(RecipeRun("moa_nolsa").directory)
    (measurement,) = EXHIBITS["moa-table-9"].needs(setup)
    assert measurement.arguments[:3] == ("drafters", "--target", str(RecipeRun("target_bias").directory))
    assert str(RecipeRun("eagle2_bias").directory) in measurement.arguments
    assert paper_setup("smollm2", (), tmp_path, quick=False).second is None


def test_further_seeds_are_measured_with_the_same_questions_where_there_are_two_to_compare():
    def names(exhibit, *named, quick=False):
        return [one.name for one in EXHIBITS[exhibit].needs(paper_setup(None, named, None, quick=quick))]

    assert names("moa-table-5") == ["drafters-chain"]
    runs = [RecipeRun(name, seed) for name, seed in (("moa", 1), ("moa_nolsa", 1), ("moa_nolsa", 2), ("moa", 4))]
    for run in runs:
        run.directory.mkdir(parents=True)
    assert [set(one.roles) for one in paper_setup(None, (), None, quick=False).seeds[1:]] == [
        {"moa", "moa_nolsa"},
        {"moa_nolsa"},
    ]  # the third is missing, so that a fourth is not looked for
    first, further = EXHIBITS["moa-table-5"].needs(paper_setup(None, (), None, quick=False))
    assert (first.name, further.name) == ("drafters-chain", "drafters-chain-seed-1")
    drafters = [f"{run.directory}" for run in runs[:2]]
    assert [one for one in further.arguments if one in drafters] == drafters
    asked, asked_again = (
        [one for one in each.arguments if "/" not in one and one not in ("--drafter", *SHIPPED)]
        for each in (first, further)
    )
    assert asked == asked_again
    assert names("moa-table-2") == ["drafters-own-trees", "drafters-papers-tree"]
    assert names("moa-table-10") == ["drafters-code", "drafters-code-seed-1"]  # beside drafters without weights
    assert names("moa-table-5", "moa=mine") == ["drafters-chain"]
    assert names("moa-table-5", quick=True) == ["drafters-chain"]
