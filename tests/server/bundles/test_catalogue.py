"""Edge bundles from the server: made once, kept, handed out by name, to slow readers too, beside verification."""

import asyncio
import hashlib
import os
import resource
import shutil
import signal
from contextlib import asynccontextmanager
from pathlib import Path

import grpc
import pytest
from talk import PROMPT, TAP, calling, refused
from tiny_targets import target

from outrider_drafters.checkpoints.bundle import find_bundle
from outrider_drafters.checkpoints.draft_vocabulary import write_draft_vocab
from outrider_proto import verifier_pb2 as pb
from outrider_proto import verifier_pb2_grpc as stubs
from outrider_proto.bundles import CHUNK_BYTES, manifest_from_proto
from outrider_proto.errors import Reason, Refusal
from outrider_proto.status import error_from_rpc
from outrider_proto.tree import DraftTree
from outrider_server.bundles import catalogue as bundles_module
from outrider_server.bundles.builder import BundleOffer, cache_key
from outrider_server.bundles.catalogue import MAX_FETCHES, EdgeBundles
from outrider_server.rpc.server import Server
from outrider_server.sessions.verifier import Verifier

PADDING_BYTES = 64 * 2**20


@pytest.fixture(scope="module")
def pair() -> tuple[str, str]:
    """A target's and a drafter's directory."""
    golden = Path(__file__).parents[2] / "data" / "golden"
    return str(golden / "target_tiny"), str(golden / "moa_tli0" / "drafter")


@pytest.fixture(scope="module")
def cache(tmp_path_factory):
    return tmp_path_factory.mktemp("cache")


@pytest.fixture(scope="module")
def made(pair, cache):
    """The cache with the pair's bundle in it, and where."""
    asyncio.run(until_made(EdgeBundles(pair[0], [pair[1]], ("float32",), cache)))
    (directory,) = cache.iterdir()
    return directory


@pytest.fixture
def copied(made, cache, tmp_path):
    """A cache of one's own, to spoil."""
    shutil.copytree(cache, tmp_path / "cache")
    return tmp_path / "cache" / made.name


def bundles_in(cache, pair) -> EdgeBundles:
    return EdgeBundles(pair[0], [pair[1]], ("float32",), cache)


@pytest.fixture
async def ready(made, cache, pair):
    bundles = bundles_in(cache, pair)
    return bundles, await bundles.manifest()


async def until_made(bundles: EdgeBundles):
    while True:
        try:
            return await bundles.manifest()
        except Refusal as refusal:
            if refusal.reason is not Reason.BUNDLE_NOT_READY:
                raise


async def content(bundles: EdgeBundles, manifest, name: str, offset: int = 0) -> bytes:
    return b"".join([chunk async for chunk in bundles.chunks(manifest.bundle_id, name, offset, "a")])


async def test_it_is_what_was_made(ready, made):
    bundles, manifest = ready
    assert {file.name for file in manifest.files} == {"bundle.json", *find_bundle(made).files}
    assert (manifest.drafters, manifest.weights_on_offer) == (("drafter",), ("float32",))
    for file in manifest.files:
        data = await content(bundles, manifest, file.name)
        assert data == (made / file.name).read_bytes()
        assert (len(data), hashlib.sha256(data).digest()) == (file.size_bytes, file.sha256)
    half = manifest.files[-1].size_bytes // 2
    assert await content(bundles, manifest, manifest.files[-1].name, half) == data[half:]


async def test_it_is_made_once(made, cache, pair):
    """For all who ask, and for the next server."""
    before = made.stat().st_mtime_ns, made.stat().st_ino
    for bundles in (bundles_in(cache, pair), bundles_in(cache, pair)):
        first, second = await asyncio.gather(bundles.manifest(), bundles.manifest())
        assert first == second
    assert (made.stat().st_mtime_ns, made.stat().st_ino) == before
    assert [path.name for path in cache.iterdir()] == [made.name]


async def test_a_damaged_cache_is_rebuilt_and_no_request_waits_long(copied, made, pair, monkeypatch):
    monkeypatch.setattr(bundles_module, "_ANSWER_S", 0.0)
    (copied / "config.json").write_text("{}")
    bundles = bundles_in(copied.parent, pair)
    with refused(Reason.BUNDLE_NOT_READY, "still building"):
        await bundles.manifest()
    monkeypatch.undo()
    await until_made(bundles)
    assert (copied / "config.json").read_bytes() == (made / "config.json").read_bytes()
    assert [path.name for path in copied.parent.iterdir()] == [copied.name]


