"""When features come in the coarser codec: loads of a link in, a codec out."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_client.controller.codec_choice import COARSEST, FINEST, SIZE_VS_FINEST, codec_for, feature_share
from outrider_client.core.config import ClientConfig
from outrider_proto.feature_codec import typical_payload_bytes

WIDE, NARROW = 960.0, 45.0  # bytes a row: of a large target, of the embedded one
shares = st.builds(feature_share, st.floats(1, 1e4), st.floats(0.1, 1e3), st.floats(1e3, 1e9))


@pytest.mark.parametrize(
    ("codec", "share"),
    [
        ("lean", feature_share(WIDE, 50, 5e6)),
        ("lean", feature_share(WIDE, 50, 1e6)),
        ("leaner", feature_share(WIDE, 50, 500e3)),  # 384 kbit/s
        ("leaner", feature_share(WIDE, 30, 256e3)),
        ("lean", feature_share(WIDE, 5, 256e3)),
        ("lean", feature_share(NARROW, 50, 256e3)),
        ("leaner", feature_share(NARROW, 50, 20e3)),
    ],
)
def test_codecs(codec, share):
    assert codec_for(share, "lean") == codec_for(share, "leaner") == codec


@given(shares, st.floats(1.0, 1 / SIZE_VS_FINEST[COARSEST]))
def test_it_does_not_turn_back_for_what_it_gains(share, faster):
    """Coarser features let tokens come faster on a link that they filled: by no more than they are smaller."""
    if codec_for(share, FINEST) == COARSEST:
        assert codec_for(share * faster, COARSEST) == COARSEST


def test_what_is_said_of_the_codecs_is_so():
    """Measured on Gaussian rows."""
    assert ClientConfig().codec == FINEST
    for codec, of_finest in SIZE_VS_FINEST.items():
        assert typical_payload_bytes(codec, 4, 2048) / typical_payload_bytes(FINEST, 4, 2048) == pytest.approx(
            of_finest, abs=0.03
        )
