"""Settings that a caller can choose, and values that are refused."""

from __future__ import annotations

import numpy as np
import pytest

from outrider_client.core.config import UNLIMITED, ClientConfig
from outrider_drafters.routing.keywords import Keywords
from outrider_drafters.routing.rules import Routing
from outrider_proto.errors import UsageError

WORDS = Keywords({"a": ("word",)})


@pytest.mark.parametrize(
    ("choices", "message"),
    [
        ({"mode": "warp"}, "mode='warp'"),
        ({"on_reconnect": "panic"}, "keep, verify"),
        ({"codec": "int1"}, "need one of int8, "),
        ({"threads": 0}, "threads=0"),
        ({"drafter_dtype": "float64"}, "drafter_dtype='float64': need one of float32, bfloat16"),
        ({"max_new_tokens": 0}, "max_new_tokens=0"),
        ({"max_new_tokens": 1.5}, "max_new_tokens=1.5: need a whole number"),
        ({"wait_for_link_s": "5"}, "wait_for_link_s='5': need a number of at least 0"),
        ({"offline_limit": -1}, "offline_limit=-1"),
        ({"wait_for_link_s": float("nan")}, "wait_for_link_s=nan"),
        ({"last_resort": "hope"}, "lookup, none"),
        ({"drafter": "none", "last_resort": "none", "mode": "offline"}, "nothing can be written offline"),
        ({"drafter": "none", "last_resort": "none", "offline_start": True}, "nothing can be written offline"),
        ({"drafter": "a", "other_heads": ("none",)}, "none cannot be one of several"),
        ({"drafter": "none", "other_heads": ("a",)}, "none cannot be one of several"),
        ({"drafter": "a", "routing": Routing("entropy")}, "only one head"),
        ({"drafter": "a", "keywords": WORDS}, "only one head"),
        ({"drafter": "a", "other_heads": ("b",), "routing": Routing("keywords")}, "go together"),
        ({"drafter": "a", "other_heads": ("b",), "keywords": WORDS}, "go together"),
    ],
)
def test_refused(choices, message):
    with pytest.raises(UsageError, match=message):
        ClientConfig(**choices)


def test_an_answer_can_choose_for_itself():
    config = ClientConfig().for_answer(max_new_tokens=np.int64(5), temperature=0.5, seed=3)
    assert config.max_new_tokens == 5
    assert (config.sampling.temperature, config.sampling.seed, config.sampling.top_p) == (0.5, 3, 1.0)
    assert ClientConfig().for_answer() == ClientConfig()
    typical = ClientConfig().for_answer(acceptance="typical", temperature=0.7, epsilon=0.2).sampling
    assert (typical.acceptance, typical.epsilon, typical.alpha, typical.draws) == ("typical", 0.2, 0.3, False)


@pytest.mark.parametrize(
    "choices",
    [
        {"server": "x:1"},
        {"color": "red"},
        {"temperature": -1.0},
        {"temperature": "1"},
        {"top_p": 0.0},
        {"temperature": 0.0, "acceptance": "typical"},
        {"acceptance": "loose"},
        {"epsilon": 1.5},
        {"alpha": float("inf")},
        {"logprobs": 21},
    ],
)
def test_an_answer_cannot_choose(choices):
    with pytest.raises(UsageError, match=next(iter(choices))):
        ClientConfig().for_answer(**choices)


@pytest.mark.parametrize(
    ("asked", "stop_loops", "alone"),
    [(2048, False, 2048), (2048, True, 256), (UNLIMITED, False, 256), (300, True, 300)],
)
def test_the_drafter_alone_writes_as_much_as_was_asked_for(asked, stop_loops, alone):
    assert ClientConfig(max_new_tokens=asked, stop_loops=stop_loops).drafter_limit == alone
