"""IBM's MLP speculators (ibm-ai-platform's accelerators) from published files, and their declaration.

speculator.emb.H, .proj.H, .head.H, .ln.H      of head H, with or without the prefix; model_type mlp_speculator
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.contracts.tree_shape import MAX_BREADTH, MAX_LEVELS, TreePlan, TreeShape
from outrider_drafters.families.family import Family
from outrider_drafters.families.heads import HeadsDrafter, NewestHiddenTap, TokenPath, newest_hidden_info
from outrider_drafters.families.mlp_speculator.network import MLPSpeculator, MLPSpeculatorSizes
from outrider_drafters.readers.config import config_int
from outrider_proto.tree import MAX_NODES

NAME = "mlp_speculator"


class MLPSpeculatorDrafter(HeadsDrafter):
    """Client half: heads that each read the token before, from the newest feature. NewestHiddenTap is the other."""

    family = NAME

    def __init__(
        self,
        network: MLPSpeculator,
        target: TargetWeights,
        plan: TreePlan | None = None,
        row_tokens: Tensor | None = None,
    ) -> None:
        """`row_tokens` [rows]: what the heads' rows stand for; None if every token has one."""
        sizes = network.sizes
        super().__init__(target, newest_hidden_info(sizes.hidden), sizes.heads, plan)
        self.network = network
        self._outputs = [target.head_for(network.output(head), row_tokens) for head in range(len(network.head))]

    def after(self, feature: Tensor, lines: Sequence[TokenPath], held: dict[TokenPath, Tensor]) -> Tensor:
        states, head = self._states_of(feature, lines, held), len(lines[0]) - 1
        return self._outputs[min(head, len(self._outputs) - 1)].logits(states)

    def _states_of(self, feature: Tensor, lines: Sequence[TokenPath], held: dict[TokenPath, Tensor]) -> Tensor:
        """Return the states [n, width] after n paths of equal length; every path's is computed once."""
        if not held:
            held[()] = self.network.first_state(feature)
        if new := [line for line in dict.fromkeys(lines) if line not in held]:
            above = self._states_of(feature, [line[:-1] for line in new], held)
            tokens = torch.tensor([line[-1] for line in new], device=feature.device)
            held |= zip(new, self.network.next_state(len(new[0]) - 1, above, tokens).unsqueeze(1), strict=True)
        return torch.cat([held[line] for line in lines])


PREFIX = "speculator."
PART = re.compile(r"(emb|proj|head|ln)\.(\d+)\.(weight|bias)")
FIRST_PROJ, HEAD = "proj.0.weight", "head.0.weight"
SIZES = ("vocab_size", "emb_dim", "hidden_size", "inner_dim", "n_predict")
SETTINGS = frozenset((*SIZES, "tie_weights", "scale_input", "n_candidates", "top_k_tokens_per_head"))
CANDIDATES = 5  # paths of a draft, where a config does not say (fms-extras, hf/modeling_mlp_speculator.py)


def recognizes(files: DrafterFiles) -> bool:
    return files.config.get("model_type") == NAME or any(name.startswith(PREFIX + "proj.") for name in files.names)


def load_network(files: DrafterFiles, target: TargetSizes, like: Tensor) -> tuple[MLPSpeculator, DrafterFiles]:
    """Load the network, and return the files with names without a prefix. Raises UsageError for another target's."""
    files.need_understood(SETTINGS)
    bare = files.checkpoint.renamed(lambda name: name.removeprefix(PREFIX))
    files = _untied(files.with_checkpoint(bare), _flag(files, "tie_weights"))
    sizes = _sizes(files, target)
    return files.build(lambda: MLPSpeculator(sizes), like), files


