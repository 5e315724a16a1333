"""A served target's answers and features on disk: the session's own bits, whole after a kill, and trained from."""

import asyncio
import json
from functools import partial

import numpy as np
import pytest
import torch
from rich.console import Console

from outrider_bench.core.pair import in_process, stop_and_wait_config
from outrider_bench.core.prompts import Question
from outrider_drafters.quantization.codes import has_exact_int8
from outrider_lab.studies.recorded_features import record
from outrider_lab.training import answers
from outrider_lab.training.answers import AnswerFiles, RecordingTap, answer_prompts
from outrider_lab.training.options import AnswerOptions
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_models.core.tables import parse_changes
from outrider_models.training.data.served_answers import ServedAnswers, decode_rows, encode_rows, read_answers
from outrider_models.training.data.texts import make_batch
from outrider_models.training.train import ChatRunOptions, chat_run, train
from outrider_proto.errors import UsageError
from outrider_proto.frames import Sampling
from outrider_server.engine.engine import Engine, StepInput
from outrider_server.engine.sampler import Sampler
from outrider_server.engine.sequence import Sequence
from outrider_server.engine.target import Target

DTYPE = "int8" if has_exact_int8() else "float32"
NUMBERS = ("first", "last", "sum of", "largest", "smallest", "mean of", "product of", "second", "number of", "best")


@pytest.fixture(scope="module")
def prompts(tmp_path_factory):
    path = tmp_path_factory.mktemp("prompts") / "prompts.jsonl"
    about = {"package": "some", "license": "MIT"}
    lines = [
        {"kind": ("completion", "chat")[i % 2], "held_out": i > 7, **about,
         "prompt": f'def run(a):\n    """Square each number, then return the {word} them."""\n'}
        for i, word in enumerate(NUMBERS)
    ]  # fmt: skip
    path.write_text("".join(json.dumps(line) + "\n" for line in lines))
    return path


@pytest.fixture(autouse=True, scope="module")
def two_threads():
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(torch, "get_num_threads", lambda: 2)
        yield


def answer(prompts, out, tokens=10_000, dtype=DTYPE, batch=3):
    options = AnswerOptions(tokens=tokens, dtype=dtype, batch=batch, max_new_tokens=24)
    return answer_prompts(prompts, out, options)


@pytest.fixture(scope="module")
def answered(prompts, tmp_path_factory):
    out = tmp_path_factory.mktemp("answers")
    done = answer(prompts, out)
    assert done.texts == len(NUMBERS)
    return out


def files_of(directory):
    return {path.name: path.read_bytes() for path in directory.iterdir()}


def rows_of(directory, field):
    stored = np.fromfile(directory / f"{field}.int8", np.int8)
    return stored.reshape(sum(text.num_rows for text in read_answers(directory)[1]), -1)


def test_features_are_those_of_a_session_alone(answered):
    """Answers and rows are those of one token a pass, and of a session of the service."""
    target = Target.load(str(target_dir()), DTYPE)
    tap, place = RecordingTap(target), 0
    for text in read_answers(answered)[1][:4]:
        engine, alone, chain = Engine(target), Sequence(target.kv, tap), list(text.ids[: text.prompt])
        for token in text.ids[text.prompt :]:
            (result,) = engine.verify([StepInput(alone, chain, sampler=Sampler(Sampling()))])
            engine.commit(result)
            engine.tap([alone])
            chain = [result.accepted.bonus]
            assert chain == [token]
        for field, rows in tap.encoded(alone.slot.features(0, text.num_rows)).items():
            assert np.array_equal(rows_of(answered, field)[place : place + text.num_rows], rows), field
        place += text.num_rows

    async def served(text):
        config = stop_and_wait_config(target=str(target_dir()), drafter=str(drafter_dir("eagle2")))
        async with in_process(target_dir(), config, target) as pair:
            question = Question("all", text.ids[: text.prompt], "first")
            return (await record(pair, [question], [text.ids[text.prompt :]]))[0]

    first = next(text for text in read_answers(answered)[1] if text.ids)
    rows = encode_rows(asyncio.run(served(first)).features[: first.num_rows])
    assert np.array_equal(rows_of(answered, "hidden-1")[: first.num_rows], rows)


