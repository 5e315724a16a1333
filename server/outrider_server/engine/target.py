"""The target: a Hugging Face causal LM made to run on slots, with what the rest needs to know about it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor, nn
from transformers import AutoModelForCausalLM, PreTrainedModel
from transformers.utils import logging as transformers_logging

from outrider_drafters.checkpoints.bundle import find_bundle
from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tokenizer_fingerprint
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_proto.errors import UsageError
from outrider_server.engine.attention import IMPLEMENTATION, SlotAttention, register
from outrider_server.engine.compatibility import check_against_eager, probe
from outrider_server.kv.shape import KVShape

if TYPE_CHECKING:
    from outrider_server.parallel.ranks import Ranks

_SMALL = 30_000_000  # parameters
DTYPES = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """One pass over N rows: logits [rows asked for, vocab], hidden states [N, hidden] by Hugging Face's index."""

    logits: Tensor
    hidden: dict[int, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A loaded target. Its forward passes belong to one thread. `ranks`: the other processes it is divided among."""

    model: PreTrainedModel
    name: str
    fingerprint: str
    tokenizer_fingerprint: str
    kv: KVShape
    vocab_size: int
    hidden_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    ranks: Ranks | None = None

    @property
    def is_small(self) -> bool:
        return is_small(self.model)

    def close(self) -> None:
        """End the other processes, where there are any. Safe twice."""
        if self.ranks is not None:
            self.ranks.close()

    @classmethod
    def load(
        cls, name_or_path: str, dtype: str = "float32", device: str = "cpu", max_context: int | None = None
    ) -> Target:
        """Load a local directory or a hub name. Raises UsageError for anything that cannot serve as a target."""
        path = resolve_dir(name_or_path)
        model = load_model(str(path), check_dtype(dtype), _device(device))
        return cls.of(
            model,
            name=public_name(name_or_path),
            fingerprint=target_fingerprint(path),
            tokenizer_fingerprint=tokenizer_fingerprint(path),
            max_context=max_context,
        )

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        name: str = "",
        fingerprint: str = "",
        tokenizer_fingerprint: str = "none",
        max_context: int | None = None,
        ranks: Ranks | None = None,
    ) -> Target:
        """Make a loaded model a target. Raises UsageError when slots cannot reproduce its own attention."""
        register()
        model.train(False)
        config, context = model.config.get_text_config(), _context(model, max_context)
        kv = probe(model, context)
        check_against_eager(model, kv, context)
        return cls(
            model=model,
            name=name,
            fingerprint=fingerprint,
            tokenizer_fingerprint=tokenizer_fingerprint,
            kv=kv,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            max_context=context,
            eos_token_ids=_eos_token_ids(model),
            ranks=ranks,
        )

    def forward(
        self, tokens: list[int], positions: list[int], slots: SlotAttention, keep: list[int], hidden: frozenset[int]
    ) -> TargetOutput:
        """One pass over a flat batch; logits of the rows in `keep`, hidden states of the layers in `hidden`.

        Raises UsageError for BEFORE_NORM from a model whose layers are not found.
        """
        device = self.kv.device
        rows = torch.tensor([tokens, positions], device=device)
        wants_all = len(keep) == len(tokens)
        listed = hidden - {BEFORE_NORM}
        with _last_output(self.model, wanted=BEFORE_NORM in hidden) as last:
            out = self.model(
                input_ids=rows[:1],
                position_ids=rows[1:],
                use_cache=False,
                slots=slots,
                # An empty index would be an empty product; one row costs less than a second code path.
                logits_to_keep=0 if wants_all else torch.tensor(keep or [0], device=device),
                output_hidden_states=bool(listed),
            )
        if device.type == "cuda":
            torch.cuda.synchronize(device)  # the answer is read at once anyway, and now the pass can be timed
        return TargetOutput(out.logits[0], {**last, **{layer: out.hidden_states[layer][0] for layer in listed}})


@contextmanager
def eager_attention(model: PreTrainedModel) -> Iterator[None]:
    """The model with transformers' own attention, for the plain path. Not while it serves."""
    model.set_attn_implementation("eager")
    try:
        yield
    finally:
        model.set_attn_implementation(IMPLEMENTATION)


@contextmanager
def _last_output(model: PreTrainedModel, *, wanted: bool) -> Iterator[dict[int, Tensor]]:
    """Fills with the last layer's output [N, hidden], by BEFORE_NORM, when the model runs; stays empty if unwanted."""
    seen: dict[int, Tensor] = {}
    if not wanted:
        yield seen
        return

    def keep(_layer: nn.Module, _inputs: object, output: Any) -> None:  # a layer answers a tensor or a tuple
        seen[BEFORE_NORM] = (output[0] if isinstance(output, tuple) else output)[0]

    handle = _last_layer(model).register_forward_hook(keep)
    try:
        yield seen
    finally:
        handle.remove()


def _last_layer(model: PreTrainedModel) -> nn.Module:
    """The last decoder layer: that of the list which is as long as the config says."""
    count = model.config.get_text_config().num_hidden_layers
    for module in model.modules():
        if isinstance(module, nn.ModuleList) and len(module) == count:
            return module[-1]
    raise UsageError(f"{model.config.model_type}: its {count} layers are not found; no drafter can have their output")


def is_small(model: PreTrainedModel) -> bool:
    """Whether more CPU threads cost more than they bring."""
    return sum(parameter.numel() for parameter in model.parameters()) < _SMALL


def load_model(
    path: str, dtype: torch.dtype, device: torch.device | None, distributed_config: object | None = None
) -> PreTrainedModel:
    """On a device, or (None) where `distributed_config` puts it. Raises UsageError."""
    if find_bundle(Path(path)) is not None:
        raise UsageError(f"target {path}: an edge bundle, which has no layers to verify with; give the full target")
    register()
    transformers_logging.disable_progress_bar()  # type: ignore[no-untyped-call] # transformers
    try:
        loaded: Any = AutoModelForCausalLM.from_pretrained(  # its annotation forgets output_loading_info
            path,
            dtype=dtype,
            attn_implementation=IMPLEMENTATION,
            output_loading_info=True,
            trust_remote_code=False,  # without a word it would ask whether to run the directory's own code
            **({} if distributed_config is None else {"distributed_config": distributed_config}),
        )
    except (ValueError, OSError, KeyError, RuntimeError) as error:
        raise UsageError(f"target {path}: {error}") from error
    model: PreTrainedModel = loaded[0]
    info: dict[str, Any] = loaded[1]
    if missing := sorted(info["missing_keys"]):
        raise UsageError(f"target {path}: {len(missing)} tensors are missing, the first is {missing[0]}")
    if device is not None:
        model.to(device)  # type: ignore[arg-type] # transformers' annotation of `to` hides nn.Module's
    return model


def public_name(name_or_path: str) -> str:
    """What clients are told: of a directory its last part, not where it lies on this machine."""
    path = Path(name_or_path)
    return path.resolve().name if path.is_dir() else name_or_path


def check_dtype(name: str) -> torch.dtype:
    """By its name. Raises UsageError."""
    if name not in DTYPES:
        raise UsageError(f"dtype={name}: need one of {', '.join(DTYPES)}")
    return DTYPES[name]


def _device(name: str) -> torch.device:
    try:
        device = torch.device(name)
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError) as error:
        raise UsageError(f"device={name}: {str(error).splitlines()[0]}") from error
    return device


def _context(model: PreTrainedModel, asked: int | None) -> int:
    limit = getattr(model.config.get_text_config(), "max_position_embeddings", None)
    if limit is None:
        raise UsageError(f"{model.config.model_type}: its config names no max_position_embeddings")
    if asked is None:
        return int(limit)
    if not 2 <= asked <= limit:
        raise UsageError(f"max_context={asked}: need 2 to {limit}, the target's own")
    return asked


def _eos_token_ids(model: PreTrainedModel) -> tuple[int, ...]:
    generation = model.generation_config
    ids = generation.eos_token_id if generation is not None else None
    if ids is None:
        return ()
    return tuple(sorted(ids)) if isinstance(ids, (list, tuple)) else (int(ids),)
