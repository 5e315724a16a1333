"""`outrider-bench trace`: what it can be asked, and what it refuses. On golden cases: test_trace_golden.py."""

import pytest
import traces

PROMPT = [1, 203, 97, 134, 95, 157, 217, 127, 136, 132, 233, 255]


def traced(golden, *options, drafter="moa_tli0/drafter", new_tokens=32, **settings) -> dict:
    drafter = golden / drafter if "/" in drafter else drafter
    return traces.trace(golden / "target_tiny", drafter, PROMPT, new_tokens, *options, **settings)


def test_sampled_output_is_the_targets_own(golden):
    report = traced(golden, "--set", "acceptance=sampling", "--set", "temperature=1.1", top_k=40, top_p=0.95, seed=3)
    assert report["matches_baseline"]
    assert any(cycle["accepted"] for cycle in report["cycles"])


def test_cycles_tile_the_answer(golden):
    """The prompt's own verdict is one token; a last cycle may have been cut short by the limit."""
    report = traced(golden)
    tokens = [token for cycle in report["cycles"] for token in (*accepted_tokens(cycle), cycle["bonus"])]
    assert ([report["cycles"][0]["root"], *tokens])[:32] == report["output_ids"]
    lengths = [len(cycle["accepted"]) + 1 for cycle in report["cycles"]]
    assert report["mean_acceptance_length"] == pytest.approx(sum(lengths) / len(lengths))
    assert report["family"] == "moa"


def accepted_tokens(cycle: dict) -> list[int]:
    return [cycle["tokens"][node] for node in cycle["accepted"]]


def test_limits_of_the_tree(golden):
    wide, narrow = traced(golden), traced(golden, levels=2, breadth=3, budget=5)
    assert max(len(cycle["tokens"]) for cycle in wide["cycles"]) == 16
    assert {len(cycle["tokens"]) for cycle in narrow["cycles"]} == {5}
    likely = traced(golden, min_probability=0.3)
    assert max(len(cycle["tokens"]) for cycle in likely["cycles"]) < 16
    assert wide["output_ids"] == narrow["output_ids"] == likely["output_ids"]


def test_fixed_choices_give_every_cycle_the_same_tree(golden, tmp_path):
    (tmp_path / "choices.json").write_text("[[0], [1], [0, 0], [1, 2], [1, 2, 0]]")
    report = traced(golden, choices=tmp_path / "choices.json")
    assert {tuple(cycle["parents"]) for cycle in report["cycles"]} == {(-1, -1, 0, 1, 3)}
    assert report["matches_baseline"]
    shipped = traced(golden, choices="mc_sim_7b_63", new_tokens=8)
    assert {len(cycle["tokens"]) for cycle in shipped["cycles"]} == {63}


def test_a_drafter_without_files_and_with_trees_of_its_own(golden):
    """Lookup drafts chains of up to ten tokens, and nothing where nothing repeats: that is a cycle too."""
    report = traced(golden, drafter="lookup", new_tokens=64)
    assert report["family"] == "lookup"
    assert report["matches_baseline"]
    assert {len(cycle["tokens"]) for cycle in report["cycles"]} >= {0, 10}


def test_typical_acceptance_is_not_held_to_the_targets_text(golden):
    rule = ("--set", "acceptance=typical", "--set", "temperature=3")
    report, exact = traced(golden, *rule, epsilon=0.01, alpha=0.9), traced(golden)
    assert not report["matches_baseline"]
    assert report["baseline_ids"] == exact["output_ids"]
    assert report["mean_acceptance_length"] > exact["mean_acceptance_length"]
    assert traced(golden, *rule, epsilon=0.01, alpha=0.9, seed=9)["output_ids"] == report["output_ids"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"--prompt-ids": "1,9999"}, "token 9999"),
        ({"--set acceptance": "likely"}, "need greedy, sampling or typical"),
        ({"--set breadth": "0"}, "breadth=0"),
        ({"--set temperature": "0", "--set acceptance": "typical"}, "temperature=0.0: typical acceptance needs more"),
        ({"--set epsilon": "2", "--set acceptance": "typical"}, "epsilon=2.0"),
        ({"--set choices": "no-such-set"}, "choices no-such-set: need a .json file or one of"),
        ({"--set choices": "mc_sim_7b_63", "--set levels": "3"}, "choices=mc_sim_7b_63 fixes the tree: leave"),
        ({"--drafter": "lookup,tli=1", "--set tli": "2"}, "tli=2, but drafter lookup,tli=1 has 1"),
    ],
)
def test_bad_input_is_one_line(golden, monkeypatch, capsys, changes, message):
    options = {
        "--target": str(golden / "target_tiny"),
        "--drafter": str(golden / "moa_tli0" / "drafter"),
        "--prompt-ids": "1,2",
        **changes,
    }
    words = (
        text.split() for name, value in options.items() for text in [f"{name}{'=' if ' ' in name else ' '}{value}"]
    )
    monkeypatch.setattr("sys.argv", ["outrider-bench", "trace", *(word for pair in words for word in pair)])
    from outrider_bench.cli.app import main

    with pytest.raises(SystemExit) as caught:
        main()
    assert caught.value.code == 2
    error = capsys.readouterr().err
    assert message in error
    assert "Traceback" not in error
