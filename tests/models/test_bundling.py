"""Edge bundles: made, loaded without the target, used offline and against a server of the full target, refused."""

import re
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from heads_place import begun
from safetensors.torch import load_file
from spoiled import GOLDEN, SpoiledHead

from outrider_client.core.config import ClientConfig
from outrider_client.models.local_models import LocalModels
from outrider_drafters import TargetWeights, load_drafter, target_fingerprint, tokenizer_fingerprint
from outrider_drafters.checkpoints.bundle import find_bundle
from outrider_drafters.checkpoints.draft_vocabulary import write_draft_vocab
from outrider_drafters.checkpoints.fingerprint import TARGET_FINGERPRINT_KEY, write_target_fingerprint
from outrider_drafters.checkpoints.target_weights import target_sizes
from outrider_drafters.families.suffix.hybrid import HybridDrafter
from outrider_drafters.load import load_tap
from outrider_drafters.quantization.quantized_tensor import QuantizedWeight
from outrider_drafters.readers.checkpoint import Checkpoint, write_model
from outrider_models.bundling import make_bundle
from outrider_models.core.embedded import drafter_dir, target_dir
from outrider_proto.errors import UsageError

WEIGHTS = ("float32", "bfloat16", "int8", "int4")


@pytest.fixture
def bundle(tmp_path: Path) -> Path:
    """A bundle of the embedded pair."""
    make_bundle(target_dir(), drafter_dir("moa"), "int4", tmp_path / "bundle")
    return tmp_path / "bundle"


def root_logits(drafter):
    """After three tokens, with what features it takes."""
    return begun(drafter, [3, 42, 4], torch.ones(2, drafter.tap.width)).root_logits()


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize(("case", "target"), GOLDEN.values())
def test_every_family_is_bundled(tmp_path, golden, case, target, weights):
    """It loads by itself, and wants the features that the server of the full target makes.

    In float32, weights are the same bit for bit. Logits nearly: the order of summation depends on where a tensor lies.
    """
    out, source = tmp_path / "bundle", golden / case / "drafter"
    make_bundle(golden / target, source, weights, out)
    frozen = TargetWeights.load(out)
    loaded, tap = load_drafter(out, frozen), load_tap(source, golden / target)
    assert loaded.tap == tap.info
    assert target_fingerprint(out) == target_fingerprint(golden / target)
    assert isinstance(frozen.lm_head, QuantizedWeight) == (weights in ("int8", "int4"))
    assert frozen.lm_head.dtype == (torch.bfloat16 if weights == "bfloat16" else torch.float32)
    if weights != "float32":
        return
    for kept, given in (
        (Checkpoint(out), Checkpoint(golden / target)),
        (Checkpoint(out / "drafter"), Checkpoint(source)),
    ):
        assert kept.names
        assert all(torch.equal(kept.read(name), given.read(name).float()) for name in kept.names)
    made, full = root_logits(loaded), root_logits(load_drafter(source, TargetWeights.load(golden / target)))
    torch.testing.assert_close(made, full, atol=1e-5, rtol=1e-5)
    assert made.argmax() == full.argmax()


@pytest.mark.parametrize("weights", WEIGHTS)
@pytest.mark.parametrize("tied", [True, False])
@pytest.mark.parametrize("tokens", [None, [7, 2, 19, 5, 3, 40, 1, 6]])
def test_an_mlp_speculator_is_bundled(tmp_path, golden, weights, tied, tokens):
    """With the rows of a draft vocabulary alone; its embeddings are read as codes."""
    generator, tensors = torch.Generator().manual_seed(2), {}
    for head in range(2):
        for name in ("emb", "head", "proj"):
            place = 0 if tied and name != "proj" else head
            tensor = torch.randn(64 if name == "proj" else 256, 64, generator=generator) * 0.2
            tensors.setdefault(f"speculator.{name}.{place}.weight", tensor)
        place = 0 if tied else head
        tensors |= {f"speculator.ln.{place}.weight": torch.ones(64), f"speculator.ln.{place}.bias": torch.zeros(64)}
    source = tmp_path / "heads"
    config = {"model_type": "mlp_speculator", "n_predict": 2, "tie_weights": tied}
    write_model(source, config, tensors, torch.float32)
    if tokens is not None:
        write_draft_vocab(source, tokens)
    out, target = tmp_path / "bundle", golden / "target_tiny"
    make_bundle(target, source, weights, out)
    stored, rows = Checkpoint(out / "drafter"), 256 if tokens is None else len(tokens)
    assert stored.shape("speculator.head.0.weight") == (rows, 64)
    assert isinstance(stored.read("speculator.emb.0.weight"), QuantizedWeight) == (weights in ("int8", "int4"))
    logits = []
    for drafter in (load_drafter(source, TargetWeights.load(target)), load_drafter(out, TargetWeights.load(out))):
        state = drafter.new_state()
        state.append([3, 42, 4])
        state.add_features(1, torch.ones(1, 64))
        logits.append(torch.stack([torch.as_tensor(state.root_logits()).float(), state.expand([9], [-1])[0].float()]))
    kept = logits[0].isfinite()
    assert torch.equal(kept, logits[1].isfinite())
    assert int(kept.sum()) == 2 * rows
    spread = float(logits[0][kept].std())
    close = {"float32": 1e-5, "bfloat16": 0.05, "int8": 0.1, "int4": 0.6}[weights] * spread
    torch.testing.assert_close(logits[0][kept], logits[1][kept], rtol=0, atol=close)


