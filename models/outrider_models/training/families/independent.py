"""Training of an independent drafter: a small language model that learns the target's distribution.

The loss is forward KL, as in DistillSpec (arXiv 2310.08461) for fixed data. No paper gives sizes or rates; these are
ours. `start` names a model to start from; the sizes are then that model's.
"""

import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import torch
from pydantic import NonNegativeInt, PositiveInt
from torch import Tensor
from transformers import AutoModelForCausalLM, PreTrainedModel

from outrider_drafters.checkpoints.causal_lm import load_causal_lm
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.hf_config import causal_config
from outrider_drafters.checkpoints.target_weights import resolve_dir
from outrider_models.training.core.family import TrainableFamily, divisor
from outrider_models.training.core.interfaces import (
    Batch,
    Frequencies,
    LossOutput,
    TargetFacts,
    TeacherOutput,
    TrainableDrafter,
    chosen_rows,
)
from outrider_models.training.core.losses import TargetLabels, compare
from outrider_models.training.core.rates import Length, Schedule
from outrider_proto.errors import UsageError

_TOKENIZER_FILES = ("tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "chat_template.jinja")


@dataclass(frozen=True, slots=True)
class IndependentSettings:
    start: str  # directory or hub name; empty: a new model of the sizes below
    init: Literal["random", "target"]  # target: a new one's embedding starts as the target's lm_head
    layers: PositiveInt
    hidden: PositiveInt
    heads: PositiveInt
    kv_heads: PositiveInt
    intermediate: PositiveInt
    draft_vocab: NonNegativeInt  # tokens that it drafts, the most frequent ones; 0: all

    def __post_init__(self) -> None:
        if self.hidden % self.heads or self.heads % self.kv_heads:
            raise UsageError(
                f"hidden={self.hidden}, heads={self.heads}, kv_heads={self.kv_heads}: "
                "each must be a multiple of the next"
            )


class TrainableIndependent(TrainableDrafter):
    def __init__(self, settings: IndependentSettings, target: TargetFacts, frequencies: Frequencies) -> None:
        super().__init__()
        self._facts, self._init = target, "random" if settings.start else settings.init
        if self._init == "target" and settings.hidden > target.sizes.hidden:
            raise UsageError(
                f"drafter.init=target, drafter.hidden={settings.hidden}: need at most {target.sizes.hidden}, "
                "the target's"
            )
        self.network: PreTrainedModel = _continued(settings.start) if settings.start else _fresh(settings, target)
        if (rows := len(self._output())) < target.sizes.vocab:
            raise UsageError(f"start={settings.start}: vocabulary of {rows}, but the target has {target.sizes.vocab}")
        self.limited_to(settings.draft_vocab, frequencies, target.sizes.vocab)

    @torch.no_grad()
    def init_from_lm_head(self, lm_head: Tensor) -> None:
        """With init=target, start the embedding as lm_head, in the directions in which its drafted rows differ most."""
        if self._init == "random":
            return
        rows = chosen_rows(lm_head, self.draft_tokens).float()
        embedding = self._output()
        # eigh sorts upwards.
        directions = torch.linalg.eigh(rows.T @ rows).eigenvectors[:, -embedding.shape[1] :]
        start = lm_head.float() @ directions
        # Of the random weights' size: the first layers would make too much, or too little, of another one.
        embedding[: len(start)] = start * (embedding.std() / start.std())

    def load_weights(self, files: DrafterFiles) -> None:
        raise UsageError(f"--start {files.directory}: an independent drafter starts from `start` in its own settings")

    def forward(self, batch: Batch, target: TeacherOutput, progress: float) -> LossOutput:
        drafted = self.network.base_model(input_ids=batch.tokens, use_cache=False).last_hidden_state
        mask, labels = batch.loss_mask, TargetLabels(target, batch.loss_mask)
        weight = chosen_rows(self._output()[: self._facts.sizes.vocab], self.draft_tokens)
        compared = compare(drafted[mask], weight, None, labels, labels.ahead(0))
        return LossOutput(compared.total, compared.loss, compared.hits, mask.nonzero()[:, 0])

    def export(self, directory: Path) -> None:
        """Write a Hugging Face directory with the target's tokenizer."""
        once: dict[int, Tensor] = {}  # a tied head stays one tensor with the embedding, which is then stored once
        half = {name: once.setdefault(tensor.data_ptr(), tensor.to(torch.bfloat16))
                for name, tensor in self.network.state_dict().items()}  # fmt: skip
        self.network.save_pretrained(directory, state_dict=half)
        for name in _TOKENIZER_FILES:
            if (self._facts.directory / name).is_file():
                shutil.copyfile(self._facts.directory / name, directory / name)

    def _output(self) -> Tensor:
        weight: Tensor = self.network.get_output_embeddings().weight  # type: ignore[no-untyped-call]  # transformers
        return weight


def default_settings(target: TargetFacts) -> IndependentSettings:
    """Return sizes of an eighth of the target's depth and half of its width."""
    sizes = target.sizes
    heads = max(1, sizes.heads // 2)
    return IndependentSettings(
        start="", init="random", layers=max(1, sizes.layers // 8), hidden=heads * sizes.head_dim, heads=heads,
        kv_heads=divisor(max(1, sizes.kv_heads // 2), heads), intermediate=target.mlp // 2, draft_vocab=0,
    )  # fmt: skip


def _fresh(settings: IndependentSettings, target: TargetFacts) -> PreTrainedModel:
    config = causal_config(target.directory).get_text_config()
    config.num_hidden_layers = settings.layers
    config.hidden_size = settings.hidden
    config.num_attention_heads, config.num_key_value_heads = settings.heads, settings.kv_heads
    config.head_dim = settings.hidden // settings.heads
    config.intermediate_size = settings.intermediate
    config.tie_word_embeddings = True
    # transformers requires one entry per layer.
    if getattr(config, "layer_types", None):
        config.layer_types = config.layer_types[: settings.layers]
    model: PreTrainedModel = AutoModelForCausalLM.from_config(  # type: ignore[no-untyped-call]  # transformers
        config, dtype=torch.float32
    )
    return model


def _continued(start: str) -> PreTrainedModel:
    try:
        return load_causal_lm(resolve_dir(start), dtype=torch.float32)[0]
    except UsageError as error:
        raise UsageError(f"start={start}: {error}") from error


FAMILY = TrainableFamily(
    name="independent",
    settings=IndependentSettings,
    defaults=default_settings,
    make_drafter=TrainableIndependent,
    schedule=Schedule(peak=3e-4, warmup_updates=500, decay="cosine", last=3e-5, weight_decay=0.1),
    length=Length(batch=32, epochs=3),
)
