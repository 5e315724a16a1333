"""Chats from files: both layouts read, every bad line named; and their tokens, replies alone marked."""

import json
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from transformers import AutoTokenizer

from outrider_models.core.embedded import target_dir
from outrider_models.training.core.rates import Length
from outrider_models.training.data.chat_file import ChatSettings, ChatSource
from outrider_models.training.data.chats import Chat, read_chats
from outrider_models.training.data.texts import ChatTokens, make_batch
from outrider_models.training.data.tokens import load_chat_tokenizer, need_chat_template, tokenize
from outrider_models.training.data_parallel import DataParallel
from outrider_proto.errors import UsageError

TURNS = (
    {"role": "user", "content": "What is 2 + 3?"},
    {"role": "assistant", "content": "Answer: 5"},
    {"role": "user", "content": "Why?"},
    {"role": "assistant", "content": "So."},
)
CHAT = Chat(TURNS, "chats.jsonl:1")
MASKING = (
    "{% for message in messages %}{% if message.role == 'assistant' %}<|assistant|>"
    "{% generation %}{{ message.content }}{{ eos_token }}{% endgeneration %}"
    "{% else %}<|user|>{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
THINKING = (  # shows a reply's thoughts in the last turn only, as Qwen3's template does
    "{% for message in messages %}{% if message.role == 'assistant' %}<|assistant|>"
    "{% if loop.last %}hmm... {% endif %}{{ message.content }}{{ eos_token }}"
    "{% else %}<|user|>{{ message.content }}{% endif %}{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>hmm{% endif %}"
)

EOS = "<|eos|>"


@pytest.fixture
def tokenizer():
    return AutoTokenizer.from_pretrained(target_dir())


def written(path, *lines):
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_both_layouts_are_the_same_chats(tmp_path):
    messages = {"messages": list(TURNS), "id": 7}
    names = {"user": "human", "assistant": "gpt"}
    sharegpt = {"conversations": [{"from": names[turn["role"]], "value": turn["content"]} for turn in TURNS]}
    chats = read_chats(written(tmp_path / "chats.jsonl", messages, "", sharegpt))
    assert [chat.turns for chat in chats] == [TURNS, TURNS]
    assert [chat.source.rpartition(":")[2] for chat in chats] == ["1", "3"]


GOOD = {"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": "Hello"}]}


@pytest.mark.parametrize(
    ("line", "message"),
    [
        ("{", "cannot be read as JSON"),
        ([1], 'need an object with a list "messages"'),
        ({"text": "Hi"}, 'need an object with a list "messages"'),
        ({"messages": [{"role": "robot", "content": "Hi"}]}, "turn 0: role='robot'"),
        ({"messages": ["Hi"]}, "turn 0: role=None"),
        ({"messages": [{"role": ["user"], "content": "Hi"}]}, "turn 0: role="),
        ({"messages": [{"role": "user", "content": None}]}, "turn 0: content is not text"),
        ({"conversations": [{"from": "assistant", "value": "Hi"}]}, "starts with a reply"),
        ({"messages": [{"role": "user", "content": "Hi"}, {"role": "assistant", "content": " "}]}, "no reply"),
        ({"messages": []}, "no reply"),
    ],
)
def test_a_bad_line_is_named(line, message, tmp_path):
    path = written(tmp_path / "chats.jsonl", GOOD, line)
    with pytest.raises(UsageError, match=rf"chats\.jsonl:2: .*{message}"):
        read_chats(path)


def replies(tokenizer, chat):
    """What is marked, run by run, as text."""
    edges = np.flatnonzero(np.diff(np.concatenate(([False], chat.is_reply, [False])).astype(int)))
    return [tokenizer.decode(chat.ids[first:end]) for first, end in edges.reshape(-1, 2)]


@pytest.mark.parametrize("template", [None, MASKING])
def test_replies_are_marked_to_the_end_of_their_turn(template, tokenizer):
    tokenizer.chat_template = template or tokenizer.chat_template
    chat = tokenize(tokenizer, CHAT, 100)
    assert replies(tokenizer, chat) == [f"Answer: 5{EOS}", f"So.{EOS}"]
    whole = tokenizer.apply_chat_template(list(TURNS), tokenize=True, return_dict=True)["input_ids"]
    assert chat.ids.tolist() == whole
    opening = [TURNS[0]]
    assert tokenizer.decode(chat.prompt) == tokenizer.apply_chat_template(
        opening, tokenize=False, add_generation_prompt=True
    )


def test_a_reply_that_later_turns_change_does_not_count(tokenizer):
    tokenizer.chat_template = THINKING
    assert replies(tokenizer, tokenize(tokenizer, CHAT, 100)) == [f"... So.{EOS}"]


