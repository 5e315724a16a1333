"""Placeholders go up in place of values, and values come back in place of placeholders, however the text is cut."""

from __future__ import annotations

import random
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor

import pytest
from hypothesis import given
from hypothesis import strategies as st

from outrider_client import AsyncClient
from outrider_client.connection.transport import LocalTransport
from outrider_client.core.answer_text import AnswerText
from outrider_client.core.events import RolledBack, Unverified
from outrider_client.core.prompt import PromptMessage, Segment
from outrider_client.models.local_models import LocalModels
from outrider_client.privacy.fences import parse_fences
from outrider_client.privacy.placeholders import Placeholders, restored
from outrider_client.text.detokenizer import Detokenizer
from outrider_client.text.placeholder_restorer import PlaceholderRestorer

from ..conftest import EOS, FAST, VOCAB, FakeDrafter, FakeVerifier, Language, Letters
from .test_fences import private

VALUES = {"[EMAIL_1]": "a@b.c", "[EMAIL_12]": "[EMAIL_1]", "[P_1]": ""}


@pytest.mark.parametrize(
    ("prompts", "sent", "values"),
    [
        (
            ("to <<EMAIL: a@b>> or <<EMAIL: c@d>><<private: a@b>>", "<<private: c@d>><<EMAIL: e@f>><<private: Ann>>"),
            ["to [EMAIL_1] or [EMAIL_2][EMAIL_1]", "[EMAIL_2][EMAIL_3][PRIVATE_1]"],
            {"[EMAIL_1]": "a@b", "[EMAIL_2]": "c@d", "[EMAIL_3]": "e@f", "[PRIVATE_1]": "Ann"},
        ),
        (
            ("[EMAIL_1] is not <<EMAIL: a@b>>", "nor [EMAIL_2], <<EMAIL: a@b>>"),
            ["[EMAIL_1] is not [EMAIL_2]", "nor [EMAIL_2], [EMAIL_3]"],
            {"[EMAIL_3]": "a@b"},
        ),
        (
            ([Segment("a b"), private(""), private(" ")],),
            ["a b[PRIVATE_1][PRIVATE_2]"],
            {"[PRIVATE_1]": "", "[PRIVATE_2]": " "},
        ),
    ],
    ids=["same value, same number", "those that the text holds are left to it", "blank values do not spread"],
)
def test_values_get_placeholders(prompts, sent, values):
    table = Placeholders()
    assert [table.replace(parse_fences(each) if isinstance(each, str) else each) for each in prompts] == sent
    assert table.values == values


def test_what_is_private_once_is_so_everywhere():
    table = Placeholders()
    turns = [
        PromptMessage(role="user", content="Ann, Annabel and Ann Lee"),
        PromptMessage(role="user", content=[Segment("are "), private("Ann"), Segment(" "), private("Ann Lee", "NAME")]),
    ]
    replaced = [turn["content"] for turn in table.replace(turns)]
    assert replaced == ["[PRIVATE_1], Annabel and [NAME_1]", "are [PRIVATE_1] [NAME_1]"]
    history = [*turns, PromptMessage(role="assistant", content="Hello Ann!")]
    assert table.replace(history)[-1]["content"] == "Hello [PRIVATE_1]!"
    assert table.replace("Bye, Ann") == "Bye, [PRIVATE_1]"
    assert table.replace([1, 2]) == [1, 2]


