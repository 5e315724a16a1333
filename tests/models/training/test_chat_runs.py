"""Training on chats from end to end: tiny drafters of every family for a tiny target."""

import json
import subprocess
import sys

import pytest
import torch
from heads_place import begun
from rich.console import Console
from safetensors import SafetensorError
from safetensors.torch import load_file
from transformers import AutoTokenizer

from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import TargetWeights
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.load import load_drafter
from outrider_drafters.readers.checkpoint import Checkpoint
from outrider_drafters.trees.grow import grow_tree
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_models.core.held_out import FAMILIES, held_out
from outrider_models.core.tables import merged, parse_changes
from outrider_models.training.config import ValidationSettings
from outrider_models.training.core.interfaces import TeacherRequest
from outrider_models.training.core.teacher import Teacher
from outrider_models.training.data.texts import make_batch
from outrider_models.training.families import TRAINABLE_FAMILIES
from outrider_models.training.families.eagle2 import TrainableEagle2
from outrider_models.training.train import ChatRunOptions, DrafterTask
from outrider_models.training.train import train as run_training
from outrider_models.training.validation import Validator
from outrider_proto.addresses import free_port
from outrider_proto.errors import OutriderError, UsageError

QUICK = parse_changes([
    "schedule.peak=1e-2", "schedule.last=1e-3", "schedule.warmup_updates=0", "length.batch=6", "length.epochs=1.0",
    "machine.part=3", "machine.precision=no",
    "data.held_out=1", "data.max_length=90", "validation.new_tokens=4", "validation.levels=2",
])  # fmt: skip
SMALLER = {"eagle3": ["drafter.draft_vocab=200", "drafter.steps.count=2"], "hydra": ["drafter.blocks=1"]}
SMALLER["peagle"] = ["drafter.draft_vocab=200", "drafter.layers=2"]


@pytest.fixture(scope="module")
def target(tiny_target):
    return tiny_target


@pytest.fixture(scope="module")
def chats(tmp_path_factory):
    path = tmp_path_factory.mktemp("data") / "chats.jsonl"
    samples = [sample for family in ("chat", "math") for sample in held_out(family, 12)]
    lines = [[{"role": m.role, "content": m.content} for m in sample.conversation()] for sample in samples]
    path.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in lines))
    return path


def train(family, chats, target, out, *sets, start=None, resume=False, stop=None):
    changes = merged(QUICK, parse_changes([*SMALLER.get(family, []), *sets]))
    options = ChatRunOptions(family, chats, out, str(target), changes, start and str(start))
    return run_training(options, resume=resume, console=Console(quiet=True), stop_after_updates=stop)


def log_of(directory):
    return [json.loads(line) for line in (directory / "log.jsonl").read_text().splitlines()]


@torch.no_grad()
def loss_of(run):
    """Compute the loss on all training chats, under the same masks each time."""
    torch.manual_seed(0)
    run.task.drafter.eval()
    return float(run.task.loss(make_batch(run.source.train, torch.device("cpu")), 1.0).total)


def mostly_slow(families, *fast):
    """Return the families to run a test on: those that are not named run in `make test-all` alone."""
    return [pytest.param(name, marks=[] if name in fast else pytest.mark.slow) for name in families]


@pytest.mark.parametrize("family", mostly_slow(TRAINABLE_FAMILIES, "moa", "eagle3", "hydra", "dspark", "independent"))
def test_the_loss_falls_and_the_export_drafts(family, chats, target, tmp_path):
    before = loss_of(train(family, chats, target, tmp_path / "untrained", stop=0))
    run = train(family, chats, target, tmp_path / "out", "validation.every_updates=3", "length.epochs=1.5")
    assert loss_of(run) < before
    log = log_of(tmp_path / "out")
    assert [entry["update"] for entry in log] == [3, 6]
    assert all(1 <= entry["tau"] <= 3 for entry in log)
    drafter = load_drafter(DrafterSource(str(tmp_path / "out"), run.task.drafter.options), TargetWeights.load(target))
    state = begun(drafter, [5, 6, 7], torch.zeros(2, drafter.tap.width))
    assert len(grow_tree(state, TreeShape.chain(2)).tokens) >= 1
    assert not list(tmp_path.glob("*/*.partial"))


