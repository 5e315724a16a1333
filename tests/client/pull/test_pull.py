"""`outrider pull` from a real server over gRPC: broken links, full disks, lying servers."""

from __future__ import annotations

import asyncio
import dataclasses
import errno
import hashlib
import json
import random
import shutil
import sys
from contextlib import closing, nullcontext
from pathlib import Path

import grpc
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from safetensors.torch import load_file, save_file

from outrider_client import AsyncClient, ClientConfig
from outrider_client.connection.policy import Backoff
from outrider_client.models.pulled import pulled_dir
from outrider_client.pull.partial_bundle import FOR_LOADING
from outrider_client.pull.pull import BytesPulled, FilePulled, PullConfig, PullStarted, PullWaiting, pull_bundle
from outrider_drafters.checkpoints.bundle import find_bundle
from outrider_drafters.load import load_tap
from outrider_drafters.trials.trial import BOUNDS, Bounds, Trial
from outrider_models.bundling import make_bundle
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto import verifier_pb2 as pb
from outrider_proto import verifier_pb2_grpc as stubs
from outrider_proto.bundles import BundleFile, bundle_id, manifest_from_proto, manifest_to_proto
from outrider_proto.errors import LinkError, Reason, Refusal, UsageError, Violation
from outrider_server.bundles import catalogue as server_bundles
from outrider_server.bundles.builder import BuiltBundle, read_built
from outrider_server.bundles.catalogue import EdgeBundles
from outrider_server.engine.reference_decode import plain_greedy
from outrider_server.engine.target import Target
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

from ..canaries import Relay

QUICK = Backoff(first_s=0.001, cap_s=0.002)
DRAFTERS = ("moa", "eagle2")


@pytest.fixture(scope="module")
def made(tmp_path_factory) -> dict[str, Path]:
    """Bundles of the embedded target with two drafters, by drafter name."""
    folder = tmp_path_factory.mktemp("made")
    for name in DRAFTERS:
        make_bundle(target_dir(), drafter_dir(name), "float32", folder / name)
    return {name: folder / name for name in DRAFTERS}


@pytest.fixture(scope="module")
def models():
    """The embedded target and the taps of its drafters."""
    return Target.load(str(target_dir())), [load_tap(drafter_dir(name), target_dir()) for name in DRAFTERS]


@pytest.fixture
def serve(models, made, monkeypatch):
    """A server that offers bundles built already; the server's tests cover the building."""

    async def ready_made(offer, cache) -> BuiltBundle:
        return read_built(offer, made[offer.drafter_name])

    monkeypatch.setattr(server_bundles, "build", ready_made)

    def server(port: int = 0, drafters: tuple[str, ...] = DRAFTERS) -> Server:
        sources = [str(drafter_dir(name)) for name in drafters]
        return Server(Verifier(*models), port=port, bundles=EdgeBundles(str(target_dir()), sources, ("float32",)))

    return server


def pull_config(address: str, out: Path, **changes) -> PullConfig:
    return PullConfig(address, out, **{"backoff": QUICK, "retry_s": 20.0} | changes)


def contents(directory: Path) -> dict[str, bytes]:
    return {p.relative_to(directory).as_posix(): p.read_bytes() for p in directory.rglob("*") if p.is_file()}


@pytest.fixture(scope="module")
def shared_trial():
    with closing(Trial("model", *FOR_LOADING)) as trial:
        yield trial


@pytest.fixture(autouse=True)
def one_trial_for_all(shared_trial, monkeypatch):
    """Bundles are loaded in one child, which takes seconds to start."""
    monkeypatch.setattr("outrider_client.pull.pull.Trial", lambda *args, **more: nullcontext(shared_trial))
    monkeypatch.setattr("outrider_client.pull.pull.closing", lambda trial: trial)


