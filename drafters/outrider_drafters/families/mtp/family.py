"""Multi-token-prediction layers (DeepSeek-V3, arXiv 2412.19437, 2.2; Qwen3-Next, Qwen3.5): recognized and refused.

Qwen's (`mtp.*`) belong to targets with linear attention, whose state the server cannot branch over a tree. DeepSeek's
(a layer beyond the last, with `eh_proj`) have latent attention and hundreds of experts, too much for a client.
"""

import re
from typing import NoReturn

from torch import Tensor

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.families.family import Family

NAME = "mtp"
QWEN = re.compile(r"(^|\.)mtp\.")
DEEPSEEK = re.compile(r"\.(eh_proj|enorm|hnorm)\.weight$")
REMEDY = "; give a drafter of another family, or family=independent where it holds a whole model"


def _refuse(files: DrafterFiles, target: TargetWeights | TargetSizes, like: Tensor | None = None) -> NoReturn:
    if any(QWEN.search(name) for name in files.names):
        raise files.fault(
            "multi-token-prediction heads (mtp.*) are not supported: they belong to targets with linear attention,"
            f" which the server does not run{REMEDY}"
        )
    raise files.fault(
        "a multi-token-prediction layer (eh_proj) is not supported: its latent attention and experts are too much for"
        f" a client{REMEDY}"
    )


FAMILY = Family(
    name=NAME,
    features="the target's last hidden state; recognized, and refused with the reason",
    offline="goes on",
    trees="chain",
    recognizes=lambda files: any(QWEN.search(name) or DEEPSEEK.search(name) for name in files.names),
    drafter=_refuse,
    tap=_refuse,
)
