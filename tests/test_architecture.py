"""docs/architecture.md names files, functions, packages and layers: all of them exist, and none is left out."""

import ast
import re
import tomllib

import pytest

from .structure import ROOMS, ROOT, modules

PAGE = (ROOT / "docs" / "architecture.md").read_text()
LINKS = re.findall(r"\]\(([^)#]+)[^)]*\)", PAGE)
NAMED = re.findall(r"\]\((\.\./[^)]+\.py)\) `([\w.]+)`", PAGE)
CONTRACTS = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["importlinter"]["contracts"]


@pytest.mark.parametrize("link", sorted({link for link in LINKS if "://" not in link}))
def test_what_it_links_to_exists(link):
    assert (ROOT / "docs" / link).exists()


@pytest.mark.parametrize(("file", "name"), NAMED)
def test_what_it_names_is_defined_there(file, name):
    owner, _, member = name.partition(".")
    definitions = (ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    tree = ast.parse((ROOT / "docs" / file).read_text())
    found = [node for node in ast.walk(tree) if isinstance(node, definitions) and node.name == owner]
    assert found
    assert not member or any(isinstance(node, definitions) and node.name == member for node in ast.walk(found[0]))


@pytest.mark.parametrize("room", ROOMS)
def test_its_layers_are_those_that_lint_holds(room):
    row = re.search(rf"^\| {room} \| (.+) \|$", PAGE, re.MULTILINE)[1]
    (contract,) = (contract for contract in CONTRACTS if contract.get("containers") == [f"outrider_{room}"])
    stated = [re.findall(r"`(\w+)`", layer) for layer in row.split(" > ")]
    held = [layer.split(" | ") for layer in contract["layers"]]
    assert [sorted(layer) for layer in stated] == [sorted(layer) for layer in held]


def test_it_has_a_line_for_every_package():
    packages = {module.name for module in modules().values() if module.is_package}
    listed = set(re.findall(r"^\| `(outrider_[\w.]+)` \|", PAGE, re.MULTILINE))
    assert packages == listed
