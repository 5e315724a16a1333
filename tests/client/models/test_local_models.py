"""The models on the device: in the data type that was asked for."""

import pytest
import torch

from outrider_client import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters import TreeShape, grow_tree

from ..conftest import MAX_CONTEXT, VOCAB, Letters


@pytest.mark.parametrize(
    ("name", "dtype"), [(None, torch.float32), ("float32", torch.float32), ("bfloat16", torch.bfloat16)]
)
def test_drafters_have_the_type_that_was_asked_for(golden, name, dtype):
    config = ClientConfig(target=golden / "target_l4", drafter=golden / "eagle2_llama" / "drafter", drafter_dtype=name)
    drafter = LocalModels.load(config).drafter
    assert drafter.embed.dtype == drafter.fc.weight.dtype == dtype
    state = drafter.new_state()
    state.append((5, 6, 7))
    state.add_features(0, torch.zeros(2, drafter.tap.width))
    assert len(grow_tree(state, TreeShape(2, 3, 5))) == 5


def chat_of(*lengths: int) -> list[dict[str, str]]:
    """A system message and turns of a question and an answer each, the last one without its answer."""
    turns = [
        {"role": role, "content": letter * length}
        for letter, length in zip("bcdefg", lengths, strict=False)
        for role in ("user", "assistant")
    ]
    return [{"role": "system", "content": "a"}, *turns[:-1]]


@pytest.mark.parametrize(
    ("lengths", "num_dropped"),
    [((10,), 0), ((30, 30, 20), 0), ((60, 60, 40), 4), ((70, 20, 20), 2), ((20, 20, 70, 20), 6), ((20, 190), 2)],
)
def test_a_full_context_drops_the_oldest_turns(lengths, num_dropped):
    models, messages = LocalModels(None, VOCAB, MAX_CONTEXT, (), "t", "k", Letters), chat_of(*lengths)
    encoded = models.encode_newest(messages, raw=False, reserve=10**6, on_full="drop")
    assert encoded.num_dropped == num_dropped
    assert encoded.tokens == models.encode([messages[0], *messages[1 + num_dropped :]], raw=False)
    if num_dropped:
        one_more = [messages[0], *messages[num_dropped - 1 :]]
        assert len(models.encode(one_more, raw=False)) > MAX_CONTEXT - MAX_CONTEXT // 4
