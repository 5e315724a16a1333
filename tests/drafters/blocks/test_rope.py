"""Scaled RoPE against transformers' own tables."""

import pytest
import torch
from transformers import LlamaConfig
from transformers.modeling_rope_utils import ROPE_INIT_FUNCTIONS

from outrider_drafters.blocks.rope import inverse_frequencies, rope_scaling
from outrider_proto.errors import UsageError

LLAMA3 = {"rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0}
LLAMA3 |= {"original_max_position_embeddings": 64}
YARN = {"rope_type": "yarn", "factor": 4.0, "original_max_position_embeddings": 64}
SCALINGS = [
    {"rope_type": "linear", "factor": 3.0},
    LLAMA3,
    YARN,
    YARN | {"beta_fast": 8, "beta_slow": 2, "attention_factor": 1.5, "truncate": False},
    YARN | {"mscale": 0.7, "mscale_all_dim": 0.4},
]


@pytest.mark.parametrize("scaling", SCALINGS)
@pytest.mark.parametrize("theta", [10000.0, 500000.0])
def test_tables_are_those_of_transformers(scaling, theta):
    theirs = LlamaConfig(head_dim=32, max_position_embeddings=256, rope_parameters=scaling | {"rope_theta": theta})
    expected, magnitude = ROPE_INIT_FUNCTIONS[scaling["rope_type"]](theirs, torch.device("cpu"))
    ours = rope_scaling({"rope_scaling": scaling, "max_position_embeddings": 256})
    assert ours.magnitude == pytest.approx(magnitude)
    torch.testing.assert_close(inverse_frequencies(32, theta, ours, torch.device("cpu")), expected)
    assert not torch.allclose(expected, inverse_frequencies(32, theta, None, torch.device("cpu")))


@pytest.mark.parametrize("scaling", SCALINGS)
def test_both_spellings_and_the_written_one_read_the_same(scaling):
    old = {("type" if key == "rope_type" else key): value for key, value in scaling.items()}
    ours = rope_scaling({"rope_scaling": old})
    assert rope_scaling({"rope_parameters": scaling | {"rope_theta": 7.0}}) == ours
    assert rope_scaling({"rope_scaling": ours.as_config()}) == ours


@pytest.mark.parametrize(
    ("scaling", "message"),
    [
        ({"rope_type": "longrope"}, "rope_scaling of type longrope: need one of linear, llama3, yarn"),
        ({"rope_type": "linear"}, "factor=None: need a positive number"),
        (LLAMA3 | {"low_freq_factor": "x"}, "low_freq_factor=x: need a positive number"),
        (YARN | {"partial_rotary_factor": 0.5}, r"partial_rotary_factor=0\.5: need 1"),
        (["linear"], "need an object"),
    ],
)
def test_what_is_not_known_is_refused(scaling, message):
    with pytest.raises(UsageError, match=message):
        rope_scaling({"rope_scaling": scaling})


def test_every_pair_has_its_own_divisor():
    config = {"rope_theta": 100.0, "rope_scaling": {"rope_type": "divisors", "divisors": [1.0, 4.0]}}
    scaling = rope_scaling(config)
    frequencies = inverse_frequencies(4, 100.0, scaling, torch.device("cpu"))
    torch.testing.assert_close(frequencies, torch.tensor([1.0, 0.1 / 4]))
    assert rope_scaling({"rope_scaling": scaling.as_config()}) == scaling
    with pytest.raises(UsageError, match="2 divisors of RoPE's frequencies: need 4"):
        inverse_frequencies(8, 100.0, scaling, torch.device("cpu"))
