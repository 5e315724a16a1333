"""The target: a Hugging Face causal LM that runs on slots, with its sizes and fingerprints."""

from __future__ import annotations

import logging
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import nullcontext
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Protocol

import torch
from torch import Tensor
from transformers import PreTrainedModel

from outrider_drafters.checkpoints.fingerprint import target_fingerprint, tokenizer_fingerprint
from outrider_drafters.checkpoints.hf_config import explained
from outrider_drafters.contracts.schema_compiler import SchemaCompiler
from outrider_drafters.contracts.tap import BEFORE_NORM
from outrider_drafters.readers.checkpoint import released
from outrider_drafters.readers.config import read_config
from outrider_drafters.readers.digest import weights_digest
from outrider_drafters.readers.target_cache import check_written
from outrider_proto.errors import UsageError
from outrider_server.engine.attention import Decoder, SlotAttention, register
from outrider_server.engine.compatibility import are_alike, check_against_eager, check_invariance, probe
from outrider_server.engine.fused_decoder import FusedDecoder, fused_decoder
from outrider_server.engine.hf_model import (
    AUTO,
    BatchInvariance,
    context_length,
    costly_placement,
    eos_token_ids,
    holds_int8,
    int8_offer,
    last_layer_output,
    load_model,
    resolve_device,
    resolve_target,
)
from outrider_server.kv.budget import KVShape
from outrider_server.processor.int8_model import note_checked, pack_codes, was_checked

_log = logging.getLogger(__name__)


class Ranks(Protocol):
    """The other processes that hold a part of the target."""

    broken: Future[str]  # done, with the reason, once no further pass can run

    def close(self) -> None:
        """End them. Safe to call twice."""
        ...


@dataclass(frozen=True, slots=True)
class TargetOutput:
    """Output for N rows: logits [requested rows, vocab], hidden states [N, hidden] by Hugging Face's index."""

    logits: Tensor
    hidden: dict[int, Tensor]


@dataclass(frozen=True, slots=True, eq=False)
class Target:
    """A loaded target. Only one thread may run passes."""

    model: PreTrainedModel
    name: str
    fingerprint: str
    tokenizer_fingerprint: str
    kv: KVShape
    vocab_size: int
    hidden_size: int
    max_context: int
    eos_token_ids: tuple[int, ...]
    ranks: Ranks | None = None  # the processes it is divided among
    fused: Decoder | None = None  # its passes in fewer steps; None: transformers' own
    batch_invariant: bool = False  # a row's result depends on its own text alone
    schemas: SchemaCompiler | None = None  # of JSON answers
    digest: str = ""  # of all weights, in the dtype they are computed in

    def close(self) -> None:
        """End the other processes, where there are any. Safe to call twice."""
        if self.ranks is not None:
            self.ranks.close()

    @classmethod
    def load(
        cls,
        name_or_path: str,
        dtype: str = "float32",
        device: str = "cpu",
        max_context: int | None = None,
        *,
        fused: bool = True,
        batch_invariant: bool = False,
    ) -> Target:
        """Load a local directory or a hub name. Raises UsageError for anything that cannot serve as a target.

        `dtype`, `device`: auto as in resolve_dtype() and resolve_device(). Logs a warning where passes are slower than
        they need be, and with auto what int8 would give.
        """
        on = resolve_device(device)
        path, computed_in = resolve_target(name_or_path, dtype, on)
        if (warning := costly_placement(computed_in, on, path)) is not None:
            _log.warning(warning)
        check_written(path)
        model = load_model(str(path), computed_in, on)
        if dtype == AUTO and (offer := int8_offer(model)) is not None:
            _log.warning(offer)
        # Beside the check, which leaves memory idle.
        with ThreadPoolExecutor(1) as beside:
            digesting = beside.submit(digest_of, model, path)
            target = cls.of(
                model,
                name=public_name(name_or_path),
                directory=path,
                max_context=max_context,
                fused=fused,
                batch_invariant=batch_invariant,
            )
            digest = digesting.result()
            # Behind the check: of what cannot be a target at all, the names of tensors are not what is wrong.
            return replace(target, fingerprint=target_fingerprint(path), digest=digest)

    @classmethod
    def of(
        cls,
        model: PreTrainedModel,
        name: str = "",
        fingerprint: str = "",
        directory: Path | None = None,
        max_context: int | None = None,
        ranks: Ranks | None = None,
        *,
        fused: bool = True,
        batch_invariant: bool = False,
    ) -> Target:
        """Make a loaded model a target, `fused` where it can be and its passes need not be batch-invariant.

        `directory`: where its tokenizer is, if there is one.

        Raises UsageError when slots cannot reproduce its own attention, or its passes cannot be made batch-invariant.
        """
        register()
        model.train(False)
        config, context = model.config.get_text_config(), context_length(model, max_context)
        is_int8 = holds_int8(model)
        batch_invariant = batch_invariant or is_int8
        try:
            kv = probe(model, context)
            decoder = _exact_fused(model, kv, context, directory) if is_int8 and fused and not ranks else None
            if decoder is None:
                check_against_eager(model, kv, context)
            if is_int8 and decoder is None:
                pack_codes(model)
            if batch_invariant and decoder is None:
                # One expert after another: of their grouped products BatchInvariance sees nothing.
                model.set_experts_implementation("eager")
                check_invariance(model, kv, context)
        except UsageError:
            raise
        # Layers that slots do not suit fail in as many ways as there are architectures.
        except Exception as error:
            raise UsageError(f"{config.model_type}: cannot be a target: {explained(error)}") from error
        if fused and ranks is None and not batch_invariant:
            decoder = _fused(model, kv, context)
        return cls(
            model=model,
            name=name,
            fingerprint=fingerprint,
            tokenizer_fingerprint="none" if directory is None else tokenizer_fingerprint(directory),
            kv=kv,
            vocab_size=config.vocab_size,
            hidden_size=config.hidden_size,
            max_context=context,
            eos_token_ids=(ends := eos_token_ids(model)),
            schemas=None if directory is None else SchemaCompiler(directory, config.vocab_size, ends),
            ranks=ranks,
            fused=decoder,
            batch_invariant=batch_invariant,
        )

    def forward(
        self, tokens: list[int], positions: list[int], slots: SlotAttention, keep: list[int], hidden: frozenset[int]
    ) -> TargetOutput:
        """Run a flat batch; return logits of rows `keep`, hidden states of layers `hidden`.

        Raises UsageError for BEFORE_NORM from a model whose layers are not found.
        """
        # At once, and before the layers: an index that is sent behind them waits on a GPU until they have run.
        sent = torch.tensor([*tokens, *positions, *keep], dtype=torch.long, device=self.kv.device)
        rows, kept = sent[: 2 * len(tokens)].view(2, -1), sent[2 * len(tokens) :]
        if self.fused is not None:
            which = None if len(keep) == len(tokens) else kept
            return TargetOutput(*self.fused.forward(rows[0], rows[1], slots, which, hidden))
        # With a number Gemma 4 cuts rows before the layers that read others' K/V: hidden states would lack them, and
        # transformers 5.23 fails at it without per-layer embeddings.
        wants_all = len(keep) == len(tokens) and not self.kv.readers
        listed = hidden - {BEFORE_NORM}
        invariance = BatchInvariance() if self.batch_invariant else nullcontext()
        with last_layer_output(self.model, wanted=BEFORE_NORM in hidden) as last, invariance:
            out = self.model(
                input_ids=rows[:1],
                position_ids=rows[1:],
                use_cache=False,
                # Any mask of four dimensions keeps transformers from making its own, for which the host waits.
                attention_mask=rows.new_empty(1, 1, 1, 1),
                slots=slots,
                # An empty index would make an empty product: one row costs less than a second code path.
                logits_to_keep=0 if wants_all else (kept if keep else kept.new_zeros(1)),
                output_hidden_states=bool(listed),
            )
        return TargetOutput(out.logits[0], {**last, **{layer: out.hidden_states[layer][0] for layer in listed}})


