"""Published layouts of EAGLE-3 heads, brought to one naming (SafeAILab's) and one set of sizes.

midlayer.*            SafeAILab, SGLang/SpecForge, AngelSlim: flat config.json
layers.0.*            vLLM, DeepSpec and speculators; the last nests the Llama part of its config in
                      transformer_layer_config
layers.1.* ...        in either, the layers after the first
GGUF                  llama.cpp: translated before (eagle3_gguf.py)

Shapes and the presence of tensors decide wherever they can: config flags are often missing or wrong.

A tapped layer's number is that of its input, Hugging Face's index of hidden_states; the number of layers means the last
layer's output. Published configurations count so, or by the layer whose output it is.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from outrider_drafters.blocks.layers import WEIGHTS, BlockShape, stored_shape
from outrider_drafters.blocks.rope import rope_scaling
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.eagle3_gguf import TARGET_LAYERS
from outrider_drafters.checkpoints.options import (
    EMBEDDING_OPTION,
    ROPE_THETA_OPTION,
    TARGET_LAYERS_OPTION,
    DrafterOption,
)
from outrider_drafters.checkpoints.target_weights import TargetSizes
from outrider_drafters.families.eagle3.layer import Eagle3Sizes
from outrider_drafters.families.shared_layout import EMBEDDING, VERIFIERS, check_layers, stored_head
from outrider_drafters.readers.config import NESTED, SPECULATORS_KEYS, Config, config_int, flattened, is_sliding
from outrider_proto.errors import UsageError

NORM_OUTPUT = DrafterOption.switch("norm_output", "feed back the output after the norm")

IDS = "eagle_aux_hidden_state_layer_ids"
OUTPUT_IDS = "target_layer_ids"  # DeepSpec's, at the top level: it counts layers by their outputs
LAYER = "midlayer."
VLLM_LAYER = "layers.0."
FUSING = ("fc.", "fc_norm.", "input_norm.")
REQUIRED = frozenset({"norm.weight", f"{LAYER}hidden_norm.weight"} | {LAYER + name for name in WEIGHTS})
SWITCHES = ("norm_before_residual", "norm_before_fc", "fc_norm", "norm_output", "embed_requires_grad")
VALUES = ("draft_vocab_size", "target_hidden_size", "eagle_config", IDS)
SETTINGS = frozenset((*SPECULATORS_KEYS, *SWITCHES, *VALUES))  # of speculators' files
LATER = re.compile(r"layers\.(\d+)\.")


def recognizes(files: DrafterFiles) -> bool:
    names = {_canonical(name) for name in files.names}
    return f"{LAYER}hidden_norm.weight" in names or any(_bare(name).startswith(LAYER) for name in files.names)


def canonical(files: DrafterFiles) -> DrafterFiles:
    """Rename tensors to SafeAILab's names and flatten the config. Raises UsageError for two tensors of one name."""
    config = flattened(files.config)
    unused = () if uses_layers(config) else FUSING
    checkpoint = files.checkpoint.renamed(lambda name: None if _bare(name).startswith(unused) else _canonical(name))
    return replace(files, config=config, checkpoint=checkpoint)


def sizes_of(files: DrafterFiles, target: TargetSizes) -> Eagle3Sizes:
    """Read sizes and switches of canonical files. Raises UsageError for another target's head or an unknown form."""
    files.need_vocabulary(target)
    files.need_equal("target_hidden_size", config_int(files.config, "target_hidden_size", target.hidden), target.hidden)
    files.need(REQUIRED)
    with files.naming_errors():
        return _sizes_of(files, target)


def _sizes_of(files: DrafterFiles, target: TargetSizes) -> Eagle3Sizes:
    block, layers = _block(files), _layers(files, target)
    (draft_vocab, own_head), norm_output = stored_head(files, target), files.options.get(NORM_OUTPUT)
    return Eagle3Sizes(
        block=block,
        vocab=target.vocab,
        draft_vocab=draft_vocab,
        target_hidden=target.hidden,
        target_layers=layers,
        fc_bias="fc.bias" in files.names,
        out_bias=f"{LAYER}self_attn.o_proj.bias" in files.names,
        fc_norm="fc_norm.0.weight" in files.names or (_flag(files.config, "fc_norm") and bool(layers)),
        input_norm="input_norm.weight" in files.names or (_flag(files.config, "norm_before_fc") and bool(layers)),
        norm_before_residual=_flag(files.config, "norm_before_residual", default=NESTED in files.config),
        norm_output=_flag(files.config, "norm_output") if norm_output is None else norm_output,
        own_embedding=_own_embedding(files, target, block.width),
        own_head=own_head,
        windows=_windows(files),
    )


def _canonical(name: str) -> str | None:
    name = _bare(name)
    if name in VERIFIERS:
        return None
    return LAYER + name.removeprefix(VLLM_LAYER) if name.startswith(VLLM_LAYER) else name


def _bare(name: str) -> str:
    return name.removeprefix("model.")


def _block(files: DrafterFiles) -> BlockShape:
    """Read the sizes of the layer, which the config may lack (key-value heads, head width, RoPE's base)."""
    block = stored_shape(files.checkpoint, LAYER, files.config)
    width = files.checkpoint.matrix(f"{LAYER}self_attn.o_proj.weight")[0]
    if block.width != 2 * width:
        raise files.fault(
            f"{LAYER}self_attn.q_proj has {block.width} columns: need {2 * width}, an embedding beside a feature"
        )
    theta = files.options.get(ROPE_THETA_OPTION)
    return replace(
        block,
        width=width,
        rope_theta=block.rope_theta if theta is None else theta,
        rope_scaling=rope_scaling(files.config),
    )