class KilledError(Exception):
    """Stands for a kill: nothing catches it."""


@pytest.mark.parametrize(("step", "call"), [("loss", 3), ("loss", 8), ("export", 1), ("validate", 1)])
def test_a_run_killed_anywhere_comes_to_the_same_weights(step, call, chats, target, tmp_path, monkeypatch):
    """Before its first checkpoint, between two, with a checkpoint newer than its drafter, while it validates."""
    sets = ("length.batch=5", "schedule.optimizer=muon", "machine.checkpoint_updates=2", "validation.every_updates=2")
    train("moa", chats, target, tmp_path / "whole", *sets[:2])
    calls, plain = iter(range(1, 99)), getattr(DrafterTask, step)

    def killed(*arguments):
        if next(calls) == call:
            raise KilledError
        return plain(*arguments)

    monkeypatch.setattr(DrafterTask, step, killed)
    with pytest.raises(KilledError):
        train("moa", chats, target, tmp_path / "parts", *sets)
    monkeypatch.undo()
    (tmp_path / "parts" / "checkpoint.pt.1.partial").touch()
    train("moa", chats, target, tmp_path / "parts", *sets, resume=True)
    assert not list(tmp_path.glob("*/*.partial"))
    whole, parts = ((tmp_path / name / "model.safetensors").read_bytes() for name in ("whole", "parts"))
    assert whole == parts
    first, second = (log_of(tmp_path / name)[-1] for name in ("whole", "parts"))
    assert (first["loss"], first["top1"]) == (second["loss"], second["top1"])


def tensors_of(directory):
    checkpoint = Checkpoint(directory, heads_first=True)
    return {name: checkpoint.read(name) for name in checkpoint.names}


STARTING = [name for name in TRAINABLE_FAMILIES if name != "independent"]


@pytest.mark.parametrize("family", mostly_slow(STARTING, "moa", "eagle3", "dflash"))
def test_a_run_starts_from_given_weights(family, chats, target, tmp_path):
    train(family, chats, target, tmp_path / "given", "data.seed=7", stop=1)
    train(family, chats, target, tmp_path / "taken", start=tmp_path / "given", stop=0)
    train(family, chats, target, tmp_path / "fresh", stop=0)
    given, taken, fresh = (tensors_of(tmp_path / name) for name in ("given", "taken", "fresh"))
    assert given.keys() == taken.keys()
    assert all(torch.equal(given[name], taken[name]) for name in given)
    assert not all(torch.equal(given[name], fresh[name]) for name in given)  # control
    train(family, chats, target, tmp_path / "taken", start=tmp_path / "given", resume=True, stop=1)
    with pytest.raises(UsageError, match="another start"):
        train(family, chats, target, tmp_path / "taken", start=tmp_path / "fresh", resume=True)


def test_an_eagle3_head_keeps_its_draft_vocabulary(chats, target, tmp_path):
    train("eagle3", chats, target, tmp_path / "given", stop=0)
    few = tmp_path / "few.jsonl"
    few.write_text(chats.read_text().splitlines(keepends=True)[-1])
    own = train("eagle3", few, target, tmp_path / "fresh", stop=0).task.drafter
    run = train("eagle3", few, target, tmp_path / "taken", start=tmp_path / "given", stop=1)
    brought = run.task.drafter.network.draft_tokens
    assert not torch.equal(own.draft_tokens, brought)
    assert torch.equal(run.task.drafter.draft_tokens, brought)
    assert torch.equal(
        run.task.teacher.run(torch.ones(1, 2, dtype=torch.int64), TeacherRequest()).draft_tokens, brought
    )


