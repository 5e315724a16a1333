"""The example of a drafter family in a package of its own: installed, trained, served and drafting, by the commands."""

import json
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

import pytest

from outrider_client import ClientConfig, LocalModels
from outrider_drafters import TargetWeights, load_drafter
from outrider_models import held_out, target_dir
from outrider_proto.errors import UsageError
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target

from .conftest import EXAMPLES

PACKAGE = EXAMPLES / "toy_drafter"
PAGE = EXAMPLES.parent / "docs" / "writing-a-drafter.md"
WORDS, NEW = "Compute: 12 + 30", 24
MAIN = {
    "outrider": "outrider_client.cli.__main__",
    "outrider-server": "outrider_server.cli.app",
    "outrider-models": "outrider_models.cli.app",
    "outrider-bench": "outrider_bench.cli.app",
}
IN_TURN = """
import json, sys
for sys.argv[1:] in json.loads(sys.argv[1]):
    try:
        main()
    except SystemExit as end:
        assert not end.code
"""


class Installed:
    """Commands of Outrider in an environment that has the package."""

    def __init__(self, site: Path) -> None:
        path = os.pathsep.join([str(site), *filter(None, sys.path)])
        self._environment = {**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"}

    def start(self, command: str, *arguments: str) -> subprocess.Popen[str]:
        program = [sys.executable, "-c", f"from {MAIN[command]} import main; main()", *arguments]
        pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.STDOUT, "text": True}
        return subprocess.Popen(program, env=self._environment, **pipes)

    def run(self, command: str, *times: list[str]) -> str:
        """Run a command several times in one process, and return what it prints."""
        program = [sys.executable, "-c", f"from {MAIN[command]} import main{IN_TURN}", json.dumps(times)]
        run = subprocess.run(program, env=self._environment, capture_output=True, text=True, timeout=240)
        assert run.returncode == 0, run.stderr
        return run.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Installed:
    folder = tmp_path_factory.mktemp("toy")
    shutil.copytree(PACKAGE, folder / "source", ignore=shutil.ignore_patterns("__pycache__"))
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--no-build-isolation", "--target", str(folder / "site"), str(folder / "source")]
    subprocess.run(pip, check=True, capture_output=True)
    return Installed(folder / "site")


@pytest.fixture(scope="module")
def made(installed, tmp_path_factory) -> tuple[Path, Path]:
    """A drafter trained by the command on a few chats of the embedded target's corpus, and a bundle that holds it."""
    folder = tmp_path_factory.mktemp("trained")
    samples = [sample for family in ("math", "chat") for sample in held_out(family, 60)]
    chats = [[{"role": m.role, "content": m.content} for m in sample.conversation()] for sample in samples]
    data = folder / "chats.jsonl"
    data.write_text("".join(json.dumps({"messages": messages}) + "\n" for messages in chats))
    quick = ["schedule.peak=1e-2", "length.epochs=3.0", "length.batch=8", "machine.precision=no", "data.held_out=4"]
    quick += ["validation.new_tokens=24", "data.max_length=256", "drafter.steps=2"]
    settings = [argument for change in quick for argument in ("--set", change)]
    drafter, bundle = folder / "out", folder / "bundle"
    target = ("--target", str(target_dir()))
    training = ["train", "--family", "toy", "--data", str(data), "--out", str(drafter), *target, *settings]
    bundling = ["bundle", *target, "--drafter", str(drafter), "--out", str(bundle)]
    installed.run("outrider-models", training, bundling)
    return drafter, bundle


@pytest.fixture(scope="module")
def address(installed, made, tmp_path_factory):
    """A server's, which has the drafter and drafts with it where it is asked to."""
    ready = tmp_path_factory.mktemp("server") / "ready.json"
    arguments = ["--target", str(target_dir()), "--drafter", str(made[0]), "--server-draft", "--port", "0"]
    with installed.start("outrider-server", "serve", *arguments, "--ready-file", str(ready)) as server:
        deadline = time.monotonic() + 120
        while not ready.exists() and server.poll() is None and time.monotonic() < deadline:
            time.sleep(0.1)
        assert ready.exists(), server.communicate(timeout=1)[0]
        yield json.loads(ready.read_text())["address"]
        server.terminate()
        assert server.wait(60) == 0


@pytest.fixture(scope="module")
def expected() -> str:
    models = LocalModels.load(ClientConfig(drafter="none"))
    prompt = models.encode(WORDS, raw=False)
    return models.decode(tuple(plain_greedy(Target.load(str(target_dir())), prompt, NEW))).strip()


@pytest.mark.slow
def test_it_drafts_for_a_server_and_the_text_is_the_targets(installed, made, address, expected):
    """As it is, with options, and in a bundle."""
    drafter, bundle = map(str, made)
    question = ["generate", WORDS, "--server", address, "--target", str(target_dir()), "--mode", "stop-and-wait"]
    question += ["--max-new-tokens", str(NEW), "--json", "--drafter"]
    sources = (drafter, f"{drafter},strength=0.5,copy=3,draft_vocab=all", bundle)
    said = installed.run("outrider", *([*question, source] for source in sources))
    print(said)
    texts, lengths = [""], []
    for event in map(json.loads, said.splitlines()):
        if event["event"] == "committed":
            texts[-1] += event["text"]
        elif event["event"] == "finished":
            texts.append("")
            lengths.append(event["statistics"]["mean_acceptance_length"])
    assert [text.strip() for text in texts] == [expected] * 3 + [""]
    assert min(lengths) > 1.1


@pytest.mark.slow
def test_without_the_package_its_drafter_is_refused(made):
    refusal = "not a drafter directory .*OutriderToyDrafter"
    with pytest.raises(UsageError, match=refusal):
        load_drafter(made[0], TargetWeights.load(target_dir()))


@pytest.mark.parametrize(("kind", "file"), [("toml", "pyproject.toml"), ("python", "outrider_toy/drafter.py")])
def test_the_page_shows_the_package_as_it_is(kind, file):
    shown = re.search(rf"```{kind}\n(.*?)```", PAGE.read_text(), re.DOTALL)[1]
    assert shown in (PACKAGE / file).read_text()
