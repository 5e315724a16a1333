"""EAGLE-3 heads from GGUF files: every way llama.cpp has written them, and what is refused."""

import math
import shutil
import sys
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from gguf import GGMLQuantizationType as Kind
from gguf_dflash import NAMES
from gguf_writing import writing
from heads_place import begun
from safetensors.torch import load_file
from torch import Tensor

from outrider_drafters import TargetWeights, load_drafter, load_tap
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DrafterOptions
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.families.eagle3.family import Eagle3Drafter
from outrider_drafters.families.eagle3.layout import canonical
from outrider_drafters.readers.checkpoint import Checkpoint
from outrider_proto.errors import UsageError

H, HT, V, VD, HEADS, KV, HD, MLP = 256, 64, 256, 96, 4, 2, 64, 256  # rows divide into K-quants' blocks of 256
PLAIN = {f"{name}.weight": f"{NAMES[name]}.weight" for name in ("norm", "embed_tokens", "lm_head")}
PLAIN |= {"fc.weight": "fc.weight", "midlayer.hidden_norm.weight": "blk.0.attn_norm_2.weight"}
for name, stored in NAMES.items():
    if stored.startswith(("attn_", "ffn_")) and not stored.endswith(("_q_norm", "_k_norm")):
        PLAIN[f"midlayer.{name}.weight"] = f"blk.0.{stored}.weight"
ABSOLUTE = np.sort(np.random.default_rng(3).permutation(V)[:VD]).astype(np.int64)


@pytest.fixture(scope="module")
def tensors() -> dict[str, Tensor]:
    """A random head four times as wide as its target."""
    generator = torch.Generator().manual_seed(1)
    shapes = {"lm_head.weight": (VD, H), "embed_tokens.weight": (V, H), "fc.weight": (H, 4 * HT)}
    shapes |= {f"midlayer.mlp.{x}_proj.weight": (MLP, H) for x in ("gate", "up", "down")}
    shapes |= {f"midlayer.self_attn.{x}_proj.weight": (n * HD, 2 * H) for x, n in (("q", HEADS), ("k", KV), ("v", KV))}
    shapes |= {"midlayer.self_attn.o_proj.weight": (H, HEADS * HD)}
    made = {name: torch.randn(shape, generator=generator) / shape[-1] ** 0.5 for name, shape in shapes.items()}
    return made | {name: 1 + 0.2 * torch.randn(H, generator=generator) for name in PLAIN if "norm" in name}


def permuted(rows: Tensor, heads: int) -> Tensor:
    """As llama.cpp's converter orders q and k: value i and i + half of a head become neighbors."""
    half = len(rows) // heads // 2
    order = [head * 2 * half + part * half + i for head in range(heads) for i in range(half) for part in (0, 1)]
    return rows[order]


class Writer:
    """Writes a head as llama.cpp's converter does; what is None is left out."""

    def __init__(self, path: Path, tensors: dict[str, Tensor], kind: Kind = Kind.F32) -> None:
        self.path, self.kind = path, kind
        self.tensors = {PLAIN[name]: tensor for name, tensor in tensors.items()}
        self.tensors["blk.0.attn_q.weight"] = permuted(self.tensors["blk.0.attn_q.weight"], HEADS)
        self.tensors["blk.0.attn_k.weight"] = permuted(self.tensors["blk.0.attn_k.weight"], KV)
        self.d2t = ABSOLUTE
        self.d2t_name = "d2t"
        self.architecture = "eagle3"
        self.values: dict[str, object] = {
            "block_count": 1,
            "attention.head_count": HEADS,
            "attention.head_count_kv": KV,
            "attention.key_length": HD,
            "attention.layer_norm_rms_epsilon": 1e-5,
            "rope.freq_base": 500000.0,
            "rope.dimension_count": HD,
            "vocab_size": V,
            "target_layers": [1, 2, 4, 6],
            "target_hidden_size": HT,
        }

    def write(self) -> Path:
        with writing(self.path, self.architecture, self.values) as writer:
            for name, tensor in self.tensors.items():
                self._add_tensor(writer, name, tensor.numpy())
            if self.d2t is not None:
                writer.add_tensor(self.d2t_name, self.d2t)
        return self.path

    def _add_tensor(self, writer: gguf.GGUFWriter, name: str, values: np.ndarray) -> None:
        if values.ndim == 1:  # norms are never quantized
            writer.add_tensor(name, values)
        else:
            writer.add_tensor(name, gguf.quants.quantize(values, self.kind), raw_dtype=self.kind)

    def load(self, golden: Path, options: str = "") -> Eagle3Drafter:
        path = self.write()
        drafter = load_drafter(f"{path}{options}", TargetWeights.load(golden / "target_l8"))
        tap = load_tap(f"{path}{options}", golden / "target_l8")
        assert isinstance(drafter, Eagle3Drafter)
        assert tap.info == drafter.tap
        return drafter


@pytest.fixture
def head(tmp_path, tensors) -> Writer:
    return Writer(tmp_path / "head.gguf", tensors)


