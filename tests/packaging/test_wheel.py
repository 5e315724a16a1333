"""The built wheel: it holds every file of the rooms and, installed with nothing but `[client]`, answers."""

import asyncio
import os
import subprocess
import sys
import venv
import zipfile
from importlib.metadata import Distribution, distribution
from pathlib import Path

import pytest
from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from outrider_client import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters.load import load_tap
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
ROOMS = ("proto", "netsim", "drafters", "models", "server", "client", "bench")
WORDS, NEW = "Compute: 12 + 30", 12


@pytest.fixture(scope="module")
def wheel(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    # Without an isolated environment, for which the build backend would be downloaded.
    build = [sys.executable, "-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder)]
    subprocess.run(build, cwd=ROOT, check=True, capture_output=True)
    [wheel] = folder.glob("*.whl")
    return wheel


@pytest.fixture(scope="module")
def fresh(wheel, tmp_path_factory) -> Path:
    """A virtual environment with the wheel and what its extra `client` requires, linked from the environment we run in.

    Only these are linked, so that a requirement that is missing from the extra is missing here, too.
    """
    directory = tmp_path_factory.mktemp("fresh")
    venv.create(directory, symlinks=True, with_pip=False)
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--python", str(directory / "bin" / "python")]
    subprocess.run([*pip, "install", "--quiet", "--no-index", "--no-deps", str(wheel)], check=True)
    [site] = directory.glob("lib/python*/site-packages")
    [installed] = site.glob("outrider-*.dist-info")
    for found in requirements(Distribution.at(installed), {"client"}):
        for top in {Path(file).parts[0] for file in found.files or ()} - {"..", "__pycache__"}:
            if not (site / top).exists():
                (site / top).symlink_to(found.locate_file(top))
    return directory


def requirements(ours: Distribution, extras: set[str]) -> list[Distribution]:
    """Return what the extras of a distribution require, directly or not, in the versions installed here."""
    found = {"outrider": ours}
    seen: set[tuple[str, str]] = set()
    todo = [("outrider", extra) for extra in ("", *extras)]
    while todo:
        name, extra = todo.pop()
        if (name, extra) in seen:
            continue
        seen.add((name, extra))
        for requirement in map(Requirement, found[name].requires or ()):
            if requirement.marker is None or requirement.marker.evaluate({"extra": extra}):
                needed = canonicalize_name(requirement.name)
                found[needed] = found.get(needed) or distribution(needed)
                todo += [(needed, wanted) for wanted in ("", *requirement.extras)]
    return [each for name, each in found.items() if name != "outrider"]


def run(fresh: Path, *command: str) -> str:
    """Run a command of the fresh environment far from the sources, and return what it prints."""
    path = os.pathsep.join([str(fresh / "bin"), os.environ["PATH"]])
    environment = {name: value for name, value in os.environ.items() if not name.startswith(("PYTHON", "OUTRIDER"))}
    home = {"PATH": path, "HOME": str(fresh), "XDG_CACHE_HOME": str(fresh / "cache")}
    done = subprocess.run(
        [str(fresh / "bin" / command[0]), *command[1:]],
        cwd=fresh,
        env={**environment, **home},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_it_holds_every_file_of_the_rooms(wheel):
    shipped = {name for name in zipfile.ZipFile(wheel).namelist() if ".dist-info/" not in name}
    sources = {
        str(path.relative_to(ROOT / room))
        for room in ROOMS
        for path in (ROOT / room / f"outrider_{room}").rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    assert shipped == sources
    kinds = {Path(name).suffix for name in shipped}
    assert kinds >= {
        ".py",
        ".pyi",
        ".typed",
        ".proto",
        ".safetensors",
        ".json",
        ".toml",
        ".html",
        ".css",
        ".js",
        ".svg",
    }


async def test_it_answers(fresh):
    """The target's own words, through the fresh client and a server of the repository in this process."""
    models, target = LocalModels.load(ClientConfig()), Target.load(str(target_dir()))
    tokens = plain_greedy(target, models.encode(WORDS, raw=False), NEW)
    async with Server(Verifier(target, [load_tap(drafter_dir("moa"), target_dir())])) as server:
        command = ["outrider", "generate", WORDS, "--server", server.address, "--max-new-tokens", str(NEW)]
        said = await asyncio.to_thread(run, fresh, *command)
    assert models.decode(tokens).strip() in said
