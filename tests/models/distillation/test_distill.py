"""Chats written by the embedded target itself: sound, new, resumable, its own greedy answers."""

import json
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM

from outrider_models.core.embedded import target_dir
from outrider_models.core.options import held_out_file
from outrider_models.core.questions import UserQuestion
from outrider_models.distillation import distill
from outrider_models.distillation.distill import Distillation, DistillOptions, SeenPrompts, before_loop, normalized
from outrider_models.distillation.writer import Continuation, Dialog, Opening, TargetWriter
from outrider_models.training.data.chats import read_chats
from outrider_proto.errors import UsageError

EOS = 1
ASKED = [
    UserQuestion(1, "math", ("Mia has 4 boxes with 4 cards each. How many cards are there?", "And with 5 boxes?")),
    UserQuestion(2, "chat", ("Who am I?",)),
]


@pytest.fixture(scope="module")
def writer() -> TargetWriter:
    return TargetWriter.load(target_dir(), batch=4, dtype="float32")


def options(tmp_path: Path, tokens: int = 400, **changes) -> DistillOptions:
    return DistillOptions(tmp_path / "chats.jsonl", tokens=tokens, **{"max_new_tokens": 64, "held_out": 0.3, **changes})


def lines(path: Path) -> list[dict]:
    return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


def continued(writer: TargetWriter, texts: list[str], max_new_tokens: int, **seed: int) -> list[Continuation]:
    found: dict[int, Continuation] = {}

    def dialog(number: int) -> Dialog:
        found[number] = yield Opening(texts[number], max_new_tokens, **seed)

    writer.write(dialog(number) for number in range(len(texts)))
    return [found[number] for number in range(len(texts))]


def test_answers_are_the_targets_own_whatever_shares_their_batch(writer):
    texts = [writer.template.assistants([{"role": "user", "content": question.turns[0]}]) for question in ASKED]
    together = continued(writer, texts * 7, 48)  # more than its rows
    assert together == 7 * [continued(writer, [text], 48)[0] for text in texts]
    model = AutoModelForCausalLM.from_pretrained(target_dir(), dtype=torch.float32)
    for text, answer in zip(texts, together, strict=False):
        ids = torch.tensor([writer.tokenizer(text, add_special_tokens=False)["input_ids"]])
        plain = model.generate(ids, do_sample=False, max_new_tokens=48, eos_token_id=sorted(writer.template.ends))
        assert list(answer.tokens) == [token for token in plain[0, ids.shape[1] :].tolist() if token != EOS]


def test_a_text_beyond_the_context_is_not_continued(writer):
    limit = writer.model.config.max_position_embeddings
    assert continued(writer, ["cards " * limit], 8) == [Continuation((), "", ended=False)]


def test_questions_and_answers_of_its_own(writer, tmp_path):
    wanted = options(tmp_path, tokens=200)
    run = Distillation(writer, wanted)
    run.run()
    chats = lines(wanted.out) + lines(held_out_file(wanted.out))
    assert sum(chat["tokens"] for chat in chats) == run.done.tokens >= 200
    asked = [chat["messages"][0]["content"] for chat in chats]
    assert len(set(asked)) == len(asked) == run.done.chats
    # All in one batch, beside which no answer depends on the others'.
    answers = continued(writer, [writer.template.assistants(chat["messages"][:1]) for chat in chats], 64)
    for chat, answer in zip(chats, answers, strict=True):
        assert chat["messages"][1] == {"role": "assistant", "content": answer.text}
    assert len(read_chats(wanted.out)) == len(lines(wanted.out))  # as training reads them


def test_the_same_seed_gives_the_same_chats(writer, tmp_path):
    first, again, other = (options(tmp_path / str(n), tokens=20, seed=n // 2) for n in range(3))
    for wanted in (first, again, other):
        Distillation(writer, wanted).run()
    assert lines(first.out) == lines(again.out) != lines(other.out)


def test_an_interrupted_run_over_given_questions_asks_the_others(writer, tmp_path):
    wanted = options(tmp_path, tokens=10_000, held_out=0.0)
    Distillation(writer, wanted, ASKED).run()
    whole = lines(wanted.out)
    wanted.out.write_text(json.dumps(whole[-1]) + "\n")
    Distillation(writer, wanted, ASKED).run()
    assert sorted(lines(wanted.out), key=str) == sorted(whole, key=str)


def test_a_target_without_a_sound_question_ends_the_run(writer, tmp_path, monkeypatch):
    monkeypatch.setattr(distill, "is_sound", lambda text, tokens: False)
    monkeypatch.setattr(distill, "_MOST_DROPPED", 5)
    with pytest.raises(UsageError, match="--prompts"):
        Distillation(writer, options(tmp_path)).run()


def test_given_questions_are_asked_turn_by_turn(writer, tmp_path):
    wanted = options(tmp_path, tokens=10_000, held_out=0.0)
    Distillation(writer, wanted, ASKED).run()
    first, second = sorted(lines(wanted.out), key=lambda chat: chat["kind"], reverse=True)
    assert [message["role"] for message in first["messages"]] == ["user", "assistant", "user", "assistant"]
    assert first["messages"][2]["content"] == "And with 5 boxes?"
    assert (second["kind"], len(second["messages"])) == ("chat", 2)


def test_files_of_others_are_not_added_to(writer, tmp_path):
    wanted = options(tmp_path)
    wanted.out.write_text('{"messages": []}\n')
    with pytest.raises(UsageError, match=r"chats\.jsonl:1: no chat that `outrider-models distill` wrote"):
        Distillation(writer, wanted)


@pytest.mark.parametrize("change", [{"tokens": 0}, {"held_out": 1.0}, {"held_out": -0.1}])
def test_impossible_options(tmp_path, change):
    with pytest.raises(UsageError, match=next(iter(change)).replace("_", "-")):
        options(tmp_path, **change)


def test_case_accents_and_punctuation_do_not_make_a_prompt_new():
    seen = SeenPrompts()
    assert seen.add("What is a café?")
    assert not seen.add("what is a  CAFE")
    assert seen.add("What is a bar?")
    assert normalized("Où est-il ?") == "ou est il"


def test_a_loop_is_cut_where_it_comes_again():
    before, loop = list(range(50, 90)), list(range(8))
    assert before_loop(before + loop * 5) == before + loop
    assert before_loop(before + loop * 4) == before + loop * 4
    assert before_loop([7] * 40) == [7]
