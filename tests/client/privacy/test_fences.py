"""Segments, fences and the cut between what may leave and what may not."""

from __future__ import annotations

import string

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_client.core.prompt import PromptMessage, Segment
from outrider_client.models.local_models import LocalModels
from outrider_client.models.private_tokens import split
from outrider_client.privacy.fences import parse_fences
from outrider_proto.errors import UsageError

from ..conftest import EOS, Language, Letters, fake_models

SECRET = "quokka"


def private(text: str, kind: str | None = None) -> Segment:
    return Segment(text, private=True, kind=kind)


FENCES = [
    ("plain", [Segment("plain")]),
    ("", []),
    ("call <<private: Ann>> now", [Segment("call "), private("Ann"), Segment(" now")]),
    ("<<EMAIL: a@b.c >>", [private("a@b.c", "EMAIL")]),
    ("<<private: two\nlines>><<PRIVATE: x>>", [private("two\nlines"), private("x", "PRIVATE")]),
    ("<<private: cout << x>> y", [private("cout << x"), Segment(" y")]),
    (r"cout \<< x; cin >> y", [Segment("cout << x; cin >> y")]),
    (r"\<<private: x>>", [Segment("<<private: x>>")]),
    ("```\nput <<Ann>>\n``` <<private: Ann>>", [Segment("```\nput <<Ann>>\n``` "), private("Ann")]),
    ("`<<Ann>>` <<private: Ann>>", [Segment("`<<Ann>>` "), private("Ann")]),
    ("don`t <<private: Ann>>\nor `x`", [Segment("don`t "), private("Ann"), Segment("\nor `x`")]),
]


@pytest.mark.parametrize(("text", "segments"), FENCES)
def test_fences(text, segments):
    assert list(parse_fences(text)) == segments


CODE = [
    "what does cout << x << y; do?",
    "what is (1 << 4) and 256 >> 2 ?",
    "a[1 << n: m >> 2]; x <<= 2; y >>= 3",
    "cout<<x<<std::endl; cin>>y;",
    "cat <<EOF >>out.txt\nName: x\nEOF",
    "$text = <<<EOT\nhello\nEOT; $y >> 2;",
    "vector<vector<int>> v; v<<x; std <<A::x >> y",
    "<<<<<<< HEAD\none\n=======\ntwo\n>>>>>>> branch",
    "while (<<>>) { print }",
    ">>> 1 <<2",
    "UML `<<interface>>`",
    "~~~\n<<interface>>",
]


@pytest.mark.parametrize("code", CODE)
def test_code_is_text(code):
    assert parse_fences(code) == (Segment(code),)


MEANT = [
    "call <<quokka>> now",
    "write to <<quokka@example.org>>, please",
    "<<email: quokka>>",
    "<<EMAIL:quokka>>",
    "<<Private: quokka>>",
    "call << private: quokka >>",
    "叫<<quokka>>来",
]


@pytest.mark.parametrize("text", MEANT)
def test_what_is_plainly_meant_as_a_fence_is_neither_sent_nor_guessed(text):
    with pytest.raises(UsageError, match=r"<<private: \.\.\.>>") as refused:
        parse_fences(text)
    assert SECRET not in str(refused.value)


@pytest.mark.parametrize(
    ("text", "place", "what"),
    [
        (f"a <<private: {SECRET}", "line 1, column 3", "does not close"),
        (f"a\nbc <<private: {SECRET} <<NAME: b>>>>", "line 2, column 4", "another one within"),
        (f"<<private: {SECRET}>> <<NAME: >>", "line 1, column 21", "nothing"),
        (f"a\n`b <<private: {SECRET}>>`", "line 2, column 4", "inside code"),
        (f"```\n<<NAME: {SECRET}>>", "line 2, column 1", "inside code"),
    ],
)
def test_misplaced_fences_are_named_by_place_alone(text, place, what):
    with pytest.raises(UsageError, match=what) as refused:
        parse_fences(text)
    assert str(refused.value).startswith(place)
    assert SECRET not in str(refused.value)


def test_kinds_are_checked_and_private_segments_do_not_show():
    with pytest.raises(UsageError, match="capital"):
        Segment("x", private=True, kind="e-mail")
    assert SECRET not in repr([private(SECRET), private(SECRET, "NAME")])
    assert "shown" in repr(Segment("shown"))


@given(st.lists(st.tuples(st.text(string.ascii_lowercase + " "), st.booleans())), st.booleans())
def test_the_cut_depends_on_nothing_private(parts, raw):
    parts = [*parts, (SECRET, True)]
    segments = [Segment(text, secret) for text, secret in parts]
    changed = [Segment(text[::-1] + "zz" if secret else text, secret) for text, secret in parts]
    both = [split(prompt, Letters(), raw=raw) for prompt in (segments, changed)]
    assert both[0].safe == both[1].safe
    whole = "".join(text for text, _ in parts)
    assert list(both[0].whole) == ([] if raw else [EOS]) + Letters().encode(whole)


def test_blanks_before_the_cut_and_turns_after_the_first_private_one_stay_here():
    parts = split([Segment("ab  "), private("cd"), Segment("e")], Letters(), raw=True)
    assert (parts.safe, parts.rest) == (tuple(Letters().encode("ab")), tuple(Letters().encode("  cde")))
    assert repr(parts.safe) not in repr(parts)
    contents = ("ab", [Segment("cd"), private("ef")], "gh")
    roles = ("user", "assistant", "user")
    turns = [PromptMessage(role=role, content=content) for role, content in zip(roles, contents, strict=True)]
    parts = split(turns, Letters(), raw=False)
    assert parts.safe == (EOS, *Letters().encode("ab"), EOS, *Letters().encode("cd"))
    assert parts.rest == (*Letters().encode("ef"), EOS, *Letters().encode("gh"))


class Forgetful(Letters):
    """Its template keeps the last turn alone."""

    def render(self, messages) -> str:
        return super().render(messages[-1:])


def test_template_that_loses_private_text_is_refused():
    turns = [PromptMessage(role="user", content=[private(SECRET)]), PromptMessage(role="user", content="b")]
    with pytest.raises(UsageError, match="leaves out") as refused:
        split(turns, Forgetful(), raw=False)
    assert SECRET not in str(refused.value)


def test_private_text_cannot_be_encoded_for_the_server_nor_mixed_nor_quoted():
    models = fake_models(Language(), None)
    with pytest.raises(AssertionError, match="private"):
        models.encode([Segment("a"), private(SECRET)], raw=False)
    assert models.encode([Segment("a"), Segment("b")], raw=True) == Letters().encode("ab")
    with pytest.raises(UsageError, match="mixes"):
        models.encode([Segment("a"), 3], raw=False)
    with pytest.raises(UsageError, match="beyond the vocabulary of 5"):
        LocalModels(None, 5, 100, (), "t", "k", Letters).split([private("z")], raw=True)
