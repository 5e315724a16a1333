"""Transient and permanent failures."""

import pytest

from outrider_proto.errors import LinkError, Reason, Refusal, UsageError, Violation, is_transient

TRANSIENT = ["SHUTTING_DOWN", "SERVER_FULL", "STALLED", "OVER_QUOTA"]


@pytest.mark.parametrize("reason", Reason)
def test_refusals_pass_when_the_server_is_away_for_now(reason):
    assert is_transient(Refusal(reason, "no")) == (reason.name in TRANSIENT)


def test_links_recover_and_mistakes_do_not():
    assert is_transient(LinkError("lost"))
    assert not is_transient(UsageError("k=0: need at least 1"))
    assert not is_transient(Violation(Reason.MALFORMED_FRAME, "torn"))
