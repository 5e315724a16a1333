"""The published layouts of DFlash, and of DSpark, which has the same backbone: their settings and tensors as sizes.

z-lab         Qwen3's keys; settings in dflash_config or beside it; embedding and lm_head are the target's. SpecForge's,
              too, perhaps with either of its own, or with few tokens (d2t) whose rows are the target's
DeepSpec      Qwen3's keys and settings side by side; embedding and lm_head of its own; the root's row drafts, too
speculators   Qwen3's keys in transformer_layer_config; embedding and lm_head of its own, perhaps of few tokens (d2t)
GGUF          llama.cpp: translated before (dflash_gguf.py)

z-lab and DeepSpec count layers by their outputs, speculators counts hidden states, the embedding being the first.
"""

import logging
import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Literal

from outrider_drafters.blocks.layers import QK_NORMS, WEIGHTS, stored_shape
from outrider_drafters.blocks.rope import rope_scaling
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import FROM_ROOT_OPTION, TARGET_LAYERS_OPTION
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.contracts.tap import BEFORE_NORM, LAST
from outrider_drafters.contracts.tree_shape import TreeShape
from outrider_drafters.families.dflash.layer_masks import layer_mask
from outrider_drafters.families.dflash.network import LATE, DFlashSizes
from outrider_drafters.families.shared_layout import (
    D2T,
    EMBEDDING,
    LM_HEAD,
    VERIFIERS,
    best_first_or_chain,
    check_layers,
    mask_token,
    speculative_tokens,
    stored_head,
)
from outrider_drafters.readers.config import KIND, NESTED, Config, config_int, config_number, flattened

Layout = Literal["z-lab", "DeepSpec", "speculators"]

REQUIRED = frozenset(
    {"fc.weight", "hidden_norm.weight", "norm.weight"} | {f"layers.0.{name}" for name in (*WEIGHTS, *QK_NORMS)}
)
HEADS = ("markov_", "confidence_", "logit_head.")  # parts of DSpark, by any of their names
INNER = "dflash_config"
MARKOV_RANK = "markov_rank"
CONFIDENCE_HEAD = "enable_confidence_head"
SOFTCAP = "final_logit_softcapping"
DDTREE = 16  # nodes of the tree that a block drafts unless told otherwise, as many as in dynamic trees
BLOCK: Mapping[Layout, int] = {"z-lab": 16, "speculators": 8}  # where a layout has a default
SETTINGS = frozenset({  # what is read of dflash_config, or follows from the tensors
    "attention_mode", "block_size", "causal", "confidence_head_with_markov", "enable_confidence_head",
    "final_logit_softcapping", "input_embedding_scale", "markov_head_type", "markov_rank", "mask_token_id",
    "num_target_layers", "output_multiplier", "projector_type", "sample_from_anchor", "shift_label", "target_layer_ids",
    "use_confidence_head",
})  # fmt: skip
CHOICES = {"projector_type": ("dflash", "dspark"), "attention_mode": ("gqa", "mha")}
FROM_ROOT = ("sample_from_anchor", "shift_label")  # the latter is Model-Optimizer's
_log = logging.getLogger(__name__)


def family_of(files: DrafterFiles) -> Literal["dflash", "dspark"] | None:
    """Return which of the two families it is, by what it says or what no other family has; None for neither."""
    config = _merged(files.config)
    # Before the architecture: speculators' files may name a class of the code they were trained with.
    if (kind := config.get(KIND)) is not None:
        return kind if kind in ("dflash", "dspark") else None
    named = any(re.match("DFlash|.*DSpark", str(name)) for name in config.get("architectures") or ())
    if not named and "hidden_norm.weight" not in files.names:
        return None
    has_heads = config.get(MARKOV_RANK) or config.get(CONFIDENCE_HEAD) or any(n.startswith(HEADS) for n in files.names)
    return "dspark" if has_heads else "dflash"


