"""The parts of a target that drafters borrow, read without loading it: embedding, lm_head, sizes and last layers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path

import torch
from torch import Tensor

from outrider_drafters.blocks.last_layers import LastLayers, read_last_layers
from outrider_drafters.checkpoints.bundle import DRAFTER, Bundle, find_bundle
from outrider_drafters.checkpoints.catalog import catalog, installed_file
from outrider_drafters.checkpoints.draft_vocabulary import DRAFT_VOCAB, DraftHead, read_draft_vocab, select_rows
from outrider_drafters.quantization.quantize import int8_rows
from outrider_drafters.readers.checkpoint import Checkpoint, need_finite
from outrider_drafters.readers.config import Config, config_int, read_config, read_json, rms_norm_eps, rope_theta
from outrider_drafters.readers.gguf_file import SUFFIX
from outrider_proto.errors import UsageError

EMBEDDING = "model.embed_tokens.weight"
LM_HEAD = "lm_head.weight"
# Names and fields of GPT-2, GPT-BigCode and GPT-NeoX beside those of all newer models.
_EMBEDDINGS = ("embed_tokens.weight", "wte.weight", "embed_in.weight")
_HEADS = (LM_HEAD, "embed_out.weight")
_FIELDS = {
    "hidden_size": "n_embd",
    "num_attention_heads": "n_head",
    "num_hidden_layers": "n_layer",
    "max_position_embeddings": "n_positions",
}


@dataclass(frozen=True, slots=True)
class KVLayer:
    """A layer that keeps K/V: its kind, and the width of K and V of a token together."""

    kind: str
    width: int


@dataclass(frozen=True, slots=True)
class TargetSizes:
    """A target's sizes. `vocab` is the number of lm_head rows, padding included; `eps` is RMSNorm's.

    `kv_layers`: the layers that keep K/V, of a target whose layers may differ in that (Gemma 3n and 4); else empty.
    """

    hidden: int
    layers: int
    heads: int
    kv_heads: int
    head_dim: int
    vocab: int
    rope_theta: float
    eps: float
    max_context: int
    model_type: str
    kv_layers: tuple[KVLayer, ...] = ()

    @property
    def packed_kv(self) -> int:
        """Width of one layer's packed keys and values per token: 2 E_kv."""
        return 2 * self.kv_heads * self.head_dim

    @property
    def has_equal_layers(self) -> bool:
        """Whether all layers keep K/V of one width."""
        return not self.kv_layers or (
            len(self.kv_layers) == self.layers and len({kv.width for kv in self.kv_layers}) == 1
        )