@pytest.mark.parametrize(
    ("value", "text", "sent"),
    [
        (
            "Ann",
            "_Ann_, **Ann** and user_Ann, not AnnLee or Ann2",
            "_[P_1]_, **[P_1]** and user_[P_1], not AnnLee or Ann2",
        ),
        ("王小明", "我叫王小明，Mr王小明", "我叫[P_1]，Mr[P_1]"),
        ("Zoë Lee", "Zo\u00eb\u00a0Lee, Zoe\u0308\u2003Lee", "[P_1], [P_1]"),
        ("Zoë", r"Zo\xeb, Zo\xc3\xab, Zo%EB, Zo%C3%AB.", "[P_1], [P_1], [P_1], [P_1]."),
        ("O'Brien-Lee", "O\u2019Brien\u2011Lee \uff2f'\u00adBrien-\u200bLee", "[P_1] [P_1]"),
        ('%41"x', r'{"to": "%41\"x"}', '{"to": "[P_1]"}'),
    ],
    ids=["Markdown", "no blanks", "blanks", "bytes", "typography", "it looks escaped"],
)
def test_a_value_is_found_however_it_is_written(value, text, sent):
    assert Placeholders().replace([Segment(text), private(value, "P")]) == f"{sent}[P_1]"


def test_a_value_is_found_in_calls_as_a_number_in_ids_and_in_schemas():
    call = {"id": "c77315550", "type": "function", "function": {"name": "dial", "arguments": {"number": 77315550}}}
    turns = [
        PromptMessage(role="user", content=[private("77315550", "PHONE"), private("c77315550", "ID")]),
        PromptMessage(role="assistant", content="", tool_calls=[call]),
        PromptMessage(role="tool", content="done", tool_call_id="c77315550"),
    ]
    schema = '{"const": "77315550", "const": "x", "title": "c77315550"}'
    hidden = Placeholders().hidden(turns, schema)
    assert "77315550" not in f"{hidden.prompt} {hidden.json_schema}"


def test_answers_prepared_side_by_side_get_their_own_values_back():
    table = Placeholders()

    def prepared(number: int) -> bool:
        value = f"zoe{number}@x.org"
        hidden = table.hidden([Segment(f"not [EMAIL_{number}] "), private(value, "EMAIL")], "")
        return restored(hidden.prompt, hidden.values).endswith(value)

    with ThreadPoolExecutor(8) as threads:
        assert all(threads.map(prepared, range(200)))


def test_values_in_earlier_answers_are_private_whatever_stands_around_them():
    table = Placeholders()
    asked = PromptMessage(role="user", content=[Segment("Who is "), private("Ann", "NAME"), Segment("? Not Annabel.")])
    answered = PromptMessage(role="assistant", content="Ann's friends call her Anns or MyAnn.")
    replaced = [turn["content"] for turn in table.replace([asked, answered])]
    assert replaced == ["Who is [NAME_1]? Not Annabel.", "[NAME_1]'s friends call her [NAME_1]s or My[NAME_1]."]


async def test_another_conversation_does_not_get_the_values_of_the_last(asked):
    language = Script("mail [EMAIL_1] please", "wrote to [EMAIL_1]")
    async with client_for(FakeVerifier(language), language) as client:
        assert (await client.complete(asked, privacy="placeholder")).text == "wrote to zoe@x.org"
        client.begin_conversation()
        same = await client.complete("mail [EMAIL_1] please", privacy="placeholder")
        assert same.text == "wrote to [EMAIL_1]"


class Characters:
    """A text in which a token is a piece of it."""

    def __init__(self, pieces: Sequence[str]) -> None:
        self.pieces = pieces

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(self.pieces[token] for token in tokens)


@given(st.lists(st.sampled_from(["[EMAIL_1]", "[EMAIL_12]", "[EMAIL_1", "[", "[[", "EMAIL_12]", "x ", "[P_1]", "]"])),
       st.integers(0, 10**9))  # fmt: skip