@pytest.mark.parametrize("template", [None, MASKING])
def test_a_reply_that_was_cut_off_teaches_no_end(template, tokenizer, tmp_path):
    tokenizer.chat_template = template or tokenizer.chat_template
    messages = list(TURNS)
    (chat,) = read_chats(written(tmp_path / "chats.jsonl", {"messages": messages, "cut": True}))
    assert replies(tokenizer, tokenize(tokenizer, chat, 100)) == [f"Answer: 5{EOS}", "So."]


def test_long_chats_are_cut_and_those_without_a_reply_left_out(tokenizer):
    whole = tokenize(tokenizer, CHAT, 100)
    cut = tokenize(tokenizer, CHAT, len(whole.prompt) + 2)
    assert len(cut.ids) == len(whole.prompt) + 2
    assert cut.num_labels == 2
    assert tokenize(tokenizer, CHAT, len(whole.prompt)) is None


def test_a_tokenizer_that_cannot_write_chats_is_refused(tokenizer):
    tokenizer.chat_template = None
    with pytest.raises(UsageError, match="no chat template"):
        need_chat_template(tokenizer, "base-model")
    with pytest.raises(UsageError, match=r"no tokenizer\.json"):
        need_chat_template(SimpleNamespace(chat_template="x", is_fast=False), "slow-model")


def chat_of(length, reply):
    return ChatTokens(np.arange(length, dtype=np.int32), np.arange(length) >= length - reply)


CHATS = [chat_of(4 + i, 2 + i % 2) for i in range(11)]


def source_of(batch, seed=0, epochs=1.0):
    return ChatSource(CHATS, [], 0, Length(batch, epochs), seed)


@pytest.mark.parametrize(("part", "processes"), [(0, 1), (1, 1), (2, 1), (2, 3), (4, 2), (0, 3)])
def test_processes_share_every_update(part, processes):
    seen = []
    for texts in source_of(4).updates(0):
        parts = [rows for rank in range(processes) for rows in DataParallel(rank, processes).share(texts, part)]
        assert part == 0 or all(len(rows) <= part for rows in parts)
        assert sorted(len(text.ids) for rows in parts for text in rows) == sorted(len(text.ids) for text in texts)
        seen += texts
    assert sorted(len(text.ids) for text in seen) == [len(text.ids) for text in CHATS]


def test_a_limit_keeps_the_first_chats_of_a_whole_pass_and_counts_tokens_in_all():
    kept = ChatSource(CHATS, [], 0, Length(2, 1), 0, limit=4)
    first = [text for texts in source_of(4).updates(0) for text in texts][:4]
    assert sorted(len(text.ids) for text in kept.train) == sorted(len(text.ids) for text in first)
    assert [len(texts) for texts in kept.updates(3)] == [2, 2]
    assert torch.equal(kept.frequencies(20), source_of(2).frequencies(20))
    assert source_of(2).train == CHATS


def test_questions_teach_where_they_are_asked_to(tokenizer, tmp_path):
    system = {"role": "system", "content": "Be kind."}
    said = [("user", "Sort 2 1."), ("assistant", "1 2"), ("user", "And 4 3?"), ("assistant", "3 4")]
    chats = [{"messages": [system, *({"role": role, "content": text} for role, text in turns)]}
             for turns in (said, [("user", "Add 1 and 1."), ("assistant", "2")])]  # fmt: skip
    path = written(tmp_path / "chats.jsonl", *chats)

    def read(questions):
        settings = ChatSettings(max_length=200, held_out=0, seed=0, limit=0, questions=questions)
        return ChatSource.read(path, tokenizer, settings, Length(2, 1))

    replies, everything = read(questions=False), read(questions=True)
    assert (replies.unit, everything.unit) == ("reply tokens", "tokens")
    for only, whole in zip(replies.train, everything.train, strict=True):
        assert only.ids.tolist() == whole.ids.tolist()
        assert only.prompt == whole.prompt
        assert whole.is_taught[only.is_reply].all()
        assert whole.num_labels > only.num_labels
        assert "Be kind." not in tokenizer.decode(whole.ids[whole.is_taught]), "all chats begin so: it teaches nothing"
    assert "And 4 3?" in tokenizer.decode(everything.train[0].ids[everything.train[0].is_taught])
    assert everything.frequencies(1000).equal(replies.frequencies(1000)), "draft vocabularies are of replies"
    batch = make_batch(everything.updates(0)[0], "cpu")
    assert int(batch.loss_mask.sum()) == sum(text.num_labels for text in everything.train)


def test_a_file_without_chats_is_refused(tmp_path):
    with pytest.raises(UsageError, match="holds no chats"):
        read_chats(written(tmp_path / "empty.jsonl", ""))


def test_a_chat_template_that_hangs_is_found_at_once(tmp_path, tokenizer):
    tokenizer.chat_template = "{{ 'a' * 3000000000 }}"
    tokenizer.save_pretrained(tmp_path)
    with pytest.raises(UsageError, match="chat template does not write a question: it takes more than 256 MiB"):
        load_chat_tokenizer(tmp_path)