def _untied(files: DrafterFiles, tied: bool) -> DrafterFiles:
    """Leave out the further copies of tied tensors, which a file may hold or not. Raises UsageError if they differ."""
    if not tied:
        return files
    # Whichever copy was kept: which of them it is depends on who saved the file.
    parts = {name: match for name in sorted(files.names) if (match := PART.fullmatch(name))}
    first: dict[str, str] = {}
    for name, match in sorted(parts.items(), key=lambda item: (int(item[1][2]), item[0])):
        kept = f"{match[1]}.{min(int(match[2]), 1) if match[1] == 'proj' else 0}.{match[3]}"
        if kept in first and not torch.equal(files.checkpoint.read(name), files.checkpoint.read(first[kept])):
            raise files.fault(f"tie_weights=True: {name} is not {first[kept]}")
        first.setdefault(kept, name)
    renamed = {name: kept for kept, name in first.items()}
    return files.with_checkpoint(files.checkpoint.renamed(lambda name: renamed.get(name) if name in parts else name))


def _sizes(files: DrafterFiles, target: TargetSizes) -> MLPSpeculatorSizes:
    files.need_vocabulary(target)
    files.need(frozenset({FIRST_PROJ, HEAD}))
    inner, hidden = files.checkpoint.matrix(FIRST_PROJ)
    files.need_equal("emb_dim", hidden, target.hidden)
    for key, size in (("emb_dim", hidden), ("hidden_size", hidden), ("inner_dim", inner)):
        # An inner_dim of 0 is emb_dim.
        said = files.config.get(key) or (hidden if files.config.get(key) == 0 else size)
        if said != size:
            raise files.fault(f"{FIRST_PROJ} has shape {[inner, hidden]}: config.json says {key}={said}")
    tied, stored = _flag(files, "tie_weights"), {m[2] for name in files.names if (m := PART.fullmatch(name))}
    heads = config_int(files.config, "n_predict", None if tied else len(stored))
    if tied and not 2 <= heads <= MAX_LEVELS:
        raise files.fault(f"tie_weights=True: n_predict={heads}: need 2 to {MAX_LEVELS}")
    if not tied and len(stored) != heads:
        raise files.fault(f"holds {len(stored)} heads: config.json says n_predict={heads}")
    files.row_tokens(HEAD, target.vocab)
    rows = files.checkpoint.matrix(HEAD)[0]
    return MLPSpeculatorSizes(hidden, inner, target.vocab, rows, heads, _flag(files, "scale_input"), tied)


def _flag(files: DrafterFiles, key: str) -> bool:
    value = files.config.get(key)
    if value is not None and type(value) is not bool:
        raise files.fault(f"{key}={value}: need true or false")
    return bool(value)


def _plan(files: DrafterFiles, heads: int) -> TreeShape:
    """Return the tree of as many of the likeliest paths as the published code drafts. Raises UsageError."""
    widths = files.config.get("top_k_tokens_per_head")
    candidates = config_int(files.config, "n_candidates", CANDIDATES)
    if widths is not None:
        if not isinstance(widths, list) or not all(type(width) is int and width > 0 for width in widths):
            raise files.fault(f"top_k_tokens_per_head={widths}: need a list of numbers, one a head")
        if len(widths) != heads:
            raise files.fault(f"top_k_tokens_per_head has {len(widths)} entries: need {heads}, one a head")
        candidates = min(candidates, math.prod(widths))
    shape = TreeShape.chain(heads)
    return replace(shape, breadth=min(candidates, MAX_BREADTH), budget=min(candidates * heads, MAX_NODES))


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> MLPSpeculatorDrafter:
    network, bare = load_network(files, target.sizes, target.embed)
    plan, tokens = _plan(files, network.sizes.heads), bare.row_tokens(HEAD, target.sizes.vocab)
    return MLPSpeculatorDrafter(network, target, plan, tokens)


def _load_tap(files: DrafterFiles, target: TargetSizes, like: Tensor) -> NewestHiddenTap:
    network, _ = load_network(files, target, like)
    _plan(files, network.sizes.heads)  # both sides refuse what one of them would
    return NewestHiddenTap(network.sizes.hidden)


FAMILY = Family(
    name=NAME,
    features="the target's last hidden state, newest only",
    offline="as far as its heads",
    trees="dynamic",
    recognizes=recognizes,
    drafter=_load_drafter,
    tap=_load_tap,
    is_head=lambda name: re.fullmatch(r"(speculator\.)?head\.\d+\.weight", name) is not None,
    options=(DRAFT_VOCAB_OPTION,),
)