@dataclass(frozen=True, slots=True, eq=False)
class TargetWeights:
    """Embedding, lm_head and sizes of a target; `directory` is where they were read from, if known.

    With a draft vocabulary of `draft_tokens` [Vd] int64, lm_head has a row for each of them and no other.
    """

    embed: Tensor  # [V, E]
    lm_head: Tensor  # [V, E] or [Vd, E]; the same tensor as `embed` for a tied target without a draft vocabulary
    sizes: TargetSizes
    eos_token_ids: tuple[int, ...]
    directory: Path | None = None
    draft_tokens: Tensor | None = None
    _restricted: dict[tuple[tuple[int, ...], bool], TargetWeights] = field(default_factory=dict, init=False, repr=False)
    _head: list[DraftHead] = field(default_factory=list, init=False, repr=False)  # lm_head, once it was needed

    @classmethod
    def load(cls, name_or_path: str | Path, dtype: torch.dtype | None = None) -> TargetWeights:
        """Read both tensors of a directory, hub name or bundle; `dtype`: float32, or a bundle's. Raises UsageError."""
        directory = resolve_dir(name_or_path)
        bundle = find_bundle(directory)
        if dtype is None:
            dtype = torch.bfloat16 if bundle is not None and bundle.weights == "bfloat16" else torch.float32
        config, checkpoint = read_config(directory), Checkpoint(directory)
        embed_name, head_name = borrowed_names(config, checkpoint)
        embed = checkpoint.read(embed_name).to(dtype)
        # A tied target's lm_head is the embedding itself, not a copy: half the memory, and tested with `is` elsewhere.
        lm_head = embed if head_name == embed_name else checkpoint.read(head_name).to(dtype)
        need_finite(directory, ((embed_name, embed), (head_name, lm_head)))
        sizes = sizes_of(config, _head_shape(checkpoint, embed_name, head_name, bundle))
        tokens = None
        if len(lm_head) != sizes.vocab:
            tokens = torch.tensor(sorted(read_draft_vocab(directory / DRAFTER / DRAFT_VOCAB, sizes.vocab)))
            if len(tokens) != len(lm_head):
                raise UsageError(f"{directory}: {LM_HEAD} has {len(lm_head)} rows, {DRAFT_VOCAB} {len(tokens)} tokens")
        return cls(embed, lm_head, sizes, eos_token_ids(directory, config), directory, tokens)

    def drafting(self, tokens: Iterable[int], *, int8: bool = False) -> TargetWeights:
        """Return these weights, once for all who ask, with lm_head's rows of some tokens, perhaps as int8 codes."""
        # One object for all of them: several heads run its lm_head at once only if they share it.
        key = (tuple(sorted(tokens)), int8)
        if key not in self._restricted:
            wanted = torch.tensor(key[0], device=self.lm_head.device)
            lm_head, kept = select_rows(self.lm_head, self.draft_tokens, wanted)
            lm_head = int8_rows(lm_head) if int8 else lm_head
            self._restricted[key] = replace(self, lm_head=lm_head, draft_tokens=kept)
        return self._restricted[key]

    def logits(self, hidden: Tensor) -> Tensor:
        """Compute logits [..., V] float32 of hidden states [..., E]; -inf for tokens that lm_head has no row for."""
        return self.head_for(None).logits(hidden)

    def head_for(self, own: Tensor | None, stored: Tensor | None = None, bias: Tensor | None = None) -> DraftHead:
        """Return a drafter's own head [rows, E], cut to this draft vocabulary, or where it has none this lm_head.

        `stored` [rows]: the tokens that its rows stand for; None: row i is token i.
        """
        if own is not None:
            return DraftHead(own.detach(), stored, self.draft_tokens, self.sizes.vocab, bias)
        if not self._head:
            self._head.append(DraftHead(self.lm_head, self.draft_tokens, None, self.sizes.vocab))
        return self._head[0]

    def last_layers(self, count: int) -> LastLayers:
        """Read the last `count` layers and the norm, like `embed`. Raises UsageError if a client cannot run them."""
        if self.directory is None:
            raise UsageError(f"last {count} layers: this target was not read from a directory")
        config, checkpoint = read_config(self.directory), Checkpoint(self.directory)
        stem = borrowed_names(config, checkpoint)[0].removesuffix("embed_tokens.weight")
        return read_last_layers(config, checkpoint, stem, count, self.embed)


def resolve_dir(name_or_path: str | Path, dtype: torch.dtype | None = None) -> Path:
    """Return the directory of what `find_model` finds, which a GGUF file becomes (as `dtype`). Raises UsageError."""
    path = find_model(name_or_path)
    if not path.is_file():
        return path
    from outrider_drafters.checkpoints.gguf_target import dequantized_dir

    return dequantized_dir(path, dtype)


def find_model(name_or_path: str | Path) -> Path:
    """Return a directory or GGUF file: the one at a path, an installed model's, or the hub's. Raises UsageError."""
    path = Path(name_or_path).expanduser()
    if path.is_dir() or (path.is_file() and path.suffix == SUFFIX):
        return path
    if path.is_file():
        raise UsageError(f"{name_or_path}: a file: need a model directory or a {SUFFIX} file")
    if len(path.parts) == 1 and (file := installed_file(str(name_or_path))).is_file():
        return file
    if str(name_or_path) in catalog():
        raise UsageError(f"{name_or_path}: not installed: outrider-models get {name_or_path}")
    if path.is_absolute() or len(path.parts) != 2 or str(name_or_path).startswith("."):
        raise UsageError(
            f"{name_or_path}: no such directory or file, nor a name of `outrider-models get` or the hub (owner/model)"
        )
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import HfHubHTTPError, HFValidationError, LocalEntryNotFoundError

    try:
        return Path(snapshot_download(str(name_or_path)))
    except (HfHubHTTPError, HFValidationError, LocalEntryNotFoundError, OSError) as error:
        raise UsageError(f"{name_or_path}: neither a directory nor a model the hub gives us ({error})") from error


def target_sizes(name_or_path: str | Path) -> TargetSizes:
    """Read the sizes alone, from config.json and the shape of lm_head."""
    directory = resolve_dir(name_or_path)
    config, checkpoint = read_config(directory), Checkpoint(directory)
    names = borrowed_names(config, checkpoint)
    return sizes_of(config, _head_shape(checkpoint, *names, find_bundle(directory)))


def _head_shape(checkpoint: Checkpoint, embed_name: str, head_name: str, bundle: Bundle | None) -> tuple[int, int]:
    """Return the shape of the target's lm_head, of which a bundle may hold some rows alone."""
    rows, width = checkpoint.matrix(head_name)
    vocab = rows if bundle is None else bundle.sizes.get("vocab", rows)
    if vocab > (most := max(rows, checkpoint.matrix(embed_name)[0])):
        raise UsageError(f"{checkpoint.directory}: bundle.json says sizes.vocab={vocab}, its tensors hold {most} rows")
    return vocab, width


