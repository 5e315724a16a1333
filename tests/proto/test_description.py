"""Server descriptions: round trips, and refusal of impossible values."""

import pytest

from outrider_proto import verifier_pb2 as pb
from outrider_proto.description import description_from_proto, description_to_proto
from outrider_proto.errors import Violation
from outrider_proto.frames import ServerDescription, TapInfo

_ABOUT = {"vocab_size": 9, "max_context": 9, "max_nodes": 9}


def test_description_round_trips():
    about = ServerDescription(1, "0.1.0", "t", "ab", "cd", 2048, 1024, 64, (1, 2), (TapInfo("x", "moa", 96),))
    assert description_from_proto(description_to_proto(about)) == about


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"vocab_size": 0}, "vocab_size=0"),
        ({"vocab_size": 2**24 + 1}, "vocab_size=16777217"),
        ({"max_nodes": 0}, "max_nodes=0"),
        ({"target_name": "n" * 257}, "target_name is longer"),
        ({"taps": [pb.Tap()] * 65}, "taps of 65: at most 64"),
        ({"taps": [pb.Tap(fingerprint="f" * 257)]}, "fingerprint is longer"),
        ({"eos_token_ids": [0] * 257}, "eos_token_ids of 257"),
    ],
)
def test_descriptions_of_no_server(wrong, said):
    with pytest.raises(Violation, match=said):
        description_from_proto(pb.Description(**(_ABOUT | wrong)))