def test_last_layers_are_bundled(tmp_path, golden):
    """Those that the drafter asked for, and the norm after them; not the others."""
    target = golden / "target_tiny"
    out, source = tmp_path / "bundle", f"{golden}/moa_tli0/drafter,tli=1"
    make_bundle(target, source, "float32", out)
    names = set(load_file(out / "model.safetensors"))
    assert {"model.norm.weight", "model.layers.3.mlp.up_proj.weight"} < names
    assert not any(name.startswith("model.layers.2.") for name in names)
    assert find_bundle(out).options == {"family": "moa", "tli": "1"}
    bundled = load_drafter(out, TargetWeights.load(out))
    assert bundled.tap == load_drafter(source, TargetWeights.load(target)).tap
    with pytest.raises(UsageError, match=r"lacks tensor model\.layers\.2"):
        load_drafter(f"{out},tli=2", TargetWeights.load(out))


def test_an_independent_drafter_is_bundled_in_codes(tmp_path):
    make_bundle(target_dir(), drafter_dir("independent"), "int8", tmp_path / "bundle")
    coded, plain = Checkpoint(tmp_path / "bundle/drafter"), Checkpoint(drafter_dir("independent"))
    matrices = {name for name in plain.names if plain.read(name).ndim == 2}
    assert {name for name in coded.names if isinstance(coded.read(name), QuantizedWeight)} == matrices
    assert coded.names == plain.names
    drafter = load_drafter(tmp_path / "bundle", TargetWeights.load(tmp_path / "bundle"))
    whole = load_drafter(drafter_dir("independent"), TargetWeights.load(target_dir()))
    logits = [root_logits(one) for one in (drafter, whole)]
    assert 0 < float((logits[0] - logits[1]).std()) < 0.1 * float(logits[1].std())


def test_clients_take_it_as_target_and_drafter(bundle):
    """With the fingerprints of the full target, its tokenizer, and the drafter that is in it."""
    models = LocalModels.load(ClientConfig(target=bundle))
    full = LocalModels.load(ClientConfig())
    assert models.open_frame() == full.open_frame()
    assert models.encode("Hello", raw=False) == full.encode("Hello", raw=False)
    assert (models.eos_token_ids, models.max_context) == (full.eos_token_ids, full.max_context)
    assert tokenizer_fingerprint(bundle) == tokenizer_fingerprint(target_dir())


def test_a_drafter_without_files(tmp_path):
    make_bundle(target_dir(), "lookup,ngram=2", "int8", tmp_path / "bundle")
    drafter = load_drafter(tmp_path / "bundle", TargetWeights.load(tmp_path / "bundle"))
    assert (drafter.family, drafter.ngram) == ("lookup", 2)


def test_its_drafter_copies_by_itself_where_it_was_made_so(tmp_path, golden):
    """The directory of a drafter that ships is one of a bundle."""
    eagle, target = golden / "eagle2_llama/drafter", golden / "target_l4"
    make_bundle(target, f"{eagle},copy=4,suffix=2", "float32", tmp_path / "bundle")
    drafter = tmp_path / "bundle/drafter"
    frozen = TargetWeights.load(target)
    for place in (tmp_path / "bundle", drafter):
        loaded = load_drafter(place, frozen)
        assert isinstance(loaded, HybridDrafter)
        assert (loaded.shortest, loaded.alone_from) == (2, 4)
    make_bundle(target, f"{drafter},copy=0,suffix=0", "float32", tmp_path / "plain")
    assert not isinstance(load_drafter(tmp_path / "plain/drafter", frozen), HybridDrafter)


