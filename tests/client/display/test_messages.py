"""Errors in plain words and as JSON."""

from __future__ import annotations

import json

import pytest

from outrider_client.display.messages import explained, explaining, report_error
from outrider_proto.errors import LinkError, OutriderError, Reason, Refusal, UsageError

SAID = "failed to connect to all addresses; last error: UNKNOWN: ipv4:127.0.0.1:1: Failed to connect to remote host: "


@pytest.mark.parametrize(
    ("said", "meaning"),
    [
        (SAID + "Connection refused", "no server listens there; is outrider-server running?"),
        ("errors resolving edge:1: [field:hostname lookup error: Domain name not found]", "there is no host of that"),
        (SAID + "Network is unreachable", "this device has no network to it"),
        (SAID + "connect endpoint: Timed out", "it does not answer; is the address right"),
    ],
)
def test_a_server_that_is_not_reached_is_told_in_plain_words(said, meaning):
    told = explained(LinkError(f"cannot reach 127.0.0.1:1: {said}"), "edge:1")
    assert isinstance(told, LinkError)
    assert str(told).startswith(f"cannot reach edge:1: {meaning}")
    assert str(told).endswith("(--server HOST names another server)")


@pytest.mark.parametrize(
    "error", [LinkError("no verdict within 5 s"), LinkError("cannot reach edge:1: odd"), UsageError("x=1: need 2")]
)
def test_other_errors_stay_as_they_are(error):
    told = explained(error, "edge:1")
    assert (type(told), str(told)) == (type(error), str(error))


def test_a_mismatch_names_the_command_that_helps():
    said = Refusal(Reason.TARGET_MISMATCH, "must be the same: `outrider pull HOST:PORT` fetches what fits", 3.0)
    with pytest.raises(Refusal) as told, explaining("edge:1"):
        raise said
    assert str(told.value) == "must be the same: `outrider pull edge:1` fetches what fits"
    assert (told.value.reason, told.value.retry_after_s) == (Reason.TARGET_MISMATCH, 3.0)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (UsageError("a"), "usage"),
        (Refusal(Reason.SERVER_FULL, "a"), "server_full"),
        (LinkError("a"), "link"),
        (OutriderError("a"), "error"),
    ],
)
def test_an_error_is_one_line_or_one_object(capsys, error, code):
    report_error(error, as_json=False, hint="; b")
    report_error(error, as_json=True, hint="; b")
    heard = capsys.readouterr()
    assert heard.err == "outrider: a; b\n"
    assert json.loads(heard.out) == {"event": "error", "code": code, "message": "a; b"}