def _fused(model: PreTrainedModel, kv: KVShape, context: int) -> Decoder | None:
    if (fused := fused_decoder(model)) is None:
        return None
    try:
        check_against_eager(model, kv, context, fused)
    except UsageError:
        _log.warning("the fused pass does not compute here what transformers' own does: the latter serves, more slowly")
        return None
    compiled = _compiled(fused)
    if compiled is not None and are_alike(model, kv, context, fused, compiled):
        return compiled
    return fused


def _compiled(fused: FusedDecoder) -> Decoder | None:
    if fused.model.device.type != "cpu":
        return None
    try:
        from outrider_server.engine.compiled_decoder import compiled_decoder
    except ImportError as error:
        _log.warning(f"passes take up to twice as long without Numba ({error}): pip install numba")
        return None
    return compiled_decoder(fused)


def _exact_fused(model: PreTrainedModel, kv: KVShape, context: int, directory: Path | None) -> Decoder | None:
    """Return the fused form of an int8 model: with plain products it is compared with the model, packed with those."""
    if (plain := fused_decoder(model, packed=False)) is None:
        return None
    # The first needs every weight's value, which takes long: once for codes of the cache.
    if not was_checked(directory, context):
        check_against_eager(model, kv, context, plain)
        note_checked(directory, context)
    packed = fused_decoder(model)
    serving = packed and (_compiled(packed) or packed)
    check_invariance(model, kv, context, plain, serving)
    return serving


def digest_of(model: PreTrainedModel, directory: Path) -> str:
    """Return the digest of the config and of all weights that this process holds."""
    # Tied weights have several names. Buffers that are not saved may change with every pass.
    named = {id(tensor): (name, tensor) for name, tensor in model.state_dict(keep_vars=True).items()}
    return weights_digest(read_config(directory), released(named.values()))


def public_name(name_or_path: str) -> str:
    """Return the name that clients see: of a directory only its last part."""
    path = Path(name_or_path)
    return path.resolve().name if path.is_dir() else name_or_path