def test_a_head_is_on_its_device_before_it_starts_from_the_target(chats, target, tmp_path, monkeypatch):
    """The target's outputs are on a GPU where there is one: no head started from them there."""
    done = []
    moved = TrainableEagle2.to
    monkeypatch.setattr(TrainableEagle2, "to", lambda self, device: done.append("moved") or moved(self, device))
    monkeypatch.setattr(TrainableEagle2, "init_from_examples", lambda self, examples: done.append("started"))
    train("eagle2", chats, target, tmp_path, "drafter.init=target", stop=0)
    assert done[:2] == ["moved", "started"]


def test_how_an_update_is_laid_out_does_not_matter(chats, target, tmp_path):
    weights = []
    for part in (1, 4, 6):
        sets = (f"machine.part={part}", "drafter.noise=0.0", "schedule.peak=1e-3", "data.held_out=0")
        run = train("eagle2", chats, target, tmp_path / str(part), *sets)
        weights.append(torch.cat([p.detach().flatten() for p in run.task.drafter.parameters()]))
    for other in weights[1:]:
        torch.testing.assert_close(other, weights[0], atol=1e-4, rtol=0)


@pytest.mark.slow
def test_two_processes_train_what_one_does(chats, target, tmp_path):
    sets = ["length.batch=5", "machine.part=2", "drafter.noise=0.0", "schedule.peak=1e-3", "validation.every_updates=2"]
    one = train("hass", chats, target, tmp_path / "one", *sets, "length.epochs=1.0")
    assert one._parallel.size == 1
    changes = merged(QUICK, parse_changes([*sets, "length.epochs=1.0"]))
    pairs = [
        f"--set={table}.{key}={json.dumps(value)}" for table, rows in changes.items() for key, value in rows.items()
    ]
    torchrun = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node=2", f"--master_port={free_port()}"]
    torchrun.append(f"--log_dir={tmp_path}")
    program = ["-m", "outrider_models.cli.app", "train", "--family=hass", f"--data={chats}", f"--target={target}"]
    subprocess.run([*torchrun, *program, f"--out={tmp_path / 'two'}", *pairs], check=True, timeout=200)
    first, second = (load_file(tmp_path / name / "model.safetensors") for name in ("one", "two"))
    for name, tensor in first.items():
        torch.testing.assert_close(second[name], tensor, atol=2e-3, rtol=0.02)  # stored in bfloat16
    assert log_of(tmp_path / "one")[-1]["tokens"] == log_of(tmp_path / "two")[-1]["tokens"]


@pytest.mark.parametrize("family", ["moa", "eagle3"])
def test_stored_features_teach_what_the_target_does(family, chats, target, tmp_path):
    weights = {}
    for name in ("no", "auto", str(tmp_path / "shared"), str(tmp_path / "shared")):
        out = tmp_path / f"out{len(weights)}"
        run = train(
            family, chats, target, out, f"machine.features={name}", "drafter.draft_vocab=200", "length.epochs=2.0"
        )
        weights[name] = torch.cat([p.detach().flatten() for p in run.task.drafter.parameters()])
    first, *others = weights.values()
    for other in others:
        torch.testing.assert_close(other, first, atol=1e-4, rtol=0)
    assert not (tmp_path / "out1" / "features").exists()  # only for that run
    files = list((tmp_path / "shared").glob("*/*/*.safetensors"))
    assert {path.name.split(".")[1] for path in files} == {*run.task.teacher.fields(run.task.drafter.teacher_request)}


FULL = {
    "features": ("outrider_models.training.core.features.save_file", OSError(28, "No space left on device"),
                 r"No space left on device.*machine.features=no"),
    "checkpoint": ("torch.save", RuntimeError("PytorchStreamWriter failed writing file"),
                   r"checkpoint cannot be written .*free some space"),
    "model": ("outrider_drafters.readers.checkpoint.save_file",
              SafetensorError("I/O error: No space left on device (os error 28)"),
              r"model cannot be written .*No space left.*free some space"),
}  # fmt: skip


