"""`DIR,key=value`: where a drafter comes from and what its files leave open."""

import pytest

from outrider_drafters.checkpoints.source import DrafterOptions, DrafterSource
from outrider_proto.errors import UsageError


def test_a_name_alone_has_no_options():
    assert DrafterSource.parse("owner/model") == DrafterSource("owner/model")


def test_options_follow_the_name():
    options = DrafterOptions(tli=1, embedding="own", norm_output=False, target_layers=(2, 4, 5), rope_theta=1e4)
    text = "some/dir,tli=1,embedding=own,norm_output=false,target_layers=2-4-5,rope_theta=1e4"
    assert DrafterSource.parse(text) == DrafterSource("some/dir", options)


def test_a_path_that_exists_is_taken_whole(tmp_path):
    odd = tmp_path / "a,tli=1"
    odd.mkdir()
    assert DrafterSource.parse(odd) == DrafterSource(str(odd))


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("d,tli", "KEY=VALUE"),
        ("d,tli=", "a whole number"),
        ("d,tli=-1", "a whole number"),
        ("d,who=1", "KEY=VALUE"),
        ("d,embedding=mine", "own or target"),
        ("d,norm_output=yes", "true or false"),
        ("d,target_layers=2-x", "whole numbers such as"),
        ("d,rope_theta=big", "a number above 0"),
        ("d,rope_theta=0", "a number above 0"),
        ("d,rope_theta=nan", "a number above 0"),
    ],
)
def test_an_option_that_is_none_is_refused(text, needed):
    with pytest.raises(UsageError, match=f"drafter option '{text[2:]}': need {needed}"):
        DrafterSource.parse(text)
