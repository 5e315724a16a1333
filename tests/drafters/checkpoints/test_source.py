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


@pytest.mark.parametrize(("text", "value"), [("8192", 8192), ("all", "all"), ("some/vocab.json", "some/vocab.json")])
def test_a_commands_draft_vocabulary_takes_the_place_of_the_sources(text, value):
    source = DrafterSource.parse("some/dir,tli=1,draft_vocab=7")
    assert source.with_draft_vocab(text).options == DrafterOptions(tli=1, draft_vocab=value)
    assert source.with_draft_vocab(None) == source


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
        ("d,draft_vocab=", "a file, a number of tokens"),
        ("d,draft_vocab=00", "a file, a number of tokens"),
    ],
)
def test_an_option_that_is_none_is_refused(text, needed):
    with pytest.raises(UsageError, match=f"drafter option '{text[2:]}': need {needed}"):
        DrafterSource.parse(text)