async def test_a_device_with_nothing_but_what_was_pulled(serve, made, models, tmp_path):
    """The directory holds the bundle byte for byte, and answers are the target's."""
    events = []
    async with serve() as server:
        pulled = await pull_bundle(pull_config(server.address, tmp_path / "device"), events.append)
        assert contents(tmp_path / "device") == contents(made["moa"])
        assert [path.name for path in tmp_path.iterdir()] == ["device"]
        started = next(e for e in events if isinstance(e, PullStarted))
        assert sum(e.count for e in events if isinstance(e, BytesPulled)) == started.size_bytes == pulled.size_bytes
        assert {e.name for e in events if isinstance(e, FilePulled)} == set(contents(made["moa"]))
        assert (pulled.changed, pulled.drafter, started.kept_bytes) == (True, "moa", 0)
        answers = []
        for target in (tmp_path / "device", None):
            config = ClientConfig(server.address, target, max_new_tokens=24, mode="stop-and-wait")
            async with AsyncClient(config) as client:
                answers.append(await client.complete("Who am I?"))
                tokens = client._models.encode("Who am I?", raw=False)
        assert answers[0].token_ids == answers[1].token_ids
        assert answers[0].statistics.mean_acceptance_length > 1.5
    assert list(answers[0].token_ids) == plain_greedy(models[0], tokens, 24)[: len(answers[0].token_ids)]


async def test_a_second_pull_downloads_nothing(serve, tmp_path):
    out = tmp_path / "new/device"
    async with serve() as server:
        await pull_bundle(pull_config(server.address, out))
        before = {path: path.stat().st_mtime_ns for path in out.rglob("*")}
        events = []
        again = await pull_bundle(pull_config(server.address, out), events.append)
    assert (events, again.changed) == ([again], False)
    assert {path: path.stat().st_mtime_ns for path in out.rglob("*")} == before


async def test_what_has_changed_is_replaced_and_the_rest_is_not_fetched(serve, made, tmp_path):
    events = []
    async with serve() as server:
        await pull_bundle(pull_config(server.address, tmp_path / "device"))
        (tmp_path / "device/tokenizer.json").write_text("spoilt")
        pulled = await pull_bundle(pull_config(server.address, tmp_path / "device", drafter="eagle2"), events.append)
    assert pulled.changed
    assert contents(tmp_path / "device") == contents(made["eagle2"])
    assert [path.name for path in tmp_path.iterdir()] == ["device"]
    fetched = {event.name for event in events if isinstance(event, FilePulled)}
    assert "model.safetensors" not in fetched
    assert {"tokenizer.json", "drafter/model.safetensors"} <= fetched


async def test_an_interrupted_pull_resumes(serve, made, tmp_path):
    """Each byte is downloaded about once, over dozens of connections."""
    generator, events = random.Random(1), []
    async with serve() as server, Relay(server.address) as relay:

        def cut_often(event) -> None:
            events.append(event)
            if isinstance(event, BytesPulled) and generator.random() < 0.3:
                relay.cut()

        await pull_bundle(pull_config(relay.address, tmp_path / "device"), cut_often)
    assert contents(tmp_path / "device") == contents(made["moa"])
    total = sum(map(len, contents(made["moa"]).values()))
    assert sum(event.count for event in events if isinstance(event, BytesPulled)) == total
    assert sum(isinstance(event, PullWaiting) for event in events) > 5
    assert any(isinstance(event, PullStarted) and event.kept_bytes for event in events)


async def test_concurrent_pulls_into_one_place(serve, made, tmp_path):
    async with serve() as server:
        refused = []

        async def into_one() -> None:
            try:
                await pull_bundle(pull_config(server.address, tmp_path / "one"))
            except UsageError as error:
                refused.append(str(error))

        await asyncio.gather(*(into_one() for _ in range(3)))
        assert len(refused) == 2
        assert all("another pull into it is in progress" in message for message in refused)
        assert contents(tmp_path / "one") == contents(made["moa"])


class Liar(stubs.BundlesServicer, stubs.VerifierServicer):
    """A server with scripted replies."""

    def __init__(self, description: pb.Description, manifest: pb.BundleManifest, directory: Path) -> None:
        self.description = description
        self.manifest = manifest
        self.directory = directory
        self.spoil = lambda name, data: data
        self.num_fetches = 0

    async def Describe(self, request, context) -> pb.Description:
        return self.description

    async def Manifest(self, request, context) -> pb.BundleManifest:
        return self.manifest

    async def Fetch(self, request, context):
        self.num_fetches += 1
        data = (self.directory / request.name).read_bytes()[request.offset :]
        for start in range(0, len(data), 65536):
            yield pb.Chunk(data=self.spoil(request.name, data[start : start + 65536]))


