"""Transient and permanent failures."""

import pytest

from outrider_proto.errors import Reason, Refusal, is_transient

TRANSIENT = ["SHUTTING_DOWN", "SERVER_FULL", "STALLED", "OVER_QUOTA"]


@pytest.mark.parametrize("reason", Reason)
def test_refusals_pass_when_the_server_is_away_for_now(reason):
    assert is_transient(Refusal(reason, "no")) == (reason.name in TRANSIENT)
