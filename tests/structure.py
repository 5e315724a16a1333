"""Measures the size of the project and the structure of its rooms: `python tests/structure.py`.

Sizes are lines by room, options by command and words of documents; structure is imports and definitions.
tests/test_structure.py holds what is printed here to its bounds.
"""

import ast
import sys
import tomllib
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from functools import cache
from graphlib import CycleError, TopologicalSorter
from importlib import import_module
from pathlib import Path
from typing import Any

from typer.main import get_command

ROOT = Path(__file__).parents[1]
ROOMS = ("proto", "netsim", "drafters", "models", "server", "client", "bench", "lab")
MAX_MODULES = 15
SMALL_LINES = 60

# What no row of the table may exceed, and the goal. A bound falls with what is reached: whoever makes a room smaller
# lowers its row in the same change, and a test holds that none is loose. Only a capability raises one.
SLACK = 1.03
BOUNDS = {
    "lines: proto": (2_550, 2_300),
    "lines: netsim": (11_900, 11_500),
    "lines: drafters": (14_395, 12_500),
    "lines: models": (5_680, 5_450),
    "lines: server": (13_790, 11_500),
    "lines: client": (14_900, 13_500),
    "lines: bench": (8_325, 8_500),
    "lines: product": (71_445, 66_000),
    "lines: lab": (11_595, 11_000),
    "lines: tests": (52_580, 48_000),
    "lines: tests of the lab": (2_940, 2_700),
    "options: outrider generate": (25, 25),
    "options: outrider chat": (20, 25),
    "options: outrider gateway": (28, 30),
    "options: outrider-server serve": (29, 30),
    "options: outrider-server deploy": (9, 9),  # the file that serve takes, and eight of its own
    "options: commands of the wheel": (350, 350),
    "options: all commands": (357, 350),
    "words: documents": (49_510, 48_000),
    "lines: CHANGELOG.md": (80, 80),
    "longest line: README.md": (160, 160),
}

# Modules under SMALL_LINES lines with one importer that stay apart, each with its reason.
SMALL_ON_PURPOSE: dict[str, str] = {
    "outrider_proto.sampling_noise": "part of the protocol (docs/protocol.md)",
    "outrider_server.rayserve.routing": "imported by Ray's proxy, which must not import torch as the replica does",
    "outrider_bench.cli.app": "the entry point of outrider-bench, to which the lab's adds its own commands",
    "outrider_bench.core.energy": "the only module that knows the machine's energy counters",
    "outrider_lab.corpus.sandbox": "the only module that runs generated code",
    "outrider_client.controller.codec_choice": "one rule of its own, next to the other choices",
    "outrider_client.generation.event_emitter": "generation.py, its importer, has nearly 400 lines",
    **{
        f"outrider_netsim.impairments.{name}": "one impairment a file, composed by nesting"
        for name in (
            "corrupt",
            "delay",
            "duplicate",
            "slots",
            "loss",
            "outage",
            "queue",
            "rate",
            "sink",
            "downstream",
        )
    },
}


@dataclass(frozen=True)
class Module:
    name: str
    path: Path
    tree: ast.Module
    lines: list[str]

    @property
    def is_package(self) -> bool:
        return self.path.name == "__init__.py"

    @property
    def folder(self) -> str:
        return self.name if self.is_package else self.name.rpartition(".")[0]


@cache
def modules(rooms: tuple[str, ...] = ROOMS) -> dict[str, Module]:
    """Every module of `rooms` by its dotted name, generated stubs left out."""
    found = {}
    for room in rooms:
        for path in sorted((ROOT / room / f"outrider_{room}").rglob("*.py")):
            if "_pb2" not in path.name:
                name = ".".join(path.relative_to(ROOT / room).with_suffix("").parts).removesuffix(".__init__")
                text = path.read_text()
                found[name] = Module(name, path, ast.parse(text), text.splitlines())
    return found


def imports(module: Module, known: Mapping[str, Module]) -> set[str]:
    """The modules of `known` that `module` imports, anywhere in its text."""
    found = set()
    for node in ast.walk(module.tree):
        if isinstance(node, ast.Import):
            found |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            for alias in node.names:
                name = f"{node.module}.{alias.name}"
                found.add(name if name in known else node.module)
    return (found & known.keys()) - {module.name}


@dataclass(frozen=True)
class Structure:
    modules: dict[str, Module]
    imports: dict[str, set[str]]

    @classmethod
    def of(cls, rooms: tuple[str, ...] = ROOMS) -> "Structure":
        found = modules(rooms)
        return cls(found, {name: imports(module, found) for name, module in found.items()})

    def crowds(self) -> list[tuple[str, int]]:
        """Folders by their number of modules, the fullest first."""
        counts = Counter(module.folder for module in self.modules.values() if not module.is_package)
        return counts.most_common()

    def mutual_folders(self) -> list[tuple[str, str]]:
        """Pairs of folders of which each imports the other."""
        edges = {
            (self.modules[name].folder, self.modules[other].folder)
            for name, others in self.imports.items()
            for other in others
        }
        return sorted((a, b) for a, b in edges if a < b and (b, a) in edges)

    def circle(self) -> list[str]:
        """One circle of modules that import each other, or nothing."""
        try:
            list(TopologicalSorter(self.imports).static_order())
        except CycleError as error:
            return list(error.args[1])
        return []

    def twice(self) -> dict[str, list[str]]:
        """Public classes whose name is defined more than once, unless one of them is a Protocol."""
        places: dict[str, list[str]] = defaultdict(list)
        protocols = set()
        for module in self.modules.values():
            for node in _classes(module):
                places[node.name].append(module.name)
                if any("Protocol" in ast.dump(base) for base in node.bases):
                    protocols.add(node.name)
        return {name: found for name, found in sorted(places.items()) if len(found) > 1 and name not in protocols}

    def small(self) -> dict[str, str]:
        """Modules under SMALL_LINES lines with one importer, and that importer; those kept on purpose left out."""
        importers: dict[str, list[str]] = defaultdict(list)
        for name, others in self.imports.items():
            for other in others:
                importers[other].append(name)
        return {
            name: importers[name][0]
            for name, module in self.modules.items()
            if not module.is_package
            and len(module.lines) < SMALL_LINES
            and len(importers[name]) == 1
            and name not in SMALL_ON_PURPOSE
        }

    def comments_per_1000_lines(self) -> float:
        lines = [line.lstrip() for module in self.modules.values() for line in module.lines]
        return 1000 * sum(line.startswith("# ") for line in lines) / len(lines)