@pytest.fixture
async def liar(made, models):
    """The lying server and its address. Honest until a test changes it."""
    offer = server_bundles.BundleOffer(str(target_dir()), str(drafter_dir("moa")), "float32")
    manifest = manifest_to_proto(read_built(offer, made["moa"]).manifest)
    async with Server(Verifier(*models)) as server, grpc.aio.insecure_channel(server.address) as channel:
        description = await stubs.VerifierStub(channel).Describe(pb.DescribeRequest())
    liar = Liar(description, manifest, made["moa"])
    server = grpc.aio.server()
    stubs.add_BundlesServicer_to_server(liar, server)
    stubs.add_VerifierServicer_to_server(liar, server)
    port = server.add_insecure_port("127.0.0.1:0")
    await server.start()
    yield liar, f"127.0.0.1:{port}"
    await server.stop(None)


async def test_a_corrupted_chunk_is_fetched_again(liar, made, tmp_path):
    server, address = liar
    spoilt = []

    def spoil(name: str, data: bytes) -> bytes:
        if name != "model.safetensors" or spoilt:
            return data
        spoilt.append(name)
        return bytes([data[0] ^ 1]) + data[1:]

    server.spoil = spoil
    await pull_bundle(pull_config(address, tmp_path / "device"))
    assert contents(tmp_path / "device") == contents(made["moa"])
    assert server.num_fetches == len(server.manifest.files) + 1


def cut_to(times: float):
    return lambda name, data: (data * 5)[: int(len(data) * times)]


@pytest.mark.parametrize(
    ("spoil", "error", "message"),
    [
        (
            lambda name, data: data[:-1] + b"x" if name.startswith("drafter/m") else data,
            Violation,
            r"drafter/model\.safetensors: its bytes do not match its checksum, twice",
        ),
        *((cut_to(times), Violation, "more than it declared") for times in (0, 1.1, 5)),
        (lambda name, data: data[:100], LinkError, r"ended .* too early"),
    ],
)
async def test_other_bytes_are_refused_and_the_old_bundle_stays(liar, made, tmp_path, spoil, error, message):
    shutil.copytree(made["eagle2"], tmp_path / "device")
    liar[0].spoil = spoil
    with pytest.raises(error, match=message):
        await pull_bundle(pull_config(liar[1], tmp_path / "device", retry_s=0.0))
    assert contents(tmp_path / "device") == contents(made["eagle2"])


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("target_fingerprint", "0", "has target_fingerprint 0, the server itself"),
        ("tokenizer_fingerprint", "none", "has tokenizer_fingerprint none"),
        ("tap", "moa:0", "needs features moa:0, which the server does not offer"),
        ("bundle_id", "0" * 64, "claims the id"),
        ("tap", "", "not the one in its manifest"),
    ],
)
async def test_a_manifest_that_does_not_fit(liar, tmp_path, name, value, message):
    server, address = liar
    setattr(server.manifest, name, value)
    with pytest.raises(Violation, match=message):
        await pull_bundle(pull_config(address, tmp_path / "device"))
    assert not (tmp_path / "device").exists()


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("drafter", "/etc", "a drafter outside of it: '/etc'"),
        ("options", {"unknown": 1}, "cannot be used"),
        ("target_fingerprint", "0", "not the one in its manifest"),
        ("sizes", {"vocab": 10**12}, "its tensors hold 2048 rows"),
        ("files", {}, "not the one in its manifest"),
    ],
)
async def test_a_bundle_that_differs_from_its_manifest(liar, made, tmp_path, name, value, message):
    """The files match the manifest's digests, but form no bundle that a client may load."""
    server, address = liar
    shutil.copytree(made["moa"], tmp_path / "served")
    path = tmp_path / "served/bundle.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {name: value}))
    manifest = manifest_from_proto(server.manifest)
    marked = BundleFile("bundle.json", path.stat().st_size, hashlib.sha256(path.read_bytes()).digest())
    files = tuple(marked if file.name == "bundle.json" else file for file in manifest.files)
    server.manifest = manifest_to_proto(dataclasses.replace(manifest, files=files))
    server.directory = tmp_path / "served"
    with pytest.raises(Violation, match=message):
        await pull_bundle(pull_config(address, tmp_path / "device"))
    assert not (tmp_path / "device").exists()