def rotten(path: Path) -> None:
    """Change bytes in the middle, and nothing that a directory tells of the file."""
    before, data = path.stat(), bytearray(path.read_bytes())
    data[len(data) // 2] ^= 255
    path.write_bytes(data)
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


@pytest.mark.parametrize(
    "damage", [rotten, lambda path: os.truncate(path, 100), lambda path: path.write_bytes(b""), Path.unlink]
)
async def test_damage_is_noticed_where_it_is_fetched_and_made_good(copied, made, pair, damage, caplog):
    bundles = bundles_in(copied.parent, pair)
    manifest = await until_made(bundles)
    damage(copied / "drafter/model.safetensors")
    for _ in range(2):
        with refused(Reason.BUNDLE_CHANGED, "ask for the manifest"):
            await content(bundles, manifest, "drafter/model.safetensors")
    assert len([line for line in caplog.messages if "it is built again" in line]) == 1
    again = await until_made(bundles)
    assert again == manifest
    data = await content(bundles, again, "drafter/model.safetensors")
    assert data == (made / "drafter/model.safetensors").read_bytes()
    assert [path.name for path in copied.parent.iterdir()] == [copied.name]


def test_another_draft_vocabulary_is_another_bundle(pair, tmp_path):
    """Also under the same name: the cache must not give out the old one."""
    file, keys = tmp_path / "vocab.json", set()
    for tokens in ([1, 2, 3], [4, 5]):
        write_draft_vocab(file, tokens)
        keys.add(cache_key(BundleOffer(pair[0], f"{pair[1]},draft_vocab={file}", "float32")))
    keys.add(cache_key(BundleOffer(pair[0], pair[1], "float32")))
    assert len(keys) == 3


async def test_what_cannot_be_made(pair, tmp_path, caplog):
    """The log says why, the client does not learn where things lie."""
    (tmp_path / "drafter").mkdir()
    (tmp_path / "drafter/config.json").write_text("{}")
    with refused(Reason.NO_BUNDLE) as caught:
        await until_made(EdgeBundles(pair[0], [str(tmp_path / "drafter")], ("float32",), tmp_path / "cache"))
    assert str(tmp_path) not in caught.value.message
    assert "has neither model.safetensors" in caplog.text
    assert list((tmp_path / "cache").iterdir()) == []


async def test_stopping_ends_the_maker(pair, tmp_path, monkeypatch):
    begun = asyncio.Queue()
    create = asyncio.create_subprocess_exec

    async def watched(*arguments, **options):
        process = await create(*arguments, **options)
        begun.put_nowait(process)
        return process

    monkeypatch.setattr(asyncio, "create_subprocess_exec", watched)
    bundles = bundles_in(tmp_path, pair)
    asking = asyncio.create_task(bundles.manifest())
    process = await begun.get()
    await bundles.stop()
    assert process.returncode == -signal.SIGKILL
    await bundles.stop()
    with pytest.raises(Refusal, match="shutting down"):
        await asking
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("asked", "message"),
    [
        (("eagle2", ""), "have drafter drafter and weights float32"),
        (("", "int4"), "weights float32"),
        (("../drafter", ""), "have drafter"),
    ],
)
async def test_what_is_not_on_offer(made, cache, pair, asked, message):
    with refused(Reason.NO_BUNDLE, message):
        await bundles_in(cache, pair).manifest(*asked)


@pytest.mark.parametrize(
    "name",
    ["", "drafter", "../bundle.json", "./config.json", "drafter/../config.json", "/etc/passwd", "tokenizer.json"],
)
async def test_names_are_looked_up_and_never_joined(ready, name):
    bundles, manifest = ready
    with pytest.raises(Refusal, match="has no file"):
        await content(bundles, manifest, name)


async def test_offsets_and_ids(ready):
    bundles, manifest = ready
    size = manifest.files[0].size_bytes
    assert await content(bundles, manifest, manifest.files[0].name, size) == b""
    with pytest.raises(Refusal, match="offset="):
        await content(bundles, manifest, manifest.files[0].name, size + 1)
    with refused(Reason.BUNDLE_CHANGED):
        await anext(bundles.chunks("0" * 64, "config.json", 0, "a"))


