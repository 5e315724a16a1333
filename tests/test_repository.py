"""What holds for the repository as a whole: extras, typing, names, versions, the README's length."""

import re
import tomllib
from importlib import import_module
from importlib.metadata import metadata, version
from pathlib import Path

import pytest
import yaml

RUFF_HOOKS = "https://github.com/astral-sh/ruff-pre-commit"
ROOT = Path(__file__).parent.parent
ROOMS = ("proto", "netsim", "drafters", "models", "server", "client", "bench")  # those that ship; the lab is above them
PROJECT = tomllib.loads((ROOT / "pyproject.toml").read_text())
EXTRAS = PROJECT["project"]["optional-dependencies"]
PAGES = [*ROOT.glob("*.md"), *sorted(ROOT.glob("docs/**/*.md")), *sorted(ROOT.glob("*/README.md"))]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_is_a_typed_package_that_ships(room):
    package = f"{room}/outrider_{room}"
    assert (ROOT / package / "py.typed").is_file()
    assert package in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"]
    assert Path(import_module(f"outrider_{room}").__file__).parent == ROOT / package


def test_the_lab_is_a_typed_package_that_does_not_ship():
    assert (ROOT / "lab" / "outrider_lab" / "py.typed").is_file()
    assert not [place for place in PROJECT["tool"]["hatch"]["build"]["targets"]["wheel"]["packages"] if "lab" in place]
    lab = tomllib.loads((ROOT / "lab" / "pyproject.toml").read_text())["project"]
    assert lab["version"] == PROJECT["project"]["version"]


@pytest.mark.parametrize("room", ROOMS)
def test_every_room_has_an_extra_or_needs_no_more_than_the_base(room):
    assert room in EXTRAS or room == "proto"


def test_an_edge_device_installs_nothing_of_the_server():
    names = {re.split(r"[\[<>=]", requirement)[0] for requirement in EXTRAS["client"]}
    assert "outrider[server]" not in EXTRAS["client"]
    assert not names & {"grpcio-health-checking", "grpcio-reflection", "pyroute2", "ray"}


@pytest.mark.parametrize("room", [*ROOMS, "lab"])
def test_the_bare_folder_names_are_banned(room):
    banned = PROJECT["tool"]["ruff"]["lint"]["flake8-tidy-imports"]["banned-api"]
    assert banned[room]["msg"] == f"import outrider_{room}"


def test_no_file_imports_a_folder():
    bare = re.compile(rf"^\s*(?:from|import) ({'|'.join((*ROOMS, 'lab'))})\b", re.MULTILINE)
    sources = [path for top in (*ROOMS, "lab", "tests", "examples") for path in (ROOT / top).rglob("*.py")]
    assert not [str(path) for path in sources if bare.search(path.read_text())]


# Beside outrider_proto.files: what our own processes and the checkout hold, and texts that are no files.
UNBOUNDED = {
    "netsim/outrider_netsim/namespaces/namespaces.py": "answers of a helper process of ours",
    "netsim/outrider_netsim/namespaces/namespace_holder.py": "requests to that helper",
    "netsim/outrider_netsim/probe/ends.py": "the answer of a worker of ours",
    "netsim/outrider_netsim/probe/worker.py": "the request to it",
    "netsim/outrider_netsim/cli/control.py": "a socket that only this user can open",
    "netsim/outrider_netsim/cli/link_controls.py": "the profile that this process has written itself",
    "netsim/outrider_netsim/profiles/trace_files.py": "unpacked and read by line, within bounds of its own",
    "drafters/outrider_drafters/trials/child.py": "requests to a child of ours",
    "drafters/outrider_drafters/trials/trial.py": "answers of that child, of bounded length",
    "client/outrider_client/models/tokenizer.py": "what the library tokenizers writes of its own parts",
    "models/outrider_models/core/held_out.py": "prompts that ship",
    "server/outrider_server/rayserve/launch.py": "what Ray on this machine says of its routes",
    "server/outrider_server/rayserve/ingress.py": "settings that the launcher has written",
    "client/outrider_client/cli/chat/own_server.py": "the ready file of a server of ours",
    "bench/outrider_bench/core/processes.py": "the ready file of a server of ours",
    "lab/outrider_lab/peers/runner.py": "the job of a command of ours",
    "lab/outrider_lab/corpus/sandbox_main.py": "the request to a child of ours",
    "models/outrider_models/training/checkpoint.py": "settings of this run, through JSON and back",
    "bench/outrider_bench/harness/study.py": "settings of this run, through JSON and back",
    "bench/outrider_bench/harness/runner.py": "the report of this run, through JSON and back",
    "bench/outrider_bench/network/plan.py": "settings of this run, through JSON and back",
    "lab/outrider_lab/spec/plan.py": "settings of this run, through JSON and back",
    "client/outrider_client/gateway/middleware.py": "a body whose size is bounded",
    "client/outrider_client/privacy/fences.py": "JSON in a body, whose size is bounded",
    "client/outrider_client/models/control_tokens.py": "a tokenizer that is loaded already",
    "client/outrider_client/core/gateway_parameters.py": "a part of a body whose size is bounded",
    "client/outrider_client/text/tool_calls.py": "text of an answer or a body, whose sizes are bounded",
    "drafters/outrider_drafters/contracts/schema_grammar.py": "a schema whose length is bounded",
}
_PARSED = re.compile(
    r"\b(?:json|tomllib)\.loads?\b|\b(?:gzip|lzma|bz2)\.(?:open|decompress|GzipFile)\b|\bpickle\.loads?\b"
)