def with_bad_config(served: Path) -> None:
    path = served / "drafter/config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | {"rms_norm_eps": "x"}))


def with_nan(served: Path) -> None:
    tensors = load_file(served / "drafter/model.safetensors")
    next(iter(tensors.values())).view(-1)[0] = float("nan")
    save_file(tensors, served / "drafter/model.safetensors", metadata={"format": "pt"})


@pytest.mark.parametrize(
    ("spoil", "message"),
    [
        (with_bad_config, "rms_norm_eps=x: need a positive number"),
        (with_nan, "holds values that are no numbers"),
        (lambda served: (served / "tokenizer.json").write_text("{}"), "tokenizer"),
    ],
)
async def test_a_bundle_that_cannot_be_loaded_does_not_take_its_place(liar, made, tmp_path, spoil, message):
    """It forms a bundle and matches its manifest; the one before it stays."""
    server, address = liar
    shutil.copytree(made["moa"], tmp_path / "served")
    shutil.copytree(made["eagle2"], tmp_path / "device")
    spoil(tmp_path / "served")
    (tmp_path / "served/bundle.json").unlink()
    find_bundle(made["moa"]).write(tmp_path / "served")
    files = tuple(
        BundleFile(
            file.name, len(data := (tmp_path / "served" / file.name).read_bytes()), hashlib.sha256(data).digest()
        )
        for file in manifest_from_proto(server.manifest).files
    )
    server.manifest = manifest_to_proto(dataclasses.replace(manifest_from_proto(server.manifest), files=files))
    server.directory = tmp_path / "served"
    with pytest.raises(Violation, match=f"cannot be used: .*{message}") as told:
        await pull_bundle(pull_config(address, tmp_path / "device"))
    assert "\n" not in str(told.value)
    assert contents(tmp_path / "device") == contents(made["eagle2"])


@pytest.mark.parametrize(
    ("executable", "message"),
    [(sys.executable, "takes more than 0.1 s"), ("/nowhere/python", "no process can be started to try it in")],
)
async def test_a_device_that_cannot_try_a_bundle_does_not_blame_the_server(
    serve, made, tmp_path, monkeypatch, executable, message
):
    monkeypatch.setitem(BOUNDS, "model", Bounds(0.1, 4096))
    monkeypatch.setattr(sys, "executable", executable)
    async with serve() as server:
        with closing(Trial("model")) as trial:
            monkeypatch.setattr("outrider_client.pull.pull.Trial", lambda *args, **more: nullcontext(trial))
            with pytest.raises(UsageError, match=f"cannot be loaded on this device within bounds: .*{message}"):
                await pull_bundle(pull_config(server.address, tmp_path / "device"))
        assert contents(tmp_path / "device.part") == contents(made["moa"])  # kept


@pytest.mark.parametrize("target", ["/dev/zero", "elsewhere", "config.json", "nowhere"])
def test_a_bundle_on_this_device_holds_no_links(made, tmp_path, target):
    shutil.copytree(made["moa"], tmp_path / "device")
    (tmp_path / "elsewhere").write_text("{}")
    (tmp_path / "device/drafter/draft_vocab.json").symlink_to(tmp_path / target)
    with pytest.raises(UsageError, match=r"draft_vocab\.json: a link or a device"):
        find_bundle(tmp_path / "device")


HOSTILE = st.sampled_from([
    "../x", "/tmp/x", "..", "drafter/../../x", ".x", "drafter", "C:\\x", "x\0", "tokenizer/../../x", "a" * 5000,
    "bundle.json", "tokenizer.json.part",
])  # fmt: skip


