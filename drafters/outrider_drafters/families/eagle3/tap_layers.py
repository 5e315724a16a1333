"""Find out which of the target's hidden states an EAGLE-3 head reads.

In this module a layer's number is that of its input, Hugging Face's index of hidden_states; the number of layers means
the last layer's output. Published configurations count so, or by the layer whose output it is.
"""

from collections.abc import Mapping, Sequence
from typing import Any

from outrider_drafters.checkpoints.eagle3_gguf import TARGET_LAYERS
from outrider_drafters.readers.config import Config
from outrider_proto.errors import UsageError

IDS = "eagle_aux_hidden_state_layer_ids"
OUTPUT_IDS = "target_layer_ids"  # DeepSpec's, at the top level: it counts layers by their outputs


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
    stated = option if option is not None else _stated(config)
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


def _stated(config: Config) -> list[int] | None:
    value = config.get(TARGET_LAYERS)
    return None if value is None else _ids(TARGET_LAYERS, value)


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