def canonical(files: DrafterFiles) -> DrafterFiles:
    """Flatten the config, bring tensors to one naming, and leave out parts of the target that trainers export along."""
    files.need_understood(SETTINGS, INNER)
    checkpoint = files.checkpoint.renamed(_canonical)
    return replace(files, config=_merged(flattened(files.config)), checkpoint=checkpoint)


def _canonical(name: str) -> str | None:
    # logit_head: early files of SpecForge; without a container: NVIDIA's Model-Optimizer.
    name = re.sub("^markov_w", "markov_head.markov_w", name.removeprefix("logit_head."))
    return None if name in VERIFIERS else re.sub("^confidence_proj", "confidence_head.proj", name)


def _merged(config: Config) -> Config:
    """Return a config with the settings of dflash_config beside the others, which they overrule."""
    inner = config.get(INNER)
    given = {key: value for key, value in inner.items() if value is not None} if isinstance(inner, Mapping) else {}
    return {**config, **given}


def layout_of(files: DrafterFiles) -> Layout:
    """Return the layout. DeepSpec writes `markov_rank` always, 0 for a DFlash, and never dflash_config."""
    if KIND in files.config or NESTED in files.config:
        return "speculators"
    return "DeepSpec" if files.config.get(MARKOV_RANK) is not None and INNER not in files.config else "z-lab"


def read_sizes(files: DrafterFiles, target: TargetSizes) -> DFlashSizes:
    """Read sizes and settings of canonical files. Raises UsageError for anything but version 1 for this target."""
    layout = layout_of(files)
    _refuse_others(files, layout)
    files.need_vocabulary(target)
    files.need(REQUIRED if layout != "DeepSpec" else REQUIRED | {LM_HEAD})
    files.need_equal("num_target_layers", config_int(files.config, "num_target_layers", target.layers), target.layers)
    files.need_equal("target_hidden_size", config_int(files.config, "target_hidden_size", target.hidden), target.hidden)
    shape = replace(stored_shape(files.checkpoint, "layers.0.", files.config), rope_scaling=rope_scaling(files.config))
    files.need_equal("hidden size", shape.width, target.hidden)
    from_root, hint = _from_root(files, layout)
    return DFlashSizes(
        shape=shape,
        layer_masks=tuple(layer_mask(files, layer, layout) for layer in range(_num_layers(files))),
        taps=_taps(files, target, layout),
        block=config_int(files.config, "block_size", BLOCK.get(layout)),
        mask_token=mask_token(files, target),
        embed_scale=config_number(files.config, "input_embedding_scale", 1.0),
        logit_scale=config_number(files.config, "output_multiplier", 1.0),
        softcap=config_number(files.config, SOFTCAP) if files.config.get(SOFTCAP) else None,
        from_root=from_root,
        hint=hint,
        vocab=target.vocab,
        head_rows=_head_rows(files, target, layout),
        borrowed_head=LM_HEAD not in files.names,
        own_embedding=_own_embedding(files, target),
        late=config_int(files.config, LATE) if LATE in files.config else 0,
    )


def default_plan(files: DrafterFiles, num_drafts: int) -> TreeShape:
    """Return the best-first tree of its block, as deep as speculators' config says; with ddtree=0 a chain."""
    return best_first_or_chain(files, min(num_drafts, speculative_tokens(files) or num_drafts), DDTREE)


def _refuse_others(files: DrafterFiles, layout: Layout) -> None:
    own = sorted({LM_HEAD, D2T, EMBEDDING} & files.names)
    if layout == "z-lab" and INNER not in files.config and own:
        raise files.fault(
            f"{', '.join(own)} of its own, but config.json is that of no layout which has such: need {MARKOV_RANK} "
            f"(DeepSpec), {KIND} (speculators) or {INNER} (SpecForge)"
        )
    for key, allowed in CHOICES.items():
        if (value := files.config.get(key)) not in (None, *allowed):
            raise files.fault(f"{key}={value}: need {' or '.join(allowed)}")