@given(name=HOSTILE | st.text(max_size=30), size=st.integers(0, 2**64 - 1), data=st.binary(max_size=40))
@settings(max_examples=40, suppress_health_check=[HealthCheck.function_scoped_fixture])
async def test_hostile_manifests_write_nothing(liar, tmp_path, name, size, data):
    """A manifest with one file too many is refused before any download."""
    server, address = liar
    message = pb.BundleManifest.FromString(server.manifest.SerializeToString())
    message.files.append(pb.BundleFile(name=name, size_bytes=size, sha256=data))
    message.bundle_id = bundle_id(message.files)
    honest, server.manifest = server.manifest, message
    try:
        with pytest.raises(Refusal):
            await pull_bundle(pull_config(address, tmp_path / "deep/device", retry_s=0.0))
    finally:
        server.manifest = honest
    assert server.num_fetches == 0
    assert contents(tmp_path) == {}


async def test_a_file_size_limit_stands_for_a_full_disk(serve, made, tmp_path, room_for):
    """At the system's own limit: what fits is kept, the message says so, and the next pull gets the rest."""
    out = tmp_path / "device"
    message = r"File too large; [\d,]+ bytes are kept in .*: make room and pull again"
    async with serve() as server:
        with room_for(700_000), pytest.raises(UsageError, match=message):
            await pull_bundle(pull_config(server.address, out))
        assert len(contents(tmp_path / "device.part")["drafter/model.safetensors.part"]) == 700_000
        await pull_bundle(pull_config(server.address, out))
    assert contents(out) == contents(made["moa"])


@pytest.mark.parametrize("there", ["file", "directory"])
async def test_other_files_are_never_replaced(tmp_path, there):
    out = tmp_path / "mine"
    if there == "file":
        out.write_text("mine")
    else:
        out.mkdir()
        (out / "letter").write_text("mine")
    with pytest.raises(UsageError, match="mine: "):
        await pull_bundle(pull_config("127.0.0.1:1", out))
    assert list(contents(tmp_path).values()) == [b"mine"]


async def test_a_reader_of_the_progress_who_goes_is_no_full_disk(serve, tmp_path):
    def gone(event) -> None:
        raise BrokenPipeError(errno.EPIPE, "Broken pipe")

    async with serve() as server:
        with pytest.raises(BrokenPipeError):
            await pull_bundle(pull_config(server.address, tmp_path / "device"), gone)


@pytest.fixture
def command(monkeypatch, command_line, tmp_path):
    monkeypatch.setenv("XDG_DATA_HOME", str(tmp_path / "data"))
    return lambda *arguments: asyncio.to_thread(command_line, *arguments)


async def test_the_command(serve, command, tmp_path, models):
    """Pull twice, then generate without naming a target."""
    async with serve() as server:
        code, out, err = await command("pull", server.address)
        assert (code, err) == (0, "")
        assert "bytes, drafter moa, float32, for target target (" in out
        assert f"use it with: outrider generate --server {server.address} PROMPT" in out
        code, out, err = await command("pull", server.address)
        assert (code, "nothing to download" in out) == (0, True)
        code, out, _ = await command("pull", server.address, "--json", "--drafter", "eagle2")
        events = [json.loads(line) for line in out.splitlines()]
        assert code == 0
        assert {event["event"] for event in events} == {"pull_started", "file_pulled", "bundle_tried", "pulled"}
        assert (events[-1]["event"], events[-1]["changed"], events[-1]["drafter"]) == ("pulled", True, "eagle2")
        generate = ("generate", "Who am I?", "--server", server.address, "--json", "--max-new-tokens", "12")
        code, out, err = await command(*generate, "--mode", "stop-and-wait")
        assert (code, err) == (0, "")
        assert len(json.loads(out.splitlines()[-1])["token_ids"]) > 3
        assert find_bundle(pulled_dir(server.address)).options["family"] == "eagle2"
        code, _, err = await command("pull", server.address, "--weights", "int4")
        assert (code, "drafter moa, eagle2 and weights float32" in err) == (3, True)
        code, _, err = await command("pull", server.address, "--out", str(Path(__file__)))
        assert (code, "a file; name a directory" in err) == (2, True)


async def test_a_server_without_bundles(models, tmp_path):
    async with Server(Verifier(*models)) as server:
        with pytest.raises(Refusal, match="serves no edge bundles") as refused:
            await pull_bundle(pull_config(server.address, tmp_path / "device"))
    assert refused.value.reason is Reason.NO_BUNDLE
    assert list(tmp_path.iterdir()) == []