def test_a_run_killed_anywhere_writes_the_same_files(prompts, answered, tmp_path, monkeypatch):
    calls, plain = iter(range(1, 99)), AnswerFiles._write

    def killed(*arguments):
        if next(calls) == 20:  # within a text's fields
            raise KeyboardInterrupt
        return plain(*arguments)

    answer(prompts, tmp_path, tokens=30)
    monkeypatch.setattr(AnswerFiles, "_write", killed)
    with pytest.raises(KeyboardInterrupt):
        answer(prompts, tmp_path)
    monkeypatch.undo()
    with (tmp_path / "answers.jsonl").open("a") as file:
        file.write('{"kind": "compl')
    answer(prompts, tmp_path, batch=5)
    assert files_of(tmp_path) == files_of(answered)
    answer(prompts, tmp_path)
    assert files_of(tmp_path) == files_of(answered)
    with pytest.raises(UsageError, match="another target"):
        answer(prompts, tmp_path, dtype="bfloat16")


def test_a_completion_ends_where_the_function_does(answered):
    texts, tokenizer = read_answers(answered)[1], answers.TargetTokenizer(target_dir())
    written = [(text, tokenizer.decode(text.ids[text.prompt :])) for text in texts if text.ids]
    assert written
    assert not any(answers._STOPS.find(answer) for text, answer in written if text.kind == "completion")


CHANGES = ("machine.precision=no", "length.batch=4", "validation.new_tokens=12", "schedule.warmup_updates=0")


@pytest.mark.parametrize(
    ("family", "sets"),
    [
        ("moa", ("drafter.tli=1",)), ("eagle2", ("drafter.noise=0.0",)),
        ("eagle3", ("drafter.draft_vocab=200", "drafter.steps.count=2")), ("hydra", ("drafter.dropout=0.0",)),
    ],
)  # fmt: skip
def test_training_from_the_directory_is_training_with_the_target(family, sets, prompts, tmp_path, monkeypatch):
    """But for the rounding of the stored rows; what the target has not run it need not run."""
    answer(prompts, tmp_path / "data", dtype="float32")
    changes = parse_changes([*CHANGES, *sets, "length.epochs=2.0"])
    options = partial(ChatRunOptions, family, tmp_path / "data", target=str(target_dir()), changes=changes)
    losses = []
    for name in ("served", "run"):
        job = chat_run(options(out=tmp_path / name))
        monkeypatch.setattr(job.task, "_served", job.task._served if name == "served" else None)
        batches = [make_batch(texts, torch.device("cpu")) for texts in job.source.updates(0)]
        torch.manual_seed(0)
        losses.append([job.task.loss(batch).total.item() for batch in batches])
    assert losses[0] == pytest.approx(losses[1], rel=0.02)
    run = train(options(out=tmp_path / "out"), console=Console(quiet=True))
    last = json.loads((tmp_path / "out" / "log.jsonl").read_text().splitlines()[-1])
    assert run.is_done
    assert last["tau"] >= 1
    assert not (tmp_path / "out" / "features").exists()


def test_rows_are_rounded_by_less_than_a_step():
    rows = torch.randn(50, 96) * 10.0 ** torch.randint(-3, 3, (50, 3)).repeat_interleave(32, 1)
    back = decode_rows(encode_rows(rows), 96, torch.float32)
    largest = rows.unflatten(1, (3, 32)).abs().amax(-1, keepdim=True)
    assert ((back - rows).unflatten(1, (3, 32)).abs() <= largest * 0.0047).all()
    assert torch.equal(decode_rows(encode_rows(torch.zeros(2, 8)), 8, torch.float32), torch.zeros(2, 8))


def test_another_directory_is_one_line(tmp_path, answered):
    (tmp_path / "features.json").write_text("{}")
    with pytest.raises(UsageError, match="no answers of"):
        ServedAnswers(tmp_path)
    for name, data in files_of(answered).items():
        (tmp_path / name).write_bytes(data[: len(data) // 2 if name == "kv.int8" else None])
    with pytest.raises(UsageError, match="lacks rows"):
        ServedAnswers(tmp_path)
    with pytest.raises(UsageError, match="lacks rows"):
        AnswerFiles(tmp_path, ServedAnswers(answered).layout)
