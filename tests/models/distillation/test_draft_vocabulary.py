"""Draft vocabularies chosen from chats: the most frequent reply tokens, and what they cover of other replies."""

import json
from pathlib import Path

import pytest

from outrider_drafters import TargetWeights
from outrider_models.core.embedded import target_dir
from outrider_models.distillation.draft_vocabulary import choose_draft_vocab
from outrider_models.training.data.tokens import load_chat_tokenizer
from outrider_proto.errors import UsageError


def write_chats(path: Path, replies: list[tuple[str, str]]) -> Path:
    """Chats of one reply each, given with its kind."""
    entries = [
        {"messages": [{"role": "user", "content": "zzz"}, {"role": "assistant", "content": reply}], "kind": kind}
        for kind, reply in replies
    ]
    path.write_text("".join(json.dumps(entry) + "\n" for entry in entries))
    return path


def test_it_holds_the_most_frequent_reply_tokens_and_the_end(tmp_path):
    data = write_chats(tmp_path / "chats.jsonl", [("chat", "ab" * 30), ("chat", "a" * 20)])
    held_out = write_chats(tmp_path / "held.jsonl", [("chat", "abab"), ("code", "ab;;")])
    tokenizer = load_chat_tokenizer(target_dir())
    ends = TargetWeights.load(target_dir()).eos_token_ids

    found = choose_draft_vocab(target_dir(), data, held_out, size=8)

    assert len(found.tokens) == 8
    assert set(ends) <= set(found.tokens[: len(ends)])
    replies = tokenizer.encode("ab" * 30, add_special_tokens=False) + tokenizer.encode(
        "a" * 20, add_special_tokens=False
    )
    assert found.num_chosen_from == len(replies) + 2  # each reply's end, too
    distinct = sorted(set(replies), key=lambda token: (-replies.count(token), token))
    assert list(found.tokens[len(ends) : len(ends) + len(distinct)]) == distinct[: 8 - len(ends)]
    shares = {kind.kind: dict(zip(found.sizes, kind.shares, strict=True)) for kind in found.kinds}
    assert list(shares) == ["all", "chat", "code"]
    assert shares["chat"][8] == 1.0
    assert shares["code"][8] < 1.0
    assert shares["code"][8] <= shares["code"][found.sizes[-1]]


@pytest.mark.parametrize(("size", "message"), [(0, "size=0: need 1 to"), (10**6, "size=1000000: need 1 to")])
def test_a_size_that_no_vocabulary_has_is_refused(tmp_path, size, message):
    with pytest.raises(UsageError, match=message):
        choose_draft_vocab(target_dir(), write_chats(tmp_path / "chats.jsonl", [("chat", "ab")]), None, size)