@pytest.mark.parametrize("what", FULL)
def test_a_full_disk_is_one_line_and_leaves_the_last_checkpoint(what, chats, target, tmp_path, monkeypatch):
    writes, error, message = FULL[what]
    features = f"machine.features={tmp_path / 'shared' if what == 'features' else 'no'}"
    train("eagle2", chats, target, tmp_path / "out", features, stop=1 if what == "checkpoint" else 0)

    def full(*_, **__):
        raise error

    monkeypatch.setattr(writes, full)
    with pytest.raises(OutriderError, match=message):
        train("eagle2", chats, target, tmp_path / "out", features, resume=True)
    monkeypatch.undo()
    assert not list(tmp_path.glob("**/*.partial"))
    assert train("eagle2", chats, target, tmp_path / "out", features, resume=True).is_done


@pytest.mark.parametrize(
    ("change", "message"),
    [("length.batch=5", "another length"), ("drafter.tli=1", "another drafter"), ("data.seed=9", "another data")],
)
def test_another_run_is_not_resumed(change, message, chats, target, tmp_path):
    train("moa", chats, target, tmp_path, stop=1)
    with pytest.raises(UsageError, match=message):
        train("moa", chats, target, tmp_path, change, resume=True)
    train("moa", chats, target, tmp_path, "machine.part=2", resume=True, stop=1)  # that may change


def test_mistakes_are_found_before_anything_is_written(chats, target, tmp_path):
    out = tmp_path / "out"
    with pytest.raises(UsageError, match="no reply among the first 3 tokens"):
        train("moa", chats, target, out, "data.max_length=3")
    with pytest.raises(UsageError, match="no such directory"):
        train("moa", chats, "/nowhere/at/all", out)
    with pytest.raises(UsageError, match="holds no checkpoint"):
        train("moa", chats, target, out, resume=True)
    with pytest.raises(UsageError, match="family 'oracle'"):
        train("oracle", chats, target, out)
    with pytest.raises(UsageError, match="lacks tensors"):
        train("eagle2", chats, target, out, start=drafter_dir("moa"))
    with pytest.raises(UsageError, match=r"fc\.weight has shape"):
        train("eagle2", chats, target, out, start=drafter_dir("eagle2"))
    with pytest.raises(UsageError, match="in its own settings"):
        train("independent", chats, target, out, start=drafter_dir("independent"))
    assert not out.exists()


def test_features_beyond_the_limit_are_computed_again(chats, target, tmp_path):
    shared = tmp_path / "shared"
    train("eagle2", chats, target, tmp_path / "out", f"machine.features={shared}", "machine.features_gb=2e-5")
    assert 0 < sum(path.stat().st_size for path in shared.glob("**/*.safetensors")) < 40_000


def test_bf16_leaves_the_weights_themselves_wide(chats, target, tmp_path):
    run = train("moa", chats, target, tmp_path, "machine.precision=bf16", stop=1)
    assert {parameter.dtype for parameter in run.task.drafter.parameters()} == {torch.float32}
    assert run.task.teacher.embed.dtype == torch.bfloat16
    assert log_of(tmp_path)[-1]["loss"] > 0


def test_the_shipped_drafter_scores_as_in_the_benchmark():
    teacher = Teacher.load(target_dir(), torch.float32)
    tokenizer = AutoTokenizer.from_pretrained(target_dir())
    asked = [[message.as_dict() for message in held_out(family, 1)[0].messages] for family in FAMILIES[:3]]
    prompts = tokenizer.apply_chat_template(asked, add_generation_prompt=True, return_dict=False)
    found = Validator(teacher, prompts, ValidationSettings(every_updates=0, new_tokens=40, levels=4), None).validate(
        DrafterSource(str(drafter_dir("moa")))
    )
    assert 3.5 < found.tau <= 5
