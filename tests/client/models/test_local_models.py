"""The models on the device: in the data type that was asked for."""

import pytest
import torch

from outrider_client import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters import TreeShape, grow_tree
from outrider_proto.errors import UsageError


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


def test_another_type_is_refused():
    with pytest.raises(UsageError, match="drafter_dtype='float64': need one of float32, bfloat16"):
        ClientConfig(drafter_dtype="float64")
