"""A drafter's files as a family reads them: configuration, tensors, options, and the checks common to all families."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import torch
from torch import Tensor, nn

from outrider_drafters.checkpoints import dflash_gguf, eagle3_gguf
from outrider_drafters.checkpoints.draft_vocabulary import DRAFT_VOCAB, read_draft_vocab
from outrider_drafters.checkpoints.gguf_config import LANGUAGE_MODELS
from outrider_drafters.checkpoints.gguf_target import dequantized_dir
from outrider_drafters.checkpoints.hf_config import explained
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION, DrafterOptions
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import TargetSizes, find_model
from outrider_drafters.readers.checkpoint import Checkpoint, join_names, need_finite
from outrider_drafters.readers.config import Config, config_int, read_config
from outrider_drafters.readers.gguf_file import SUFFIX, GgufFile, part_names
from outrider_proto.errors import OutriderError, UsageError

Network = TypeVar("Network", bound=nn.Module)

IGNORED = ".rotary_emb.inv_freq"  # a buffer some older writers saved; it follows from rope_theta
OWN = "outrider_"  # begins the keys that this project adds to a config.json
# Keys of any config.json of Hugging Face's that say nothing of a drafter's arithmetic. Ties follow from tensors.
GENERAL = frozenset({
    "_name_or_path", "architectures", "attribute_map", "auto_map", "base_config_key", "base_model_pp_plan",
    "base_model_tp_plan", "bos_token_id", "dtype", "eos_token_id", "has_no_defaults_at_init", "id2label",
    "is_composition", "keys_to_ignore_at_inference", "label2id", "model_type", "pad_token_id", "return_dict",
    "tie_word_embeddings", "torch_dtype", "transformers_version", "use_cache",
})  # fmt: skip
# Keys that trainers leave behind: what they sampled, weighted and scheduled. None of them changes the network.
TRAINING = frozenset({
    "attention_backend", "attention_dropout", "ce_loss_alpha", "confidence_head_alpha", "down_sample_ratio",
    "down_sample_ratio_min", "dpace_alpha", "dpard_alpha", "dspark_ce_loss_alpha", "dspark_confidence_head_alpha",
    "dspark_l1_loss_alpha", "embed_weight_key", "embedding_key", "freeze_base_model", "gradient_checkpointing",
    "initializer_range", "kl_decay", "kl_scale", "l1_loss_alpha", "lambda_base", "lambda_base_decay_ratio",
    "lambda_base_start", "lk_loss_type", "lm_head_key", "loss_decay_factor", "loss_decay_gamma", "loss_fn",
    "loss_mode", "loss_objective", "loss_type", "max_anchors", "num_anchors", "num_blocks_per_sample",
    "objective_chunk_blocks", "prefix_weight_base", "report_acc", "self_logit_distillation", "step_loss_decay",
    "target_model_name_or_path", "training_mode", "ttt_length", "ttt_step_loss_decay", "ttt_steps",
})  # fmt: skip


@dataclass(frozen=True, slots=True)
class DrafterFiles:
    """An opened drafter directory. Every method raises UsageError that names the directory and what is wrong."""

    directory: Path
    config: Config
    checkpoint: Checkpoint
    options: DrafterOptions

    @classmethod
    def open(cls, source: DrafterSource) -> DrafterFiles:
        """Open a directory, a hub name, or a GGUF file, whose path then takes the directory's place."""
        # A GGUF file stands for its directory, and heads in a file of their own come before a whole model beside them.
        directory = find_model(source.name)
        if (gguf := find_gguf(directory)) is not None:
            file = GgufFile.read(gguf)
            if file.architecture not in LANGUAGE_MODELS:
                config, tensors = translate_gguf(file)
                return cls(gguf, config, Checkpoint.holding(gguf, tensors), source.options)
            directory = dequantized_dir(gguf)
        return cls(directory, read_config(directory), Checkpoint(directory, heads_first=True), source.options)

    @classmethod
    def without_files(cls, source: DrafterSource) -> DrafterFiles:
        """Make the files of a drafter that needs none: its options and nothing else."""
        place = Path(source.name)
        return cls(place, {}, Checkpoint.holding(place, {}), source.options)

    @property
    def names(self) -> frozenset[str]:
        return self.checkpoint.names

    def with_checkpoint(self, checkpoint: Checkpoint) -> DrafterFiles:
        """Return the same files with another view of their tensors."""
        return replace(self, checkpoint=checkpoint)

    @contextmanager
    def naming_errors(self) -> Iterator[None]:
        """Prefix errors with the drafter's directory, which tells several heads apart, unless they name it.

        Any error is one of the files': it becomes a UsageError.
        """
        try:
            yield
        except UsageError as error:
            if str(self.directory) in str(error):
                raise
            raise self.fault(str(error)) from error
        except OutriderError:
            raise
        except Exception as error:  # what somebody else's files hold fails in any way
            raise self.fault(f"cannot be loaded: {explained(error)}") from error

    def fault(self, message: str) -> UsageError:
        return UsageError(f"{self.directory}: {message}")

    def need(self, required: frozenset[str]) -> None:
        """Raise UsageError if any of these tensors is missing."""
        if missing := sorted(required - self.names):
            raise self.fault(f"lacks tensors {join_names(missing)}")

    def need_equal(self, what: str, drafter: int, target: int) -> None:
        """Raise UsageError if a size of the drafter differs from the target's."""
        if drafter != target:
            raise self.fault(f"{what} is {drafter}, the target's {target}: made for another target")

    def need_understood(self, settings: frozenset[str], part: str | None = None) -> None:
        """Raise UsageError for a setting, or one of an object in it, that is on and none of these nor TRAINING."""
        # Passed over, a setting of a later version would cost acceptance and nothing else.
        inner = self.config if part is None else self.config.get(part)
        for key, value in inner.items() if isinstance(inner, Mapping) else ():
            known = key in settings | GENERAL | TRAINING or key.startswith(OWN)
            if value and not known:
                raise self.fault(
                    f"{part or 'config.json'}: {key}={value} is not understood: need one of "
                    f"{', '.join(sorted(settings))}; if it only steered the training, delete it from config.json"
                )

    def need_vocabulary(self, target: TargetSizes) -> None:
        self.need_equal("vocab_size", config_int(self.config, "vocab_size", target.vocab), target.vocab)

    def draft_vocabulary(self, vocab: int) -> tuple[int, ...] | None:
        """Return the tokens that may be drafted, the most frequent first; None if nothing restricts them."""
        chosen, own = self.options.get(DRAFT_VOCAB_OPTION), self._own_draft_vocab
        if isinstance(chosen, str):
            file = self.options.draft_vocab_file
            return None if file is None else read_draft_vocab(file, vocab)
        if not own.is_file():
            if chosen is None:
                return None
            raise self.fault(
                f"draft_vocab={chosen}: it has no {DRAFT_VOCAB} to take tokens from; name a file that `outrider-models "
                "draft-vocab` made"
            )
        tokens = read_draft_vocab(own, vocab)
        if chosen is not None and chosen > len(tokens):
            raise self.fault(f"draft_vocab={chosen}: its {DRAFT_VOCAB} has {len(tokens)} tokens")
        return tokens[:chosen]

    def row_tokens(self, name: str, vocab: int) -> Tensor | None:
        """Return the tokens [rows] int64 of a head's rows, by the directory's DRAFT_VOCAB; None: every token's."""
        rows = self.checkpoint.shape(name)[0]
        if rows == vocab or not self._own_draft_vocab.is_file():
            self.need_equal(f"rows of {name}", rows, vocab)
            return None
        tokens = sorted(read_draft_vocab(self._own_draft_vocab, vocab))
        if rows != len(tokens):
            raise self.fault(f"{name} has {rows} rows: need {len(tokens)}, as {DRAFT_VOCAB} has tokens, or {vocab}")
        return torch.tensor(tokens)

    @property
    def _own_draft_vocab(self) -> Path:
        return (self.directory.parent if self.directory.is_file() else self.directory) / DRAFT_VOCAB

    def build(
        self, make: Callable[[], Network], like: Tensor | None = None, also_known: frozenset[str] = frozenset()
    ) -> Network:
        """Make a network without weights, and fill() it."""
        with torch.device("meta"):
            network = make()
        return self.fill(network, like, also_known)

    def fill(self, network: Network, like: Tensor | None = None, also_known: frozenset[str] = frozenset()) -> Network:
        """Read all tensors of a network on the meta device, as stored or like `like`, and freeze it for inference."""
        network.load_state_dict(self.tensors_for(network, also_known), assign=True)
        network.eval().requires_grad_(False)
        return network if like is None else network.to(like.device, like.dtype)

    def tensors_for(self, network: nn.Module, also_known: frozenset[str] = frozenset()) -> dict[str, Tensor]:
        """Read every tensor of a network as stored. Raises UsageError for missing, unknown and damaged ones."""
        # Unknown tensors are refused too: published loaders skip them (strict=False), and misnamed weights stay random.
        wanted = network.state_dict()
        self.need(frozenset(wanted))
        stored = {name for name in self.names if not name.endswith(IGNORED)}
        if unknown := sorted(stored - set(wanted) - also_known):
            raise self.fault(f"holds unknown tensors {join_names(unknown)}")
        for name, tensor in wanted.items():
            if self.checkpoint.shape(name) != tuple(tensor.shape):
                raise self.fault(
                    f"tensor {name} has shape {list(self.checkpoint.shape(name))}: need {list(tensor.shape)}"
                )
        tensors = {name: self.checkpoint.read(name) for name in wanted}
        for name, tensor in tensors.items():
            is_float = tensor.is_floating_point()
            if is_float != wanted[name].is_floating_point() or (is_float and tensor.dtype.itemsize == 1):
                remedy = "; export weights unquantized" if tensor.dtype.itemsize == 1 else ""
                raise self.fault(f"tensor {name} is of type {tensor.dtype}: need {wanted[name].dtype}{remedy}")
        need_finite(self.directory, tensors.items())
        return tensors