def test_files_of_strangers_have_one_reader():
    """Else a file that is deep, huge, a device or a bomb gets in: read it with outrider_proto.files."""
    sources = [path for room in (*ROOMS, "lab") for path in (ROOT / room).glob(f"outrider_{room}/**/*.py")]
    found = {str(path.relative_to(ROOT)) for path in sources if _PARSED.search(path.read_text())}
    assert found - {"proto/outrider_proto/files.py"} == UNBOUNDED.keys()


def test_the_installed_version_is_that_of_the_sources():
    assert version("outrider") == PROJECT["project"]["version"]
    assert metadata("outrider")["License-Expression"] == "Apache-2.0"


@pytest.mark.parametrize("command", PROJECT["project"]["scripts"])
def test_every_console_command_exists(command):
    module, _, function = PROJECT["project"]["scripts"][command].partition(":")
    assert callable(getattr(import_module(module), function))


def test_every_direct_dependency_is_pinned():
    pinned = set(re.findall(r"^([\w-]+)==", (ROOT / "constraints.txt").read_text(), re.MULTILINE))
    needed = {
        re.split(r"[<>=\[]", requirement)[0]
        for requirements in (PROJECT["project"]["dependencies"], *EXTRAS.values())
        for requirement in requirements
        if not requirement.startswith("outrider[")
    }
    assert needed <= pinned


def test_hooks_run_the_pinned_ruff():
    pinned = re.search(r"^ruff==(\S+)", (ROOT / "constraints.txt").read_text(), re.MULTILINE)[1]
    hooks = yaml.safe_load((ROOT / ".pre-commit-config.yaml").read_text())
    assert {repo["repo"]: repo["rev"] for repo in hooks["repos"]}[RUFF_HOOKS] == f"v{pinned}"


def test_continuous_integration_runs_what_contributors_run():
    jobs = yaml.safe_load((ROOT / ".github" / "workflows" / "ci.yml").read_text())["jobs"]
    commands = [step.get("run") for step in jobs["check"]["steps"]]
    assert {"make lint", "make test-all"} <= set(commands)
    assert (ROOT / ".ci" / "run").read_text().endswith("\nmake lint\nmake test-all\n")
    oldest = PROJECT["project"]["requires-python"].removeprefix(">=")
    assert oldest in jobs["check"]["strategy"]["matrix"]["python"]


@pytest.mark.parametrize("page", PAGES, ids=lambda path: str(path.relative_to(ROOT)))
def test_links_between_documents_lead_somewhere(page):
    broken = []
    for link in re.findall(r"\]\(([^)\s]+)\)", re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)):
        file, _, heading = link.partition("#")
        path = page.parent / file if file else page
        if "://" not in link and not (path.exists() and (not heading or heading in headings(path))):
            broken.append(link)
    assert broken == []


def headings(page: Path) -> set[str]:
    """Return the headings of a Markdown file as links name them."""
    text = re.sub(r"```.*?```", "", page.read_text(), flags=re.DOTALL)
    titles = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", title.lower()).replace(" ", "-") for title in titles}


def test_the_readme_stays_short():
    assert 0 < len((ROOT / "README.md").read_text().splitlines()) < 200


def test_the_generated_stubs_need_no_more_than_the_floors_we_state():
    requirements = PROJECT["project"]["dependencies"] + EXTRAS["server"] + EXTRAS["client"]
    stubs = ROOT / "proto" / "outrider_proto"
    protobuf = re.search(r"Protobuf Python Version: ([\d.]+)", (stubs / "verifier_pb2.py").read_text())[1]
    grpcio = re.search(r"GRPC_GENERATED_VERSION = '([\d.]+)'", (stubs / "verifier_pb2_grpc.py").read_text())[1]
    floors = {name: floor for name, _, floor in (requirement.partition(">=") for requirement in requirements)}
    assert floors["protobuf"] == protobuf
    assert floors["grpcio"] == grpcio