def _windows(files: DrafterFiles) -> tuple[int | None, ...]:
    """Return each layer's window. Raises UsageError if the file lacks layers."""
    layers = 1 + len({match[1] for name in files.names if (match := LATER.match(name))})
    config = files.config
    if NESTED not in config:
        # Flat configs are often the target's: their number of layers and their windows are not the head's.
        return (None,) * layers
    check_layers(files, layers)
    width = None if config.get("use_sliding_window") is False else config.get("sliding_window")
    # A window is of positions, as vLLM runs it; speculators' training counts a drafted row's from the root.
    slides = [width is not None and is_sliding(config, layer) for layer in range(layers)]
    return tuple(config_int(config, "sliding_window") if one else None for one in slides)


def _layers(files: DrafterFiles, target: TargetSizes) -> tuple[int, ...]:
    """Return the hidden states it reads; an empty tuple for the last one after the final norm."""
    if not uses_layers(files.config):
        return ()
    files.need(frozenset({"fc.weight"}))
    _, columns = files.checkpoint.matrix("fc.weight")
    if columns % target.hidden:
        raise files.fault(f"fc.weight has {columns} columns: need a multiple of {target.hidden}, the target's width")
    return chosen_layers(files.config, files.options.get(TARGET_LAYERS_OPTION), target.layers, columns // target.hidden)


def _own_embedding(files: DrafterFiles, target: TargetSizes, width: int) -> bool:
    """True if the file's embedding is to be used: if widths differ, on request, or where it was trained."""
    # Otherwise the target's: the file's should be a copy of it, and some exports hold a random one (TorchSpec#38).
    chosen, stored, needed = files.options.get(EMBEDDING_OPTION), EMBEDDING in files.names, width != target.hidden
    if chosen == "own" or needed:
        files.need(frozenset({EMBEDDING}))
    if chosen == "target" and needed:
        raise files.fault(f"embedding=target: its width is {target.hidden}, the head's {width}")
    if stored:
        rows, columns = files.checkpoint.matrix(EMBEDDING)
        files.need_equal(f"rows of {EMBEDDING}", rows, target.vocab)
        if columns != width:
            raise files.fault(f"{EMBEDDING} has {columns} columns: need {width}, the head's width")
    # speculators says so; DeepSpec always trains it.
    trained = stored and (files.config.get("embed_requires_grad") is True or is_deepspec(files.config))
    return needed or (trained if chosen is None else chosen == "own")


def _flag(config: Config, key: str, *, default: bool = False) -> bool:
    """Read a switch of the config or of its eagle_config; `default` if missing or null."""
    value = config_value(config, key)
    return default if value is None else bool(value)


def is_deepspec(config: Config) -> bool:
    """True for the config of a head that DeepSpec trained."""
    return config.get(OUTPUT_IDS) is not None and config_value(config, IDS) is None


def uses_layers(config: Config) -> bool:
    """True if it reads hidden states of layers, and not the last one after the final norm."""
    return config_value(config, "use_aux_hidden_state") is not False


def chosen_layers(config: Config, option: Sequence[int] | None, num_layers: int, count: int) -> tuple[int, ...]:
    """Return the `count` layers (as many as fc takes) of a target of `num_layers`, in fc's order. Raises UsageError."""
    # Published code collects states while it runs the target: in rising order, an id that is named twice once. The
    # option's list and that of target_layers, our own key, are taken as they stand.
    named = config.get(TARGET_LAYERS)
    stated = option if option is not None or named is None else _ids(TARGET_LAYERS, named)
    listed = list(stated) if stated is not None else _published(config, num_layers)
    rising = sorted(set(listed))
    if stated is None and len(rising) == count:
        listed = rising
    if len(listed) != count:
        raise UsageError(
            f"fc.weight takes {count} hidden states, but the layers are {_spelled(listed)}; "
            f"name {count} of the target's {num_layers}, as in target_layers=2-16-29"
        )
    if wrong := [layer for layer in listed if not 0 <= layer <= num_layers]:
        raise UsageError(f"target_layers {_spelled(listed)}: {wrong[0]} is not within 0 to {num_layers}, the target's")
    return tuple(listed)


def default_layers(num_layers: int) -> tuple[int, ...]:
    """Return low, middle and high layers (SafeAILab/EAGLE, modeling_llama_kv.py), fewer in a small target."""
    return tuple(sorted({layer for layer in (2, num_layers // 2, num_layers - 3) if 0 <= layer < num_layers}))


def _published(config: Config, num_layers: int) -> list[int]:
    if is_deepspec(config):
        return [layer + 1 for layer in _ids(OUTPUT_IDS, config[OUTPUT_IDS])]
    value = config_value(config, IDS)
    if value is None:
        return list(default_layers(num_layers))
    listed = _ids(IDS, value)
    # SGLang tells the two ways of counting apart by the first id: 1 is that of an output (SGLang#25454). It holds for
    # speculators' files too, which count inputs and start at 2, unless they were converted with the original's ids.
    return [layer + 1 for layer in listed] if listed and listed[0] == 1 else listed


def config_value(config: Config, key: str) -> Any:  # Any: raw JSON
    """Read a key of the config or of its eagle_config."""
    part = config.get("eagle_config")
    own = config.get(key)
    return part.get(key) if own is None and isinstance(part, Mapping) else own


def _ids(key: str, value: object) -> list[int]:
    if not isinstance(value, list) or not all(type(item) is int for item in value):
        raise UsageError(f"config.json: {key}={value!r}: need a list of layers")
    return value


def _spelled(layers: Sequence[int]) -> str:
    return "-".join(map(str, layers)) or "none"
