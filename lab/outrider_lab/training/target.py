"""Target training: a plain transformers Llama, or Qwen2, on the generated corpus."""

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import cast

import torch
import torch.nn.functional as F
from pydantic import NonNegativeInt, PositiveInt
from tokenizers import Tokenizer
from torch import Tensor
from transformers import GenerationConfig, LlamaConfig, LlamaForCausalLM, Qwen2Config, Qwen2ForCausalLM

from outrider_lab.corpus import CorpusSample
from outrider_lab.corpus.check import score_by_family
from outrider_lab.training.corpus_source import held_out_samples, prompt_ids
from outrider_lab.training.tokenizer import BOS, EOS, PAD, corpus_texts, save_tokenizer, special_id, train_tokenizer
from outrider_models.core.embedded import target_dir
from outrider_models.training.core.interfaces import PADDING, Batch, LossOutput
from outrider_proto.errors import UsageError

MAX_NEW_TOKENS = 130
_PROBED_SAMPLES = 12  # per family
Network = LlamaForCausalLM | Qwen2ForCausalLM


@dataclass(frozen=True, slots=True)
class TargetShape:
    """Sizes of a Llama target with tied embeddings, or with `qkv_bias` of a Qwen2."""

    vocab_size: PositiveInt
    hidden_size: int
    num_layers: PositiveInt
    num_heads: PositiveInt
    num_kv_heads: PositiveInt
    intermediate_size: int
    max_positions: int
    rope_theta: float
    embedding_std: float  # initial; with transformers' 0.02 the layers drown the tokens' identity
    tokenizer_samples: NonNegativeInt  # of each family, to train the tokenizer on; 0: take the embedded target's
    qkv_bias: bool

    def __post_init__(self) -> None:
        if self.hidden_size % self.num_heads or self.num_heads % self.num_kv_heads:
            raise UsageError(
                f"hidden_size={self.hidden_size}, num_heads={self.num_heads}, num_kv_heads={self.num_kv_heads}: "
                "each must be a multiple of the next"
            )


class TargetTask:
    """A target with random weights. Labels outside replies weigh `prompt_weight`."""

    def __init__(self, shape: TargetShape, tokenizer: Tokenizer, seed: int, prompt_weight: float) -> None:
        self.tokenizer, self._prompt_weight = tokenizer, prompt_weight
        torch.manual_seed(seed)
        self.network = _network(target_config(shape, tokenizer))
        _initialize(self.network, shape.embedding_std)

    def loss(self, batch: Batch, progress: float = 0.0) -> LossOutput:
        """Compute the weighted cross-entropy; that of replies is the main term."""
        weights = torch.where(batch.loss_mask, 1.0, self._prompt_weight) * (batch.labels != PADDING)
        with torch.autocast("cpu", torch.bfloat16):
            hidden = self.network.model(input_ids=batch.tokens, use_cache=False).last_hidden_state
            # Logits [rows, V] are the largest tensor of the update: they are made only where there is a weight.
            kept = weights > 0
            logits = self.network.lm_head(hidden[kept])
        labels, replies = batch.labels[kept], batch.loss_mask[kept]
        losses = F.cross_entropy(logits.float(), labels, reduction="none")
        hits = logits.detach()[replies].argmax(-1) == labels[replies]
        return LossOutput(
            (losses * weights[kept]).sum(), losses.detach()[replies], hits, batch.loss_mask.nonzero()[:, 0]
        )

    def export(self, directory: Path) -> None:
        """Write the plain Hugging Face layout: weights in bfloat16, configuration, tokenizer."""
        # A second model: bfloat16() on the one in training would round its weights.
        config = type(self.network.config).from_dict(self.network.config.to_dict())
        half = _network(config).bfloat16()
        half.load_state_dict(rescale_features(self.network.state_dict()))
        half.generation_config = GenerationConfig(  # type: ignore[no-untyped-call]  # unannotated in transformers
            bos_token_id=config.bos_token_id, eos_token_id=config.eos_token_id, pad_token_id=config.pad_token_id
        )
        half.save_pretrained(directory)
        save_tokenizer(self.tokenizer, directory, config.max_position_embeddings)

    def validate(self) -> Mapping[str, object]:
        """Score greedy answers to held-out prompts by family."""
        samples = held_out_samples(_PROBED_SAMPLES)
        scores = score_by_family(samples, answers(self.network, self.tokenizer, samples))
        return {"scores": {family: f"{score.passed}/{score.total}" for family, score in scores.items()}}


