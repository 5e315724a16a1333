"""RoPE's frequencies, plain and scaled, from a raw config.json.

linear   every frequency / factor                               (kaiokendev's position interpolation)
llama3   waves longer than the original context / low_freq_factor are stretched by `factor`, those shorter than
         it / high_freq_factor are not, those between in part     (Llama 3.1, config.rope_scaling)
yarn     the same by the number of turns a pair makes within the original context, from beta_fast to beta_slow;
         cosines and sines are multiplied by `magnitude`          (arXiv 2309.00071, 3.2 and 3.4)
divisors every frequency / its own number                        (llama.cpp's rope_freqs.weight)
"""

import math
from dataclasses import dataclass
from functools import lru_cache
from typing import Literal, assert_never, cast, get_args

import torch
from torch import Tensor

from outrider_drafters.readers.config import Config, config_int, config_number, config_part
from outrider_proto.errors import UsageError

Kind = Literal["linear", "llama3", "yarn", "divisors"]


@dataclass(frozen=True, slots=True)
class RopeScaling:
    """Scaling of RoPE; pairs from `slow` to `fast` (low_, high_freq_factor; beta_slow, beta_fast) are so in part."""

    kind: Kind
    factor: float
    original_context: float = 0.0
    slow: float = 1.0
    fast: float = 1.0
    magnitude: float = 1.0
    truncate: bool = True
    divisors: tuple[float, ...] = ()  # one a pair

    def as_config(self) -> Config:
        """Return the `rope_scaling` entry of a config.json."""
        match self.kind:
            case "linear":
                return {"rope_type": "linear", "factor": self.factor}
            case "llama3":
                edges = {"low_freq_factor": self.slow, "high_freq_factor": self.fast}
            case "yarn":
                edges = {"beta_slow": self.slow, "beta_fast": self.fast, "attention_factor": self.magnitude}
                edges["truncate"] = self.truncate
            case "divisors":
                return {"rope_type": "divisors", "divisors": list(self.divisors)}
            case _:
                assert_never(self.kind)
        context = {"original_max_position_embeddings": int(self.original_context)}
        return {"rope_type": self.kind, "factor": self.factor, **context, **edges}


def rope_scaling(config: Config) -> RopeScaling | None:
    """Read the RoPE scaling of a config, in the spelling of transformers 4 or 5. Raises UsageError."""
    entry = rope_entry(config)
    kind = entry.get("rope_type") or entry.get("type") or "default"
    if kind == "default":
        return None
    if kind not in get_args(Kind):
        raise UsageError(f"config.json: rope_scaling of type {kind}: need one of {', '.join(get_args(Kind))}")
    if entry.get("partial_rotary_factor") not in (None, 0, 1):
        raise UsageError(f"config.json: partial_rotary_factor={entry['partial_rotary_factor']}: need 1")
    return _read(cast(Kind, kind), entry, config)


@lru_cache(maxsize=64)
def inverse_frequencies(head_dim: int, theta: float, scaling: RopeScaling | None, device: torch.device) -> Tensor:
    """Compute the radians per position of each pair, [head_dim / 2] float32."""
    # The result is cached and serves training too, where a tensor made in inference mode cannot take part.
    with torch.inference_mode(False):
        exponents = torch.arange(0, head_dim, 2, dtype=torch.float32, device=device) / head_dim
        # In this order: theta**-exponents differs in the last bit from what transformers computes.
        plain = 1.0 / theta**exponents
        if scaling is None:
            return plain
        if scaling.kind == "divisors":
            return plain / _divisors(scaling, plain)
        return plain + (plain / scaling.factor - plain) * _stretched(plain, theta, scaling)


def rope_entry(config: Config) -> Config:
    """Return a config's `rope_scaling` or `rope_parameters`, empty without either. Raises UsageError."""
    return config_part(config, "rope_scaling") or config_part(config, "rope_parameters")


def _read(kind: Kind, entry: Config, config: Config) -> RopeScaling:
    if kind == "divisors":
        return RopeScaling(kind, 1.0, divisors=tuple(map(float, entry.get("divisors") or ())))
    factor = config_number(entry, "factor")
    if kind == "linear":
        return RopeScaling(kind, factor)
    original = "original_max_position_embeddings"
    context = config_int(entry, original) if entry.get(original) else config_int(config, "max_position_embeddings")
    if kind == "llama3":
        low, high = config_number(entry, "low_freq_factor"), config_number(entry, "high_freq_factor")
        return RopeScaling(kind, factor, float(context), low, high)
    slow, fast = config_number(entry, "beta_slow", 1.0), config_number(entry, "beta_fast", 32.0)
    truncate = entry.get("truncate", True) is not False
    return RopeScaling(kind, factor, float(context), slow, fast, _magnitude(entry, factor), truncate)


def _magnitude(entry: Config, factor: float) -> float:
    """Return YaRN's factor on cosines and sines (eq. 22; DeepSeek's pair of mscale values where given)."""
    if entry.get("attention_factor") is not None:
        return config_number(entry, "attention_factor")

    def growth(weight: float) -> float:
        return 1.0 if factor <= 1 else 0.1 * weight * math.log(factor) + 1.0

    if not entry.get("mscale") or not entry.get("mscale_all_dim"):
        return growth(1.0)
    return growth(config_number(entry, "mscale")) / growth(config_number(entry, "mscale_all_dim"))


def _divisors(scaling: RopeScaling, plain: Tensor) -> Tensor:
    if len(scaling.divisors) != len(plain):
        raise UsageError(f"{len(scaling.divisors)} divisors of RoPE's frequencies: need {len(plain)}, half a head")
    return torch.tensor(scaling.divisors, dtype=torch.float32, device=plain.device)


def _stretched(plain: Tensor, theta: float, scaling: RopeScaling) -> Tensor:
    """Return the share of the scaling that each pair gets, 0 to 1."""
    match scaling.kind:
        case "linear" | "divisors":
            return torch.ones_like(plain)
        case "llama3":
            turns = scaling.original_context * plain / (2 * math.pi)
            return ((scaling.fast - turns) / (scaling.fast - scaling.slow)).clamp(0, 1)
        case "yarn":
            first, last = (_pair_of(turns, len(plain), theta, scaling) for turns in (scaling.fast, scaling.slow))
            if scaling.truncate:
                first, last = math.floor(first), math.ceil(last)
            # Clamped to head_dim - 1, not to the number of pairs, as transformers and YaRN's own code do.
            first, last = max(first, 0), min(last, 2 * len(plain) - 1)
            # 0.001 as in YaRN's own code: equal bounds must not divide by zero.
            pairs = torch.arange(len(plain), dtype=torch.float32, device=plain.device)
            return ((pairs - first) / (last - first if last != first else 0.001)).clamp(0, 1)
        case _:
            assert_never(scaling.kind)


def _pair_of(turns: float, num_pairs: int, theta: float, scaling: RopeScaling) -> float:
    """Return the fractional index of the pair that makes `turns` turns within the original context."""
    return num_pairs * math.log(scaling.original_context / (turns * 2 * math.pi)) / math.log(theta)