@pytest.mark.parametrize("file", ["model.safetensors", "drafter/model.safetensors", "tokenizer.json"])
def test_a_changed_or_missing_file_is_named(bundle, file):
    path = bundle / file
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)
    for load in (TargetWeights.load, target_fingerprint):
        with pytest.raises(UsageError, match=f"{file}: not as the bundle was made"):
            load(bundle)
    path.unlink()
    with pytest.raises(UsageError, match=f"{file}: missing from the bundle"):
        TargetWeights.load(bundle)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"weights": "int2"}, "--weights int2: choose one of float32, bfloat16, int8, int4"),
        ({"out": "full"}, "not an empty directory"),
        ({"target": "golden/target_l4"}, "another target"),
    ],
    ids=str,
)
def test_what_cannot_be_bundled_leaves_nothing(tmp_path, data, arguments, message):
    (tmp_path / "full").mkdir()
    (tmp_path / "full/file").touch()
    target = data / arguments["target"] if "target" in arguments else target_dir()
    out = tmp_path / arguments.get("out", "out")
    with pytest.raises(UsageError, match=message):
        make_bundle(target, arguments.get("drafter", drafter_dir("moa")), arguments.get("weights", "int8"), out)
    assert not (tmp_path / "out").exists()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["file"]


def test_a_full_disk_leaves_no_bundle(tmp_path, room_for):
    message = r"out: the bundle cannot be written \(.*File too large.*\): free some space"
    with room_for(200_000), pytest.raises(UsageError, match=message):
        make_bundle(target_dir(), drafter_dir("moa"), "int8", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_drafter_says_which_target_it_was_made_for(tmp_path, golden):
    head = SpoiledHead(tmp_path / "drafter", golden, "eagle2")
    write_target_fingerprint(head.path, head.target)
    frozen = TargetWeights.load(head.target)
    assert load_drafter(head.path, frozen).family == "eagle2"
    head.config[TARGET_FINGERPRINT_KEY] = "0" * 32
    head.refused(r"made for another target \(fingerprint 0000")
    assert load_drafter(head.path, replace(frozen, directory=None)).family == "eagle2"  # unknown: not asked


@pytest.mark.parametrize("weights", ["float32", "int8"])
@pytest.mark.parametrize(("case", "target"), GOLDEN.values())
def test_a_draft_vocabulary_is_bundled_and_heads_keep_its_rows_alone(tmp_path, golden, case, target, weights):
    tokens = [9, 200, 3, 77, 100, 4, 33, 150]
    write_draft_vocab(tmp_path / "vocab.json", tokens)
    source = f"{golden / case / 'drafter'},draft_vocab={tmp_path / 'vocab.json'}"

    bundle = make_bundle(golden / target, source, weights, tmp_path / "bundle")

    (tmp_path / "vocab.json").unlink()
    assert "draft_vocab" not in bundle.options
    full, frozen = TargetWeights.load(golden / target), TargetWeights.load(tmp_path / "bundle")
    assert frozen.sizes == full.sizes
    assert target_sizes(tmp_path / "bundle") == full.sizes
    tied = full.lm_head is full.embed
    assert len(frozen.lm_head) == (full.sizes.vocab if tied else len(tokens))
    assert len(frozen.embed) == full.sizes.vocab
    loaded = load_drafter(tmp_path / "bundle", frozen)
    whole = load_drafter(golden / case / "drafter", full)
    logits = [root_logits(drafter) for drafter in (loaded, whole)]
    drafted = logits[0].isfinite().nonzero()[:, 0].tolist()
    assert set(drafted) == {token for token in tokens if logits[1][token] > -torch.inf}
    spread = float(logits[1][logits[1].isfinite()].std())
    torch.testing.assert_close(
        logits[0][drafted], logits[1][drafted], rtol=0, atol=1e-5 if weights == "float32" else 0.1 * spread
    )
    stored = Checkpoint(tmp_path / "bundle/drafter")
    is_own = re.compile(r"hydra_lm_head\..*|\d\.1\.weight")
    own_heads = [name for name in stored.names if is_own.fullmatch(name)]
    assert bool(own_heads) == (case in ("hydra_mlp", "medusa_v01"))
    assert all(stored.shape(name)[0] == len(tokens) for name in own_heads)
    first = load_drafter(f"{tmp_path / 'bundle'},draft_vocab=2", frozen)
    assert set(root_logits(first).isfinite().nonzero()[:, 0].tolist()) <= set(tokens[:2])


def test_a_copy_of_the_targets_embedding_is_left_out(tmp_path, golden):
    make_bundle(golden / "target_l4", golden / "eagle2_llama/drafter", "int8", tmp_path / "bundle")
    frozen = TargetWeights.load(tmp_path / "bundle")
    assert load_drafter(tmp_path / "bundle", frozen).embed is frozen.embed


def test_a_bundle_is_no_target_to_bundle(bundle, tmp_path):
    with pytest.raises(UsageError, match="a bundle itself"):
        make_bundle(bundle, drafter_dir("moa"), "int8", tmp_path / "out")