def answers(drafter: Eagle3Drafter) -> Tensor:
    state = begun(drafter, [3, 9, 27, 81], torch.randn(3, H, generator=torch.Generator().manual_seed(2)))
    return torch.stack((state.root_logits(), *state.expand([5, 6], [-1, -1])))


def expected(tensors: dict[str, Tensor], golden: Path, **config: object) -> Eagle3Drafter:
    """The same head in SafeAILab's layout."""
    held = tensors | {"d2t": torch.from_numpy(ABSOLUTE) - torch.arange(VD)}
    raw = {
        "num_attention_heads": HEADS,
        "rms_norm_eps": 1e-5,
        "rope_theta": 500000.0,
        "target_layers": [1, 2, 4, 6],
        **config,
    }
    files = DrafterFiles(golden, raw, Checkpoint.holding(golden, held), DrafterOptions())
    from outrider_drafters.families.eagle3.family import FAMILY

    drafter = FAMILY.drafter(files, TargetWeights.load(golden / "target_l8"))
    assert isinstance(drafter, Eagle3Drafter)
    return drafter


def test_is_the_head_that_was_converted(head, tensors, golden):
    drafter, other = head.load(golden), expected(tensors, golden)
    assert drafter.tap == other.tap
    torch.testing.assert_close(answers(drafter), answers(other))


@pytest.mark.parametrize(("kind", "tolerance"), [(Kind.BF16, 8e-3), (Kind.Q8_0, 1e-2), (Kind.Q4_1, 1e-1)])
def test_stored_types_that_the_package_writes(tmp_path, tensors, golden, kind, tolerance):
    """Weights within the type's own error."""
    path = Writer(tmp_path / "head.gguf", tensors, kind).write()
    files = canonical(DrafterFiles.open(DrafterSource(str(path))))
    for name in ("fc.weight", "midlayer.self_attn.q_proj.weight", "midlayer.self_attn.k_proj.weight", "lm_head.weight"):
        stored, exact = files.checkpoint.read(name), tensors[name]
        assert stored.dtype == torch.float32
        assert float((stored - exact).square().mean().sqrt() / exact.std()) < tolerance
    assert load_drafter(path, TargetWeights.load(golden / "target_l8")).family == "eagle3"


BLOCKS = {  # bytes a block of 256 values, and where its half-precision scales lie; the package only reads these
    Kind.Q4_K: (144, (0, 2)),
    Kind.Q6_K: (210, (208,)),
}


