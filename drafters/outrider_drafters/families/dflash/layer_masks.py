"""Which keys a layer's rows see, by config.json: every layout has its own rule for sliding layers.

z-lab         a window on both sides of each row, causal unless is_causal says otherwise
DeepSpec      none: its code applies no window
speculators   the root's window for every row of the block, which is causal unless sliding_window_non_causal
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.readers.config import FULL, SLIDING, Config, config_int, is_sliding


@dataclass(frozen=True, slots=True)
class LayerMask:
    """The attention mask of one layer: causal, within a window, both, or none.

    The window is in positions on both sides of a row, or with `from_root` that of the root, for every row of the block.
    """

    causal: bool = False
    window: int | None = None
    from_root: bool = False

    def mask(self, rows: Tensor, origins: Tensor, columns: Tensor) -> Tensor | None:
        """Compute the mask [n, m] bool from positions of rows [n], windows' origins [n], columns [m]; None: no mask."""
        if not self.causal and self.window is None:
            return None
        distance = rows[:, None] - columns
        seen = distance >= 0 if self.causal else torch.ones_like(distance, dtype=torch.bool)
        if self.window is None:
            return seen
        return seen & (origins[:, None] - columns <= self.window if self.from_root else distance.abs() < self.window)


def layer_mask(files: DrafterFiles, layer: int, layout: str) -> LayerMask:
    """Return the mask of a layer. Raises UsageError for a kind of layer that its layout's code does not have."""
    config, slides = files.config, is_sliding(files.config, layer)
    if layout != "z-lab" and (said := config.get("is_causal") or config.get("causal")):
        raise files.fault(f"is_causal={said}: blocks of {layout} are not causal")
    if layout == "z-lab":
        return _zlab_mask(config, slides)
    if not slides:
        return LayerMask()
    if layout == "DeepSpec":
        raise files.fault(
            f"layer_types: layer {layer} is {SLIDING}, of which DeepSpec's code makes nothing: need {FULL}"
        )
    return _speculators_mask(config)


def _zlab_mask(config: Config, slides: bool) -> LayerMask:
    causal = config.get("causal") or config.get("is_causal")
    window = config_int(config, "sliding_window", 4096) if slides and config.get("use_sliding_window") else None
    return LayerMask(slides if causal is None else bool(causal), window)


def _speculators_mask(config: Config) -> LayerMask:
    # Qwen3's config drops the window unless use_sliding_window; without one a sliding layer is a full one there.
    if config.get("use_sliding_window") is False or config.get("sliding_window") is None:
        return LayerMask()
    return LayerMask(not config.get("sliding_window_non_causal"), config_int(config, "sliding_window"), from_root=True)
