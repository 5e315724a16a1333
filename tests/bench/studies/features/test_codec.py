"""The feature codecs on the embedded pair's own activations."""

import json
import zlib

import numpy as np
import pytest
from typer.testing import CliRunner

from outrider_bench.cli.app import app
from outrider_bench.studies.features.codec import codec_costs, coders, paper
from outrider_proto.feature_codec import encode_rows
from outrider_proto.frames import CODECS


@pytest.fixture(scope="module")
def messages():
    return [np.random.default_rng(n).standard_normal((n, 192)).astype(np.float32) for n in (4, 2, 60)]


def test_sizes_are_per_row_and_against_the_papers(messages):
    weighed = codec_costs(messages)
    assert list(weighed) == list(CODECS)
    size = sum(len(encode_rows(rows, "lean")) for rows in messages)
    assert weighed["lean"].bytes_per_row == pytest.approx(size / 66)
    assert weighed["lean"].of_paper == pytest.approx(size / sum(len(paper(rows)) for rows in messages))
    assert all(weight.encode_us > 0 and weight.decode_us > 0 for weight in weighed.values())


def test_the_papers_are_a_scale_and_an_int8_a_value_deflated(messages):
    assert len(zlib.decompress(paper(messages[0]))) == 4 * (192 + 2)


def test_huffman_alone_is_the_smallest_for_small_numbers(messages):
    for by_coder in coders(messages).values():
        assert by_coder["none"] > by_coder["huffman"]
        assert by_coder["huffman"] == min(by_coder.values())


def test_the_command(tmp_path):
    path = tmp_path / "report.json"
    few = ["--per-family", "1", "--max-new-tokens", "3", "--drafter", "moa"]
    result = CliRunner().invoke(app, ["codec", *few, "--json", str(path)])
    assert result.exit_code == 0, result.output
    report = json.loads(path.read_text())["drafters"]["moa"]
    assert report["replies"]["lean"]["of_paper"] < 0.5
    assert report["prompts"]["lean"]["of_paper"] < 0.4
    assert report["tau"]["chain"]["float32"]["share"] == 1


def test_a_drafter_without_features():
    result = CliRunner().invoke(
        app, ["codec", "--per-family", "1", "--max-new-tokens", "2", "--drafter", "independent"]
    )
    assert "uses no features" in str(result.exception)