async def test_a_want_of_descriptors_costs_no_bundle(copied, pair):
    bundles = bundles_in(copied.parent, pair)
    manifest = await bundles.manifest()
    limits = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (3, limits[1]))
    try:
        with refused(Reason.SERVER_FULL):
            await content(bundles, manifest, "config.json")
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, limits)
    assert await content(bundles, manifest, "config.json")


async def test_fetches_are_bounded_and_end_with_the_server(made, cache, pair):
    bundles = EdgeBundles(pair[0], [pair[1]], ("float32",), cache, lambda: 0.0)
    manifest = await bundles.manifest()
    fetches = [bundles.chunks(manifest.bundle_id, "model.safetensors", 0, f"{n}") for n in range(MAX_FETCHES)]
    for fetch in fetches:
        await anext(fetch)
    with refused(Reason.SERVER_FULL):
        await content(bundles, manifest, "config.json")
    await fetches[0].aclose()
    assert await content(bundles, manifest, "config.json")
    bundles.drain()
    with refused(Reason.SHUTTING_DOWN):
        await anext(fetches[1])
    for fetch in fetches:
        await fetch.aclose()


async def test_places_go_from_those_with_most_and_longest_to_those_who_wait(made, cache, pair):
    now = 0.0
    bundles = EdgeBundles(pair[0], [pair[1]], ("float32",), cache, lambda: now)
    manifest = await bundles.manifest()

    async def fetch(peer: str):
        chunks = bundles.chunks(manifest.bundle_id, "model.safetensors", 0, peer)
        assert await anext(chunks)
        return chunks

    hogs = [await fetch("a") for _ in range(4)] + [await fetch("b") for _ in range(4)]
    others = [await fetch(f"{n}") for n in range(6)]  # at once: one place of each hog stays
    for evicted in (*hogs[:3], *hogs[4:7]):
        with refused(Reason.SERVER_FULL, "fetch the rest later"):
            await anext(evicted)
    with pytest.raises(Refusal, match="being fetched already"):
        await fetch("late")
    now += 60
    others.append(await fetch("late"))
    with pytest.raises(Refusal):
        await anext(hogs[3])
    for chunks in (*hogs, *others):
        await chunks.aclose()
    assert not bundles._places


@asynccontextmanager
async def serving(bundles: EdgeBundles | None):
    server = Server(Verifier(target(), [TAP]), bundles=bundles)
    async with server, grpc.aio.insecure_channel(f"127.0.0.1:{server.port}") as channel:
        yield server, stubs.BundlesStub(channel)


async def test_without_bundles():
    async with serving(None) as (_, stub):
        for call in (stub.Manifest(pb.ManifestRequest()), stub.Fetch(pb.FetchRequest()).read()):
            with pytest.raises(grpc.aio.AioRpcError) as failed:
                await call
            refusal = error_from_rpc(failed.value)
            assert (refusal.reason, "--no-edge-bundle" in refusal.message) == (Reason.NO_BUNDLE, True)


class Counting(EdgeBundles):
    num_chunks = 0

    async def chunks(self, *asked):
        async for chunk in super().chunks(*asked):
            self.num_chunks += 1
            yield chunk


async def test_a_slow_reader_holds_up_nobody(copied, pair, truth):
    """Who takes one chunk of a large file and no more: the server reads on only as far as buffers go, and verifies."""
    with (copied / "tokenizer.model").open("wb") as file:
        file.truncate(PADDING_BYTES)
    bundle = find_bundle(copied)
    (copied / "bundle.json").unlink()
    bundle.write(copied)
    bundles = Counting(pair[0], [pair[1]], ("float32",), copied.parent)
    async with serving(bundles) as (server, stub):
        manifest = manifest_from_proto(await stub.Manifest(pb.ManifestRequest()))
        fetch = stub.Fetch(pb.FetchRequest(bundle_id=manifest.bundle_id, name="tokenizer.model"))
        assert len((await fetch.read()).data) == CHUNK_BYTES
        num_still, before = 0, -1
        async with calling(server.address) as talk:
            await talk.open(server.verifier.describe())
            assert (await talk.prompt(PROMPT)).bonus == truth[0]
            while num_still < 100:  # verdicts in a row with which nothing was read
                verdict = await talk.verdict(len(PROMPT), (), truth[0], DraftTree.chain(truth[1:5]))
                assert (len(verdict.path), verdict.bonus) == (4, truth[5])
                num_still = num_still + 1 if bundles.num_chunks == before else 0
                before = bundles.num_chunks
        assert bundles.num_chunks < PADDING_BYTES // CHUNK_BYTES // 2
        fetch.cancel()
