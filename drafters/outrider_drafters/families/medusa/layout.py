"""Published layouts of Medusa's heads, brought to the names of v0.1.

layout                        blocks                        output of head h
v0.1, text-generation-inf. 1  H.L.linear.{weight,bias}      H.N.weight, N the number of blocks
v1.0 (a whole model's file)   medusa_head.H.L.linear.*      medusa_head.H.N.weight
v1.0's later training, TGI 2  H.L.linear.*                  the target's lm_head
vLLM                          blocks.H.layers.L.weight      lm_heads.H.weight, or one for all heads; token_map
                              (bias or not)                 names the tokens its rows stand for

FasterDecoding/Medusa@e2a5d20 (medusa_model.py, medusa_model_legacy.py, train_legacy.py), huggingface/
text-generation-inference (layers/medusa.py), vLLM (model_executor/models/medusa.py).
Numbers of heads and blocks are counted: published configurations name fewer heads than their files hold.
"""

import re
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.readers.checkpoint import Checkpoint
from outrider_drafters.readers.config import config_int

WHOLE_MODEL = "medusa_head."
VLLM = "medusa_heads."
SHARED = "lm_head.weight"  # vLLM's one output for all heads
FIRST_OUTPUT = "lm_heads.0.weight"
TOKEN_MAP = "token_map"
EXTRAS = frozenset({SHARED, TOKEN_MAP})

BLOCK = re.compile(r"(\d+)\.(\d+)\.linear\.(weight|bias)")
OUTPUT = re.compile(r"(\d+)\.(\d+)\.weight")
VLLM_BLOCK = re.compile(r"blocks\.(\d+)\.layers\.(\d+)\.(weight|bias)")
VLLM_OUTPUT = re.compile(r"lm_heads\.(\d+)\.weight")

Output = Literal["own", "shared", "target"]


@dataclass(frozen=True, slots=True)
class MedusaLayout:
    """A file's tensors under v0.1's names, besides EXTRAS, and what there is of them."""

    files: DrafterFiles
    num_heads: int
    num_blocks: int
    bias: bool
    output: Output

    @property
    def first(self) -> str:
        """The tensor to read sizes from: the first block's, or without blocks the first output."""
        return "0.0.linear.weight" if self.num_blocks else "0.0.weight"


def recognizes(files: DrafterFiles) -> bool:
    names = _bare(files.checkpoint).names
    return any(pattern.fullmatch(name) for name in names for pattern in (BLOCK, OUTPUT, VLLM_BLOCK))


def is_output(name: str) -> bool:
    """True for a head's output in any layout, or one for all heads."""
    bare = name.removeprefix(WHOLE_MODEL).removeprefix(VLLM)
    return bare == SHARED or any(pattern.fullmatch(bare) for pattern in (OUTPUT, VLLM_OUTPUT))


def read_layout(files: DrafterFiles) -> MedusaLayout:
    """Recognize the layout and rename its tensors. Raises UsageError for names of two layouts."""
    bare = _bare(files.checkpoint)
    blocks = [match for name in bare.names if (match := BLOCK.fullmatch(name) or VLLM_BLOCK.fullmatch(name))]
    heads = {match[1] for match in blocks} | {
        match[1] for name in bare.names if (match := OUTPUT.fullmatch(name) or VLLM_OUTPUT.fullmatch(name))
    }
    num_blocks = len({match[2] for match in blocks})
    shared = files.config.get("original_lm_head") is True
    named = bare.renamed(lambda name: _named(name, num_blocks, shared))
    owns = any(OUTPUT.fullmatch(name) for name in named.names)
    output: Output = "shared" if SHARED in named.names else "own" if owns else "target"
    bias = any(match[3] == "bias" for match in blocks)
    return MedusaLayout(files.with_checkpoint(named), len(heads), num_blocks, bias, output)


def read_token_map(layout: MedusaLayout, target: TargetSizes) -> Tensor | None:
    """Read the target's tokens that may be drafted [k] int64, None for all. Raises UsageError for a broken map."""
    # As in vLLM, a map counts unless truncated_vocab_size is the whole vocabulary; files then hold it all the same.
    files = layout.files
    if TOKEN_MAP not in files.names or files.config.get("truncated_vocab_size") == target.vocab:
        return None
    tokens = files.checkpoint.read(TOKEN_MAP)
    if tokens.ndim != 1 or tokens.dtype not in (torch.int32, torch.int64):
        raise files.fault(f"{TOKEN_MAP} of shape {list(tokens.shape)}, {tokens.dtype}: need a row of token ids")
    if len(set(tokens.tolist()) & set(range(target.vocab))) != len(tokens) or not len(tokens):
        raise files.fault(f"{TOKEN_MAP}: need different tokens from 0 to {target.vocab - 1}")
    stated = config_int(files.config, "truncated_vocab_size", len(tokens))
    if stated != len(tokens):
        raise files.fault(f"{TOKEN_MAP} has {len(tokens)} tokens: config.json says truncated_vocab_size={stated}")
    return tokens.to(torch.int64)


def _bare(checkpoint: Checkpoint) -> Checkpoint:
    """Select the heads' tensors, without the prefix that they have in a whole model or in vLLM."""
    if any(name.startswith(WHOLE_MODEL) for name in checkpoint.names):
        return checkpoint.renamed(lambda name: name.removeprefix(WHOLE_MODEL) if name.startswith(WHOLE_MODEL) else None)
    return checkpoint.renamed(lambda name: name.removeprefix(VLLM))


def _named(name: str, num_blocks: int, shared: bool) -> str | None:
    """Return a tensor's name in v0.1; None for a copy of a shared one."""
    if match := VLLM_BLOCK.fullmatch(name):
        return f"{match[1]}.{match[2]}.linear.{match[3]}"
    if match := VLLM_OUTPUT.fullmatch(name):
        if shared:
            return SHARED if name == FIRST_OUTPUT else None
        return f"{match[1]}.{num_blocks}.weight"
    return name
