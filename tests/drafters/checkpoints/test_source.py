"""`DIR,key=value`: where a drafter comes from and what its files leave open."""

import pytest

from outrider_drafters.checkpoints.options import (
    DRAFT_VOCAB_OPTION,
    EMBEDDING_OPTION,
    ROPE_THETA_OPTION,
    TARGET_LAYERS_OPTION,
    DrafterOption,
    DrafterOptions,
)
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.families.dspark.family import CONFIDENCE
from outrider_drafters.families.eagle3.layout import NORM_OUTPUT
from outrider_drafters.families.moa.family import TLI
from outrider_drafters.families.suffix.hybrid import COPY_OPTION
from outrider_proto.errors import UsageError


def test_options_follow_the_name():
    text = "some/dir,tli=1,embedding=own,norm_output=false,target_layers=2-4-5,rope_theta=1e4"
    source = DrafterSource.parse(text)
    options = [TLI, EMBEDDING_OPTION, NORM_OUTPUT, TARGET_LAYERS_OPTION, ROPE_THETA_OPTION, COPY_OPTION]
    assert [source.options.get(option) for option in options] == [1, "own", False, (2, 4, 5), 1e4, None]
    given = DrafterOptions(tli=1, embedding="own", norm_output=False, target_layers=(2, 4, 5), rope_theta="1e4")
    assert source == DrafterSource("some/dir", given)


@pytest.mark.parametrize(("text", "value"), [("8192", 8192), ("all", "all"), ("some/vocab.json", "some/vocab.json")])
def test_a_commands_draft_vocabulary_takes_the_place_of_the_sources(text, value):
    source = DrafterSource.parse("some/dir,tli=1,draft_vocab=7")
    assert source.with_draft_vocab(text).options == DrafterOptions(tli=1, draft_vocab=value)
    assert source.with_draft_vocab(None) == source


def test_a_path_that_exists_is_taken_whole(tmp_path):
    odd = tmp_path / "a,tli=1"
    odd.mkdir()
    assert DrafterSource.parse(odd) == DrafterSource(str(odd))


@pytest.mark.parametrize("pair", ["tli", "=1", "not-a-name=1", ""])
def test_what_is_no_option_is_refused(pair):
    with pytest.raises(UsageError, match="need KEY=VALUE"):
        DrafterSource.parse(f"d,{pair}")


@pytest.mark.parametrize(
    ("option", "text", "needed"),
    [
        (TLI, "-1", "a whole number of at least 0"),
        (EMBEDDING_OPTION, "mine", "own or target"),
        (NORM_OUTPUT, "yes", "true or false"),
        (TARGET_LAYERS_OPTION, "2-x", "whole numbers such as"),
        (ROPE_THETA_OPTION, "nan", "a number above 0"),
        (CONFIDENCE, "1.5", "a number from 0 to 1"),
        (DRAFT_VOCAB_OPTION, "", "a file, a number of tokens"),
        (DrafterOption.whole("width", "", 2, 4), "5", "a whole number from 2 to 4"),
    ],
)
def test_a_value_that_an_option_does_not_take_is_refused(option, text, needed):
    with pytest.raises(UsageError, match=f"drafter option '{option.name}={text}': need {needed}"):
        DrafterOptions(**{option.name: text}).get(option)


def test_an_unknown_option_is_refused_with_those_that_exist():
    options = DrafterOptions(tli=1, breath=2)
    with pytest.raises(UsageError, match=r"option breath: family moa takes tli \(a whole number of at least 0\)"):
        options.check("moa", [TLI])
    options.but(breath=None).check("moa", [TLI])