@pytest.mark.parametrize("kind", list(BLOCKS))
def test_stored_types_that_the_package_only_reads(tmp_path, tensors, golden, kind):
    """Random codes with a small scale: the values are those the package says, through permutation and all."""
    head, generator = Writer(tmp_path / "head.gguf", tensors), np.random.default_rng(7)
    (size, scales), raw = BLOCKS[kind], dict[str, np.ndarray]()

    def add(writer: gguf.GGUFWriter, name: str, values: np.ndarray) -> None:
        if values.ndim == 1:
            writer.add_tensor(name, values)
            return
        blocks = generator.integers(0, 256, (len(values), values.shape[1] // 256, size), dtype=np.uint8)
        for start in scales:
            blocks[..., start : start + 2] = np.frombuffer(np.float16(1e-3).tobytes(), dtype=np.uint8)
        raw[name] = blocks.reshape(len(values), -1)
        writer.add_tensor(name, raw[name], raw_dtype=kind)

    head._add_tensor = add
    drafter = head.load(golden)
    files = canonical(DrafterFiles.open(DrafterSource(str(head.path))))
    for theirs, name, heads in (("attn_q", "self_attn.q_proj", HEADS), ("ffn_up", "mlp.up_proj", 0)):
        stored = files.checkpoint.read(f"midlayer.{name}.weight")
        values = torch.from_numpy(gguf.quants.dequantize(raw[f"blk.0.{theirs}.weight"], kind))
        assert values.isfinite().all()
        assert values.std() > 0
        torch.testing.assert_close(permuted(stored, heads) if heads else stored, values)
    assert answers(drafter).isfinite().any()


@pytest.mark.parametrize(("dtype", "name", "offsets"), [(np.int64, "d2t", False), (np.int32, "d2t.weight", True)])
def test_map_of_ids_or_of_offsets(head, tensors, golden, dtype, name, offsets):
    head.d2t, head.d2t_name = (ABSOLUTE - np.arange(VD) if offsets else ABSOLUTE).astype(dtype), name
    assert head.load(golden).head.tokens.tolist() == ABSOLUTE.tolist()


def test_early_files_name_two_things_otherwise(head, tensors, golden):
    head.values["extract_layers"] = head.values.pop("target_layers")
    head.tensors["blk.0.hidden_norm.weight"] = head.tensors.pop("blk.0.attn_norm_2.weight")
    torch.testing.assert_close(answers(head.load(golden)), answers(expected(tensors, golden)))


def test_layers_are_inputs_as_they_stand(head, golden):
    """Also when the first is 1, which in a config.json would count outputs."""
    path = head.write()
    tap = load_tap(path, golden / "target_l8")
    assert tap.hidden_layers == (1, 2, 4, 6)


@pytest.mark.parametrize("key", ["norm_before_residual", "norm_output"])
def test_switches(head, tensors, golden, key):
    head.values[key] = True
    drafter = head.load(golden)
    torch.testing.assert_close(answers(drafter), answers(expected(tensors, golden, **{key: True})))
    assert not torch.allclose(answers(drafter), answers(expected(tensors, golden)), atol=1e-3)


def test_llama3_scaling_as_divisors(head, tensors, golden):
    """llama.cpp's converter writes the divisors of transformers' llama3 formula."""
    plain = 500000.0 ** -(torch.arange(0, HD, 2) / HD)
    low, high, factor, context = 1.0, 4.0, 8.0, 128
    turns = context * plain / (2 * math.pi)
    smooth = ((turns - low) / (high - low)).clamp(0, 1)
    head.tensors["rope_freqs.weight"] = 1 / ((1 - smooth) / factor + smooth)
    scaling = {"rope_type": "llama3", "factor": factor, "low_freq_factor": low, "high_freq_factor": high}
    scaling["original_max_position_embeddings"] = context
    other = expected(tensors, golden, rope_scaling=scaling)
    drafter = head.load(golden)
    torch.testing.assert_close(answers(drafter), answers(other), atol=1e-4, rtol=1e-4)
    assert drafter.block.shape.rope_scaling != other.block.shape.rope_scaling
    assert not torch.allclose(answers(drafter), answers(expected(tensors, golden)), atol=1e-4)


def test_whole_vocabulary_without_a_map(tmp_path, golden):
    """No d2t, no output, no token_embd: all the target's."""
    tensors = load_file(golden / "eagle3_llama" / "drafter" / "model.safetensors")
    names = {name: tensor for name, tensor in tensors.items() if name in PLAIN and name != "lm_head.weight"}
    head = Writer(tmp_path / "head.gguf", names)
    head.d2t = None
    head.values |= {"target_layers": [2, 4, 5], "attention.key_length": 16, "rope.dimension_count": 16}
    drafter = head.load(golden)
    assert drafter.head.tokens is None
    assert drafter.head is drafter.target.head_for(None)
    assert drafter.embed is drafter.target.embed


REFUSED = {
    "values": [
        ({"block_count": 2}, "block_count=2: need 1"),
        ({"attention.head_count": 3}, "tensor blk.0.attn_q.weight has 256 rows: need a multiple of 6"),
        ({"rope.dimension_count": 32}, "dimension_count=32: need 64"),
    ],
    "tensors": [
        ({"blk.0.attn_q_norm.weight": torch.ones(HD)}, r"head\.gguf: holds unknown tensors blk\.0\.attn_q_norm"),
        ({"blk.0.attn_q.weight": None}, r"head\.gguf: lacks tensors midlayer\.self_attn\.q_proj\.weight"),
    ],
    "architecture": [("mamba", r"^\S+head\.gguf: general\.architecture is mamba: need eagle3")],
}  # fmt: skip


@pytest.mark.parametrize(("part", "changes", "message"), [(part, *row) for part in REFUSED for row in REFUSED[part]])
def test_other_heads_are_refused(head, golden, part, changes, message):
    if isinstance(changes, dict):
        changes = {key: value for key, value in (getattr(head, part) | changes).items() if value is not None}
    setattr(head, part, changes)
    with pytest.raises(UsageError, match=message):
        head.load(golden)


def test_a_file_of_the_other_byte_order_is_refused(head, golden):
    writer = gguf.GGUFWriter(head.path, "eagle3", endianess=gguf.GGUFEndian.BIG)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    with pytest.raises(UsageError, match=r"head\.gguf: its numbers are of the other byte order \(big-endian\)"):
        load_drafter(head.path, TargetWeights.load(golden / "target_l8"))


def test_a_missing_package_is_named(head, golden, monkeypatch):
    path = head.write()
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UsageError, match=r"pip install 'outrider\[gguf\]'"):
        load_drafter(path, TargetWeights.load(golden / "target_l8"))


def test_a_directory_is_read_as_gguf_when_that_is_all_it_holds(tmp_path, golden):
    directory, frozen = tmp_path / "head", TargetWeights.load(golden / "target_l8")
    directory.mkdir()
    stored = golden / "eagle3_llama" / "drafter_gguf" / "eagle3-f32.gguf"
    shutil.copyfile(stored, directory / "a.gguf")
    (directory / "config.json").write_text("{}")
    assert load_drafter(directory, frozen).family == "eagle3"
    shutil.copyfile(stored, directory / "b.gguf")
    with pytest.raises(UsageError, match=r"holds a\.gguf, b\.gguf: name one of these files"):
        load_drafter(directory, frozen)
    assert load_drafter(directory / "b.gguf", frozen).family == "eagle3"
    for name in ("model.safetensors", "config.json"):
        shutil.copyfile(golden / "eagle3_llama" / "drafter" / name, directory / name)
    assert isinstance(DrafterFiles.open(DrafterSource(str(directory))).checkpoint, Checkpoint)
    assert DrafterFiles.open(DrafterSource(str(directory))).directory == directory