def _num_layers(files: DrafterFiles) -> int:
    # Not the highest number: a name may have any.
    stored = len({match[1] for name in files.names if (match := re.match(r"layers\.(\d+)\.", name))})
    check_layers(files, stored)
    return stored


def _taps(files: DrafterFiles, target: TargetSizes, layout: Layout) -> tuple[int, ...]:
    """Return the tapped hidden states, from the option or the config; fc's width must fit their number."""
    taps = files.options.get(TARGET_LAYERS_OPTION)
    if taps is None:
        # Layer i's output is hidden_states[i + 1], which begins with the embedding: there, -1 is the embedding.
        key, offset = ("aux_hidden_state_layer_ids", 0) if layout == "speculators" else ("target_layer_ids", 1)
        ids = files.config.get(key)
        if not isinstance(ids, list) or not all(type(layer) is int for layer in ids):
            raise files.fault(f"{key}={ids}: need the target's layers; give target_layers=I-J-...")
        taps = tuple(layer + offset for layer in ids)
    if wrong := [tap for tap in taps if not 0 <= tap <= target.layers]:
        raise files.fault(f"taps hidden state {wrong[0]}, the target has 0 to {target.layers}: made for another target")
    files.need_equal("width of fc", files.checkpoint.matrix("fc.weight")[1], len(taps) * target.hidden)
    # z-lab's code reads Hugging Face's hidden_states, whose last is normed; the others were trained on layers' outputs.
    last = LAST if layout == "z-lab" else BEFORE_NORM
    return tuple(last if tap == target.layers else tap for tap in taps)


def _from_root(files: DrafterFiles, layout: Layout) -> tuple[bool, str]:
    """Return whether the root's row drafts, and what to try otherwise where neither option nor config says it."""
    values = (files.options.get(FROM_ROOT_OPTION), *(files.config.get(key) for key in FROM_ROOT))
    said = next((value for value in values if value is not None), None)
    if said is not None and type(said) is not bool:
        raise files.fault(f"sample_from_anchor={said}: need true or false")
    if said is not None or family_of(files) != "dspark":
        return bool(said) or (said is None and layout == "DeepSpec"), ""
    # Published tools disagree (vllm#56792). SpecForge's own code drafts from the row behind the root; what it converts
    # for SGLang has DeepSpec's class.
    of_deepspec = any(str(name).endswith("DSparkModel") for name in files.config.get("architectures") or ())
    from_root = of_deepspec or layout != "z-lab"
    hint = f"give the drafter the option sample_from_anchor={'false' if from_root else 'true'}"
    if layout != "DeepSpec":
        taken = "the root's row" if from_root else "the row behind the root's"
        lacks = f"config.json lacks sample_from_anchor: {taken} is taken to draft first"
        _log.warning("%s: %s; if few tokens are accepted, %s", files.directory, lacks, hint)
    return from_root, hint


def _head_rows(files: DrafterFiles, target: TargetSizes, layout: Layout) -> int:
    """Return the number of tokens that have a row of a head; 0: all, in the target's own."""
    if D2T in files.names and LM_HEAD not in files.names and layout == "z-lab":
        name, rows, is_own = D2T, files.checkpoint.read(D2T).numel(), True
    else:
        files.need(frozenset({LM_HEAD} if D2T in files.names else ()))
        name, (rows, is_own) = LM_HEAD, stored_head(files, target)
    if (said := config_int(files.config, "draft_vocab_size", rows)) != rows:
        raise files.fault(f"{name} has {rows} rows: config.json says draft_vocab_size={said}")
    return rows if is_own else 0


def _own_embedding(files: DrafterFiles, target: TargetSizes) -> bool:
    """Return whether the embedding is in the file: a bundle leaves out one that is the target's."""
    if EMBEDDING not in files.names:
        return False
    files.need_equal(f"rows of {EMBEDDING}", files.checkpoint.matrix(EMBEDDING)[0], target.vocab)
    return True
