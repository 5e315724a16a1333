"""Families of installed packages: found when needed, asked in order, and no trouble to anybody when broken."""

import json
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file

from outrider_drafters import TargetWeights, load, load_drafter
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.families.family import Family
from outrider_drafters.plug_ins import PlugIns
from outrider_proto.errors import UsageError

FAMILY = """
from dataclasses import replace
from outrider_drafters.families.lookup.family import FAMILY as LOOKUP

def family(name, **changes):
    return replace(LOOKUP, name=name, **changes)
"""


class Site:
    """A directory on the path, and what packages in it add to `outrider.drafters`."""

    def __init__(self, path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.path = path
        self._monkeypatch = monkeypatch
        monkeypatch.syspath_prepend(path)
        monkeypatch.setenv("PYTHONPATH", str(path), prepend=":")
        (path / "made_for_tests.py").write_text(FAMILY)
        monkeypatch.delitem(sys.modules, "made_for_tests", raising=False)

    def install(self, package: str, name: str, code: str, value: str | None = None) -> None:
        """Install a package with one module, in whose code `family` makes a family like lookup."""
        module = package.replace("-", "_")
        (self.path / f"{module}.py").write_text(f"from made_for_tests import family\n{code}\n")
        info = self.path / f"{module}-1.0.dist-info"
        info.mkdir()
        (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
        (info / "entry_points.txt").write_text(f"[outrider.drafters]\n{name} = {value or f'{module}:FAMILY'}\n")
        self._monkeypatch.delitem(sys.modules, module, raising=False)
        own = [family.name for family in load.FAMILIES]
        self._monkeypatch.setattr(load, "PLUG_INS", PlugIns("outrider.drafters", Family, lambda: own))

    def imported(self, package: str) -> bool:
        return package.replace("-", "_") in sys.modules


@pytest.fixture
def site(tmp_path, monkeypatch):
    path = tmp_path / "site"
    path.mkdir()
    return Site(path, monkeypatch)


@pytest.fixture
def target(golden):
    return TargetWeights.load(golden / "target_tiny")


@pytest.fixture
def directory(tmp_path):
    """A drafter that no family of Outrider knows."""
    place = tmp_path / "drafter"
    place.mkdir()
    save_file({"odd.weight": torch.zeros(2, 2)}, place / "model.safetensors")
    (place / "config.json").write_text(json.dumps({"kind": "odd"}))
    return place


RECOGNIZES = "needs_files=True, recognizes=lambda files: files.config.get('kind') == 'odd'"


def opened(source):
    return load.open_drafter(DrafterSource.parse(str(source)))[0].name


def test_a_family_without_files_is_chosen_by_its_name(site, target):
    site.install("odd-drafter", "odd", "FAMILY = family('odd')")
    assert not site.imported("odd-drafter")
    assert opened("lookup") == "lookup"
    assert not site.imported("odd-drafter")
    assert opened("odd") == "odd"
    assert load_drafter("odd,ngram=2", target).ngram == 2


def test_a_directory_is_the_first_familys_that_recognizes_it(site, directory):
    site.install("odd-drafter", "odd", f"FAMILY = family('odd', {RECOGNIZES})")
    assert opened(directory) == "odd"
    site.install("even-drafter", "even", f"FAMILY = family('even', {RECOGNIZES})")
    assert opened(directory) == "even"
    assert opened(f"{directory},family=odd") == "odd"


def test_packages_are_asked_before_outriders_own(site, golden):
    drafter = golden / "eagle2_llama" / "drafter"
    assert opened(drafter) == "eagle2"
    site.install(
        "greedy-drafter", "greedy", "FAMILY = family('greedy', needs_files=True, recognizes=lambda files: True)"
    )
    assert opened(drafter) == "greedy"


BROKEN = {
    "raise RuntimeError('no luck\\ntoday')": r"cannot be loaded \(RuntimeError: no luck today\)",
    "FAMILY = family('odd', no_such_field=1)": r"cannot be loaded \(TypeError.*no_such_field",
    "FAMILY = family('even')": "is called even: need the entry point's name",
    "FAMILY = family('odd', options=('depth',))": "option depth: need a DrafterOption, or draft_vocab",
    "FAMILY = family('odd', options=('ddtree', 'ddtree'))": "option ddtree: declared already",
    "from outrider_drafters import DrafterOption as Option\n"
    "FAMILY = family('odd', options=(Option.switch('copy', ''),))": "option copy: declared already, need another name",
}


@pytest.mark.parametrize("code", list(BROKEN))
def test_a_broken_package_costs_a_warning_and_its_own_family(site, code, golden, caplog):
    site.install("odd-drafter", "odd", code)
    for _ in range(2):
        assert opened(golden / "eagle2_llama" / "drafter") == "eagle2"
    (warning,) = caplog.messages
    assert warning.startswith("family odd of package odd-drafter 1.0: ")
    assert warning.endswith(": not used")
    for source in ("odd", f"{golden}/eagle2_llama/drafter,family=odd"):
        with pytest.raises(UsageError, match=f"family odd of package odd-drafter 1.0: .*{BROKEN[code]}"):
            opened(source)


def test_a_name_of_outriders_own_is_refused(site, golden, caplog):
    site.install("odd-drafter", "eagle2", "FAMILY = family('eagle2')")
    assert opened(golden / "eagle2_llama" / "drafter") == "eagle2"
    assert caplog.messages == [
        "family eagle2 of package odd-drafter 1.0: the name is that of a family of Outrider: not used"
    ]
    assert not site.imported("odd-drafter")


def test_a_name_that_two_packages_want_is_given_to_neither(site, golden, caplog):
    site.install("odd-drafter", "odd", "FAMILY = family('odd')")
    site.install("other-drafter", "odd", "FAMILY = family('odd')")
    assert opened(golden / "eagle2_llama" / "drafter") == "eagle2"
    refusal = "odd-drafter 1.0 and other-drafter 1.0: only one may have this name"
    assert len(caplog.messages) == 1
    assert refusal in caplog.messages[0] or "other-drafter 1.0 and odd-drafter 1.0: only one" in caplog.messages[0]
    with pytest.raises(UsageError, match="only one may have this name"):
        opened("odd")


def test_what_its_code_raises_names_the_package(site, directory, golden, target, caplog):
    site.install("odd-drafter", "odd", "FAMILY = family('odd', needs_files=True, recognizes=lambda files: 1 / 0)")
    assert opened(golden / "eagle2_llama" / "drafter") == "eagle2"
    assert caplog.messages == ["family odd of package odd-drafter 1.0: ZeroDivisionError: division by zero: not used"]
    with pytest.raises(UsageError, match=r"odd-drafter 1\.0: ZeroDivisionError: division by zero"):
        opened(f"{directory},family=odd")
    site.install("bad-drafter", "bad", "FAMILY = family('bad', drafter=lambda files, target: {}['weights'])")
    with pytest.raises(UsageError, match=r"^family bad of package bad-drafter 1\.0: KeyError: 'weights'$") as raised:
        load_drafter("bad", target)
    assert isinstance(raised.value.__cause__, KeyError)


def test_a_family_declares_options_of_its_own(site, target):
    code = """
from outrider_drafters import DrafterOption
WIDTH = DrafterOption.whole("width", "how wide it is", least=2, most=9)
def load(files, target):
    from outrider_drafters import LookupDrafter
    return LookupDrafter(target.sizes.vocab, files.options.get(WIDTH) or 4)
FAMILY = family("odd", drafter=load, options=(WIDTH,), offline="goes on")
"""
    site.install("odd-drafter", "odd", code)
    assert load_drafter("odd,width=7", target).ngram == 7
    assert load_drafter("odd,width=7,copy=2", target).inner.ngram == 7
    with pytest.raises(UsageError, match=r"odd: drafter option 'width=10': need a whole number from 2 to 9"):
        load_drafter("odd,width=10", target)
    with pytest.raises(UsageError, match=r"odd: option depth: family odd takes width \(.* 2 to 9\), copy"):
        load_drafter("odd,depth=1", target)
