"""DSpark from published files, and its declaration."""

from dataclasses import replace
from typing import Literal, cast, get_args

from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.options import DrafterOption
from outrider_drafters.checkpoints.target_weights import TargetSizes, TargetWeights
from outrider_drafters.families.dflash.family import FAMILY as DFLASH
from outrider_drafters.families.dflash.family import MAPS, make_tap
from outrider_drafters.families.dflash.layout import (
    CONFIDENCE_HEAD,
    MARKOV_RANK,
    canonical,
    default_plan,
    family_of,
    layout_of,
    read_sizes,
)
from outrider_drafters.families.dflash.network import DFlashSizes, tap_info
from outrider_drafters.families.dspark.drafter import NAME, DSparkDrafter
from outrider_drafters.families.dspark.network import DSpark, DSparkHeads, MarkovKind
from outrider_drafters.families.shared_layout import check_vocabulary

CONFIDENCE = DrafterOption.number(
    "confidence", "end a draft where the confidence head gives less (0: draft whole blocks)", most=1
)
W1 = "markov_head.markov_w1.weight"
PROJ = "confidence_head.proj.weight"


def load_network(files: DrafterFiles, target: TargetSizes) -> DSpark:
    """Load the network. Raises UsageError for what is not made for this target, or not understood."""
    files = canonical(files)
    sizes = read_sizes(files, target)
    heads = _read_heads(files, sizes)
    network = files.build(lambda: DSpark(sizes, heads), also_known=MAPS)
    check_vocabulary(files, sizes.head_rows, target.vocab)
    return network


def _read_heads(files: DrafterFiles, sizes: DFlashSizes) -> DSparkHeads:
    """Read the heads' sizes from tensors; what config.json says of them must agree."""
    if files.config.get(MARKOV_RANK) is None and layout_of(files) == "z-lab":
        raise files.fault(f"DSpark's heads, but config.json has no {MARKOV_RANK}")
    rank = files.checkpoint.matrix(W1)[1] if W1 in files.names else 0
    said = files.config.get(MARKOV_RANK)
    # A missing rank is 256 in speculators' code.
    if said is not None and said != rank:
        raise files.fault(f"{MARKOV_RANK}={said}: {W1} has {rank} columns" if rank else f"lacks tensors {W1}")
    kind = files.config.get("markov_head_type") or "vanilla"
    if kind not in get_args(MarkovKind):
        raise files.fault(f"markov_head_type={kind}: need one of {', '.join(get_args(MarkovKind))}")
    confidence = _confidence(files, sizes.shape.width, rank)
    return DSparkHeads(rank, cast(MarkovKind, kind), confidence, passes_root=layout_of(files) != "z-lab")


def _confidence(files: DrafterFiles, width: int, rank: int) -> Literal["none", "hidden", "hidden and token"]:
    if PROJ not in files.names:
        if files.config.get(CONFIDENCE_HEAD):
            raise files.fault(f"lacks tensors {PROJ}")
        return "none"
    columns = files.checkpoint.matrix(PROJ)[1]
    reads_token = bool(files.config.get("confidence_head_with_markov", columns != width))
    need = width + (rank if reads_token else 0)
    if columns != need:
        raise files.fault(f"{PROJ} has {columns} columns: need {need}, confidence_head_with_markov={reads_token}")
    return "hidden and token" if reads_token else "hidden"


def _load_drafter(files: DrafterFiles, target: TargetWeights) -> DSparkDrafter:
    network = load_network(files, target.sizes)
    info = tap_info(network)  # before the cast: the fingerprint is of the values as stored
    network = network.to(target.embed.device, target.embed.dtype)
    threshold = files.options.get(CONFIDENCE) or 0.0
    if threshold and network.confidence_head is None:
        raise files.fault(f"confidence={threshold}: it has no confidence head")
    return DSparkDrafter(network, target, info, default_plan(files, network.sizes.num_drafts), threshold)


FAMILY = replace(
    DFLASH,
    name=NAME,
    recognizes=lambda files: family_of(files) == NAME,
    drafter=_load_drafter,
    tap=lambda files, target, like: make_tap(load_network(files, target), like),
    options=(*DFLASH.options, CONFIDENCE),
)