def test_any_cut_and_any_rollback_gives_the_restored_text(parts, seed):
    whole, generator = "".join(parts), random.Random(seed)
    cuts = sorted(generator.choices(range(len(whole) + 1), k=5))
    pieces = [whole[a:b] for a, b in zip([0, *cuts], [*cuts, len(whole)], strict=True)]
    text = PlaceholderRestorer(Detokenizer(Characters(pieces).decode), VALUES)
    shown, num_tokens = "", 0
    back = generator.randrange(len(pieces))
    for token in [*range(len(pieces)), *range(back, len(pieces))]:
        if token == back and num_tokens > back:
            gone = text.roll_back(back)
            assert shown.endswith(gone)
            shown, num_tokens = shown[: len(shown) - len(gone)], back
        shown += text.push([token])
        num_tokens += 1
        assert text.shown == shown
    shown += text.finish()
    assert shown == in_one_pass(whole)


def in_one_pass(text: str) -> str:
    done = ""
    while text:
        name = next((name for name in VALUES if text.startswith(name)), None)
        done += text[0] if name is None else VALUES[name]
        text = text[1 if name is None else len(name) :]
    return done


ALPHABET = "\0abcdefghijklmnopqrstuvwxyz .@[]_012345EMAILPRVTN"


class Alphabet(Letters):
    """A token a character."""

    def encode(self, text: str) -> list[int]:
        return [ALPHABET.index(char) for char in text]

    encode_part = encode

    def decode(self, tokens: Sequence[int]) -> str:
        return "".join(ALPHABET[token] for token in tokens if token != EOS)


class Script(Language):
    """Says one text after the prompt, and then ends."""

    def __init__(self, prompt: str, text: str) -> None:
        super().__init__()
        self._prompt_len = 1 + len(prompt)
        self._answer = Alphabet().encode(text)

    def following(self, tokens: Sequence[int]) -> int:
        at = len(tokens) - self._prompt_len
        return self._answer[at] if 0 <= at < len(self._answer) else EOS


@pytest.fixture
def asked() -> list[Segment]:
    return [Segment("mail "), private("zoe@x.org", "EMAIL"), Segment(" please")]


def client_for(verifier: FakeVerifier, language: Language) -> AsyncClient:
    models = LocalModels(FakeDrafter(language), VOCAB, 200, (EOS,), "t", "k", Alphabet)
    return AsyncClient(FAST, models=models, transport=LocalTransport(verifier.describe, verifier.session))


@pytest.mark.parametrize("mode", ["auto", "stop-and-wait", "proactive", "pipelined", "server-draft", "stream"])
async def test_answers_are_verified_over_placeholders_and_restored(asked, mode):
    language = Script("mail [EMAIL_1] please", "wrote to [EMAIL_1]. is [EMAIL_1] right")
    verifier = FakeVerifier(language)
    async with client_for(verifier, language) as client:
        completion = await client.complete(asked, privacy="placeholder", mode=mode)
        assert completion.text == "wrote to zoe@x.org. is zoe@x.org right"
        assert completion.reason == "eos"
        assert set(completion.origins) <= {"accepted", "bonus"}
        assert Alphabet().decode(completion.token_ids) == "wrote to [EMAIL_1]. is [EMAIL_1] right"


@pytest.mark.parametrize("cut", range(6))
async def test_rolled_back_within_a_placeholder(asked, cut):
    """The drafter writes on alone, wrongly, wherever the link was cut."""
    said = "to [EMAIL_1] now"
    language = Script("mail [EMAIL_1] please", said)
    astray = Script("mail [EMAIL_1] please", "to [EMAIL_1] [EMAIL_1] [EMAIL_1]")
    verifier = FakeVerifier(language, cut_before={cut}, down_for=0)
    written, shown, seen = AnswerText(), "", set()
    async with client_for(verifier, astray) as client:
        async for event in client.generate(asked, privacy="placeholder", mode="stop-and-wait"):
            seen.add(type(event))
            written.take(event)
            if isinstance(event, RolledBack):
                assert shown.endswith(event.text)
                shown = shown[: len(shown) - len(event.text)]
            elif hasattr(event, "text"):
                shown += event.text
            assert written.text == shown
    assert shown == said.replace("[EMAIL_1]", "zoe@x.org")
    assert Unverified in seen or not cut
