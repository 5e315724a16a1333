"""`outrider-bench trace` on the golden vectors: the trees, accepted lengths and outputs of the reference code."""

import json

import pytest
from typer.testing import CliRunner

from outrider_bench.cli import app

EAGLE_PROMPT_LEN = 19


def run(*arguments):
    result = CliRunner().invoke(app, ["trace", *map(str, arguments)])
    return result, (json.loads(result.stdout) if result.exit_code == 0 else None)


def of_moa(golden, name, new_tokens, *options):
    meta = json.loads((golden / "moa_tli0" / "meta.json").read_text())
    prompt = ",".join(map(str, meta["prompt"]))
    where = ["--target", golden / "target_tiny", "--drafter", golden / "moa_tli0" / "drafter"]
    result, report = run(*where, "--prompt-ids", prompt, "--max-new-tokens", new_tokens, "--baseline", *options)
    assert result.exit_code == 0, result.output
    return meta["runs"][name], len(meta["prompt"]), report


@pytest.mark.parametrize(
    ("name", "levels", "breadth", "budget"), [("tree_d5_b4_t14", 4, 4, 14), ("tree_d7_b8_t62", 6, 8, 62)]
)
def test_moa_answers_as_the_reference(golden, name, levels, breadth, budget):
    shape = ("--levels", levels, "--breadth", breadth, "--budget", budget)
    expected, prompt_len, report = of_moa(golden, name, 48, *shape)
    assert report["output_ids"] == expected["output"][prompt_len:]
    assert report["matches_baseline"]
    lengths = [len(cycle["accepted"]) + 1 for cycle in report["cycles"]]
    assert lengths == expected["tokens_per_cycle"][: len(lengths)]
    assert len(lengths) >= len(expected["tokens_per_cycle"]) - 1
    assert report["mean_acceptance_length"] == pytest.approx(sum(lengths) / len(lengths))


def test_eagle2_answers_as_the_reference(golden):
    reference = json.loads((golden / "eagle2_llama" / "trace.json").read_text())
    prompt = ",".join(map(str, reference["prompt_ids"]))
    where = ("--target", golden / "target_l4", "--drafter", golden / "eagle2_llama" / "drafter")
    shape = ("--levels", 5, "--breadth", 6, "--budget", 23)
    result, report = run(*where, *shape, "--prompt-ids", prompt, "--max-new-tokens", 63, "--baseline")
    assert result.exit_code == 0, result.output
    assert report["matches_baseline"]
    assert len(report["cycles"]) == len(reference["rounds"])
    for cycle, expected in zip(report["cycles"], reference["rounds"], strict=True):
        assert [cycle["root"], *cycle["tokens"]] == expected["draft_tokens"]
        assert [0, *cycle["depths"]] == expected["tree_position_ids"]
        assert len(cycle["accepted"]) == expected["accept_length"]
        assert cycle["bonus"] == expected["next_token"]
        leaf_path = expected["retrieve_indices"][expected["best_candidate"]]
        assert [node + 1 for node in cycle["accepted"]] == leaf_path[1 : expected["accept_length"] + 1]


def test_sampled_output_is_the_targets_own(golden):
    sampling = ("--acceptance", "sampling", "--temperature", 1.1, "--top-k", 40, "--top-p", 0.95, "--seed", 3)
    _, _, report = of_moa(golden, "tree_d5_b4_t14", 32, *sampling)
    assert report["matches_baseline"]
    assert any(cycle["accepted"] for cycle in report["cycles"])


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--prompt-ids": "1,x"}, "need token ids"),
        ({"--prompt-ids": "1,9999"}, "token 9999"),
        ({"--acceptance": "typical"}, "need greedy or sampling"),
        ({"--target": "no/such/dir"}, "no/such/dir"),
        ({"--breadth": "0"}, "breadth=0"),
        ({"--temperature": "-1", "--acceptance": "sampling"}, "temperature=-1"),
    ],
)
def test_bad_input_is_one_line(golden, monkeypatch, capsys, changes, message):
    options = {
        "--target": str(golden / "target_tiny"),
        "--drafter": str(golden / "moa_tli0" / "drafter"),
        "--prompt-ids": "1,2",
        **changes,
    }
    monkeypatch.setattr("sys.argv", ["outrider-bench", "trace", *(word for pair in options.items() for word in pair)])
    from outrider_bench.cli import main

    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