OTHER_WEIGHTS = (".safetensors", ".bin", ".pt")  # a directory that holds these is read as one of them
Translated = tuple[Config, Mapping[str, Tensor]]
TRANSLATIONS: Mapping[str, Callable[[GgufFile], Translated]] = {
    eagle3_gguf.ARCHITECTURE: eagle3_gguf.translate,
    dflash_gguf.ARCHITECTURE: dflash_gguf.translate,
}


def find_gguf(path: Path) -> Path | None:
    """Return the GGUF file at a path, or the only weights in a directory. Raises UsageError for several."""
    if path.is_file():
        return path if path.suffix == SUFFIX else None
    if not path.is_dir():
        return None
    entries = sorted(path.iterdir())
    found = [file for file in entries if file.suffix == SUFFIX]
    if not found or any(file.suffix in OTHER_WEIGHTS for file in entries):
        return None
    if len(found) > 1 and set(found) - set(part_names(found[0])):
        raise UsageError(f"{path}: holds {', '.join(file.name for file in found)}: name one of these files")
    return found[0]


def translate_gguf(file: GgufFile) -> Translated:
    """Translate a GGUF file to a configuration and tensors. Raises UsageError if it is not a drafter."""
    file.need_architecture((*TRANSLATIONS, *LANGUAGE_MODELS), dflash_gguf.FORKS)
    return TRANSLATIONS[file.architecture](file)
