"""Every input that is kept goes through its target, without a fuzzer."""

from pathlib import Path

import pytest
from fuzz_targets import NAMES, load

CORPUS = Path(__file__).parent / "corpus"
MOST_BYTES = 300_000


@pytest.mark.parametrize("name", NAMES)
def test_kept_inputs_find_nothing(name):
    target = load(name)
    inputs = sorted((CORPUS / name).iterdir())
    assert inputs
    for path in inputs:
        target(path.read_bytes())


@pytest.mark.parametrize("name", NAMES)
def test_the_corpus_has_every_seed(name):
    """Else: tests/fuzz/make_corpus.py."""
    for label, data in load(name).seeds().items():
        assert (CORPUS / name / label).read_bytes() == data


def test_the_corpus_is_small():
    assert sum(path.stat().st_size for path in CORPUS.rglob("*") if path.is_file()) < MOST_BYTES