def borrowed_names(config: Config, checkpoint: Checkpoint) -> tuple[str, str]:
    """Return the names of the embedding and of lm_head, equal for a tied target. Raises UsageError."""
    embeddings = [name for name in checkpoint.names if name.endswith(_EMBEDDINGS)]
    embed = EMBEDDING if EMBEDDING in embeddings else embeddings[0] if len(embeddings) == 1 else None
    if embed is None:
        raise UsageError(f"{checkpoint.directory}: has no tensor {EMBEDDING}")
    heads = [name for name in checkpoint.names if name.endswith(_HEADS)]
    if len(heads) == 1:
        return embed, heads[0]
    # Only an explicit false counts: the default differs between model types, and a file without lm_head is tied.
    if config.get("tie_word_embeddings") is False:
        raise UsageError(f"{checkpoint.directory}: has no tensor {LM_HEAD}, and its config says it is not tied")
    return embed, embed


def sizes_of(config: Config, head_shape: tuple[int, int]) -> TargetSizes:
    """Take the sizes from config.json and the shape of lm_head. Raises UsageError."""
    config = {**{name: config[field] for name, field in _FIELDS.items() if field in config}, **config}
    hidden, heads = config_int(config, "hidden_size"), config_int(config, "num_attention_heads")
    if head_shape[1] != hidden:
        raise UsageError(f"{LM_HEAD} has shape {list(head_shape)}: config.json says hidden_size={hidden}")
    return TargetSizes(
        hidden=hidden,
        layers=config_int(config, "num_hidden_layers"),
        heads=heads,
        kv_heads=config_int(config, "num_key_value_heads", heads),
        head_dim=config_int(config, "head_dim", hidden // heads),
        vocab=head_shape[0],
        rope_theta=rope_theta(config),
        eps=rms_norm_eps(config),
        max_context=config_int(config, "max_position_embeddings", 2048),
        model_type=str(config.get("model_type", "")),
        kv_layers=_kv_layers(config),
    )


def _kv_layers(config: Config) -> tuple[KVLayer, ...]:
    kinds, shared = config.get("layer_types"), config.get("num_kv_shared_layers")
    # Only such configs have the field, be it 0.
    if shared is None or not isinstance(kinds, list):
        return ()
    if type(shared) is not int or not 0 <= shared <= len(kinds):
        raise UsageError(f"config.json: num_kv_shared_layers={shared}: need 0 to {len(kinds)}, its layer_types")
    sizes = [kv_sizes(config, layer, kind) for layer, kind in enumerate(kinds[: len(kinds) - shared])]
    return tuple(
        KVLayer(kind, 2 * kv_heads * head_dim) for kind, (kv_heads, head_dim) in zip(kinds, sizes, strict=False)
    )


def kv_sizes(config: Config, layer: int, kind: str) -> tuple[int, int]:
    """Return K/V heads and head_dim of a layer: Gemma 4's differ by kind, in transformers 5.23 by layer."""
    heads = config_int(config, "num_attention_heads")
    kv_heads = config_int(config, "num_key_value_heads", heads)
    head_dim = config_int(config, "head_dim", config_int(config, "hidden_size") // heads)
    by_layer = config.get("per_layer_config")
    if isinstance(by_layer, Mapping):
        own = by_layer.get(str(layer)) or {}
        return config_int(own, "num_key_value_heads", kv_heads), config_int(own, "head_dim", head_dim)
    if kind != "full_attention" or not str(config.get("model_type")).startswith("gemma4"):
        return kv_heads, head_dim
    # Gemma4Unified's config has no attention_k_eq_v, and then the number counts.
    if config.get("attention_k_eq_v", True):
        kv_heads = config_int(config, "num_global_key_value_heads", kv_heads)
    return kv_heads, config_int(config, "global_head_dim", 512)


def eos_token_ids(directory: Path, config: Config) -> tuple[int, ...]:
    """Read the end tokens: generation_config.json takes precedence, as in transformers' generate."""
    path = directory / "generation_config.json"
    eos = (read_json(path) if path.is_file() else {}).get("eos_token_id", config.get("eos_token_id"))
    ends = eos if isinstance(eos, list) else [] if eos is None else [eos]
    if any(type(end) is not int for end in ends):
        raise UsageError(f"{directory}: eos_token_id={str(eos)[:80]}: need the id of a token, or a list of them")
    return tuple(ends)