def _classes(module: Module) -> Iterator[ast.ClassDef]:
    for node in module.tree.body:
        if isinstance(node, ast.ClassDef) and not node.name.startswith("_"):
            yield node


def _num_lines(files: Iterable[Path]) -> int:
    return sum(len(path.read_text().splitlines()) for path in files if "_pb2" not in path.name)


@cache
def sizes() -> dict[str, int]:
    """Return every row of the table: those of BOUNDS, and the options of the other commands."""
    rooms = {room: _num_lines((ROOT / room / f"outrider_{room}").rglob("*.py")) for room in ROOMS}
    of_lab = _num_lines((ROOT / "lab" / "tests").rglob("*.py"))
    options = options_by_command()
    documents = [ROOT / f"{name}.md" for name in ("README", "CHANGELOG", "CONTRIBUTING", "SECURITY")]
    documents += (ROOT / "docs").rglob("*.md")
    return {
        **{f"lines: {room}": count for room, count in rooms.items()},
        "lines: product": sum(count for room, count in rooms.items() if room != "lab"),
        "lines: tests": _num_lines([ROOT / "conftest.py", *(ROOT / "tests").rglob("*.py")]) + of_lab,
        "lines: tests of the lab": of_lab,
        **{f"options: {command}": count for command, count in options.items() if count},
        "options: commands of the wheel": sum(n for name, n in options.items() if not name.startswith("outrider-lab")),
        "options: all commands": sum(options.values()),
        "words: documents": sum(len(path.read_text().split()) for path in documents),
        "lines: CHANGELOG.md": _num_lines([ROOT / "CHANGELOG.md"]),
        "longest line: README.md": max(map(len, (ROOT / "README.md").read_text().splitlines())),
    }


def options_by_command() -> dict[str, int]:
    """Count the options that `--help` shows, `--help` itself left out, of every console command and subcommand."""
    sys.path.append(str(ROOT / "lab"))  # no part of the wheel
    projects = [ROOT / "pyproject.toml", *ROOT.glob("lab/pyproject.toml")]
    scripts = [tomllib.loads(path.read_text())["project"].get("scripts", {}) for path in projects]
    counts = {}
    for name, target in sorted({name: each[name] for each in scripts for name in each}.items()):
        module = target.partition(":")[0].rpartition(".")[0] + ".app"
        for path, command in _commands(get_command(import_module(module).app), name):
            counts[path] = sum(option.param_type_name == "option" and not option.hidden for option in command.params)
    return counts


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:  # click's, or typer's copy of it
    yield path, command
    for name, each in getattr(command, "commands", {}).items():
        yield from _commands(each, f"{path} {name}")


def over() -> dict[str, tuple[int, int]]:
    """Return the rows that exceed their bounds, each with its size and bound."""
    measured = sizes()
    return {row: (measured[row], bound) for row, (bound, _) in BOUNDS.items() if measured[row] > bound}


def loose() -> dict[str, tuple[int, int]]:
    """Return the rows whose bounds are beyond their goal and lag behind what is reached, each with size and bound."""
    measured = sizes()
    rows = {row: (measured[row], bound) for row, (bound, goal) in BOUNDS.items() if bound > goal}
    return {row: (size, bound) for row, (size, bound) in rows.items() if bound > SLACK * size}


def table() -> Iterator[str]:
    yield f"{'':36}{'now':>8}{'bound':>8}{'goal':>8}"
    for row, size in sizes().items():
        bound, goal = BOUNDS.get(row, ("", ""))
        yield f"{row:36}{size:>8,}" + (f"{bound:>8,}{goal:>8,}" if row in BOUNDS else "")


def report(structure: Structure) -> Iterator[str]:
    yield from table()
    yield ""
    crowds = structure.crowds()
    folder, most = crowds[0]
    yield f"modules in the fullest folder: {most} ({folder})"
    yield from (f"  {folder}: {count}" for folder, count in crowds if count > MAX_MODULES)
    mutual = structure.mutual_folders()
    yield f"pairs of folders that import each other: {len(mutual)}"
    yield from (f"  {a} <-> {b}" for a, b in mutual)
    circle = structure.circle()
    yield f"circles of modules: {'at least 1' if circle else 0}"
    yield from ([f"  {' -> '.join(circle)}"] if circle else [])
    twice = structure.twice()
    yield f"class names defined more than once: {len(twice)}"
    yield from (f"  {name}: {', '.join(places)}" for name, places in twice.items())
    small = structure.small()
    kept = f"(kept on purpose: {len(SMALL_ON_PURPOSE)})"
    yield f"modules under {SMALL_LINES} lines with one importer: {len(small)} {kept}"
    yield from (f"  {name}, imported by {importer}" for name, importer in small.items())
    yield f"own-line comments per 1,000 lines: {structure.comments_per_1000_lines():.1f}"


if __name__ == "__main__":
    print("\n".join(report(Structure.of())))
