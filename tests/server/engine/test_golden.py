"""Features and outputs against the published code's, on its own tiny checkpoints."""

import json

import pytest
import torch
from safetensors.torch import load_file

from outrider_drafters.contracts.tap import LastHiddenTap
from outrider_drafters.load import load_tap
from outrider_proto.frames import Sampling
from outrider_proto.tree import DraftTree
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target


def features(target: Target, tap, tokens: list[int]) -> torch.Tensor:
    """Rows for `tokens`, processed in two passes."""
    engine, sequence = Engine(target), Sequence(target.kv, tap)
    for part in (tokens[:7], tokens[7:]):
        (result,) = engine.verify([StepInput(sequence, part, DraftTree(), Sampler(Sampling()))])
        engine.commit(result)
        engine.tap([result.step_input.sequence])
    return torch.from_numpy(sequence.features(0)[1])


def test_moa_features(golden):
    vectors = load_file(golden / "moa_tli0" / "teacher_forced.safetensors")
    path = golden / "target_tiny"
    tap = load_tap(golden / "moa_tli0" / "drafter", path)
    rows = features(Target.load(str(path)), tap, vectors["input_ids"].flatten().tolist())
    torch.testing.assert_close(rows, vectors["lsa_mean"].reshape(rows.shape), atol=1e-4, rtol=0)


def test_eagle2_features_and_the_greedy_text(golden):
    vectors = load_file(golden / "eagle2_llama" / "golden.safetensors")
    target = Target.load(str(golden / "target_l4"))
    prompt = vectors["prompt_ids"].flatten().tolist()
    rows = features(target, LastHiddenTap(target.hidden_size), prompt)
    torch.testing.assert_close(rows, vectors["target_features"][0], atol=1e-4, rtol=0)
    expected = vectors["vanilla_output_ids"].flatten().tolist()[len(prompt) :]
    assert plain_greedy(target, prompt, len(expected)) == expected
    for at_once in (1, 3, len(prompt) - 1, len(prompt)):  # a long prompt is read in parts
        assert plain_greedy(target, prompt, len(expected), at_once) == expected


@pytest.mark.parametrize("case", ["medusa_v01", "hydra_mlp"])
def test_typical_acceptance_on_the_published_codes_own_trees(golden, case):
    """Paths, bonuses and text of its run. None of Medusa's cycles here is one in which that code accepts padding."""
    meta = json.loads((golden / case / "meta.json").read_text())
    run = meta["typical_T0_7"]
    sampling = Sampling(run["temperature"], acceptance="typical", epsilon=run["posterior_threshold"])
    assert sampling.alpha == run["posterior_alpha"]
    paths = sorted(map(tuple, meta["choices"]), key=lambda path: (len(path), path))
    number = {path: node for node, path in enumerate(paths)} | {(): -1}
    parents = tuple(number[path[:-1]] for path in paths)
    leaves = [path for path in reversed(paths) if not any(other[: len(path)] == path != other for other in paths)]
    target = Target.load(str(golden / "target_vicuna_tiny"))
    engine, sequence, answer = Engine(target), Sequence(target.kv, None), []
    chain, tree = run["prompt"], DraftTree()
    for cycle in [None, *run["cycles"]]:
        if cycle is not None:
            assert cycle["tree_candidates"][0] == chain[0]
            tree = DraftTree(tuple(cycle["tree_candidates"][1:]), parents)
        (result,) = engine.verify([StepInput(sequence, chain, tree, Sampler(sampling))])
        engine.commit(result)
        if cycle is not None:
            accepted = leaves[cycle["best_candidate"]][: cycle["accept_length"]]
            assert result.accepted.path == tuple(number[accepted[:depth]] for depth in range(1, len(accepted) + 1))
        answer += [*tree.path_tokens(result.accepted.path), result.accepted.bonus]
        chain = [result.accepted.bonus]
    assert any(cycle["accept_length"] for cycle in run["cycles"])
    assert answer[:-1] == run["output"][len(run["prompt"]) :]