def target_tokenizer(shape: TargetShape, seed: int) -> Tokenizer:
    """Train the tokenizer of a target; the same settings give the same one. Raises UsageError."""
    if not shape.tokenizer_samples:
        embedded: Tokenizer = Tokenizer.from_file(str(target_dir() / "tokenizer.json"))
        if (size := embedded.get_vocab_size()) != shape.vocab_size:
            raise UsageError(f"vocab_size={shape.vocab_size}: the embedded target's tokenizer has {size}")
        return embedded
    return train_tokenizer(corpus_texts(seed, shape.tokenizer_samples), shape.vocab_size)


def target_config(shape: TargetShape, tokenizer: Tokenizer) -> LlamaConfig | Qwen2Config:
    made = Qwen2Config if shape.qkv_bias else LlamaConfig
    return made(
        vocab_size=shape.vocab_size,
        hidden_size=shape.hidden_size,
        num_hidden_layers=shape.num_layers,
        num_attention_heads=shape.num_heads,
        num_key_value_heads=shape.num_kv_heads,
        intermediate_size=shape.intermediate_size,
        max_position_embeddings=shape.max_positions,
        rope_parameters={"rope_type": "default", "rope_theta": shape.rope_theta},
        tie_word_embeddings=True,
        bos_token_id=special_id(tokenizer, BOS),
        eos_token_id=special_id(tokenizer, EOS),
        pad_token_id=special_id(tokenizer, PAD),
    )


def _network(config: LlamaConfig | Qwen2Config) -> Network:
    return Qwen2ForCausalLM(config) if isinstance(config, Qwen2Config) else LlamaForCausalLM(config)


def rescale_features(weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Rescale a target so that its features have an rms of about 2 and its embeddings are small, as in large models.

    Embeddings and everything that layers add are divided by one number, and the final norm is multiplied by it, so no
    logit changes. Drafters start from embeddings and aim at features, so they learn better.
    """
    size = weights["model.norm.weight"].float().pow(2).mean().sqrt()
    # A power of two: exact in floating point, up to the norms' epsilon.
    factor = 2.0 ** round(1 - math.log2(float(size)))
    shrunk = ("embed_tokens.weight", "lm_head.weight", "o_proj.weight", "down_proj.weight")
    scaled = {name: tensor / factor if name.endswith(shrunk) else tensor for name, tensor in weights.items()}
    return scaled | {"model.norm.weight": weights["model.norm.weight"] * factor}


@torch.no_grad()
def _initialize(network: Network, embedding_std: float) -> None:
    """Initialize so that the residual stream is the tokens' embeddings and the logits are small.

    Layers add nothing at first. With the tied embeddings of transformers, of 0.02, the output of the first layer soon
    drowns them, and the model hardly learns to copy, which needs the identity of each token.
    """
    network.model.embed_tokens.weight.normal_(std=embedding_std)
    network.model.norm.weight.fill_(network.config.initializer_range / embedding_std)
    for layer in network.model.layers:
        layer.self_attn.o_proj.weight.zero_()
        layer.mlp.down_proj.weight.zero_()


@torch.inference_mode()
def answers(model: Network, tokenizer: Tokenizer, samples: Sequence[CorpusSample], batch_size: int = 48) -> list[str]:
    """Return greedy answers, batched by prompt length so that little of a batch is padding."""
    was_training = model.training
    model.train(False)
    prompts = [prompt_ids(tokenizer, sample) for sample in samples]
    order = sorted(range(len(samples)), key=lambda i: len(prompts[i]))
    texts: dict[int, str] = {}
    for start in range(0, len(order), batch_size):
        rows = order[start : start + batch_size]
        outputs = _generate(model, tokenizer, [prompts[i] for i in rows])
        texts |= dict(zip(rows, tokenizer.decode_batch(outputs), strict=True))
    model.train(was_training)
    return [texts[i] for i in range(len(samples))]


def _generate(model: Network, tokenizer: Tokenizer, prompts: list[list[int]]) -> list[list[int]]:
    longest = max(map(len, prompts))
    pad, eos = special_id(tokenizer, PAD), special_id(tokenizer, EOS)
    # Padding on the left: generation continues from the last column of every row.
    ids = torch.tensor([[pad] * (longest - len(p)) + p for p in prompts])
    mask = torch.tensor([[0] * (longest - len(p)) + [1] * len(p) for p in prompts])
    generate_ids = cast(Callable[..., Tensor], model.generate)  # type: ignore[misc]  # its protocol wants more of self
    output = generate_ids(
        input_ids=ids,
        attention_mask=mask,
        do_sample=False,
        max_new_tokens=MAX_NEW_TOKENS,
        eos_token_id=eos,
        pad_token_id=pad,
    )
    return [[t for t in row if t not in (pad, eos)] for row in output[:, longest:].tolist()]
