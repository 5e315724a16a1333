"""Load a drafter's two halves from its source: the client's drafter and the server's tap. Lists all families."""

from __future__ import annotations

from pathlib import Path

import torch

from outrider_drafters.checkpoints.bundle import find_bundle
from outrider_drafters.checkpoints.drafter_files import DrafterFiles, join_names
from outrider_drafters.checkpoints.fingerprint import TARGET_FINGERPRINT_KEY, target_fingerprint
from outrider_drafters.checkpoints.source import DrafterOptions, DrafterSource
from outrider_drafters.checkpoints.target_weights import TargetWeights, target_sizes
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tap import Tap
from outrider_drafters.families.dflash import family as dflash
from outrider_drafters.families.dspark import family as dspark
from outrider_drafters.families.eagle2 import family as eagle2
from outrider_drafters.families.eagle3 import family as eagle3
from outrider_drafters.families.family import DRAFT_VOCAB_OPTION, Family, like
from outrider_drafters.families.hydra import family as hydra
from outrider_drafters.families.independent import family as independent
from outrider_drafters.families.lookup import family as lookup
from outrider_drafters.families.medusa import family as medusa
from outrider_drafters.families.moa import family as moa
from outrider_drafters.families.mtp import family as mtp
from outrider_drafters.families.suffix import family as suffix
from outrider_drafters.families.suffix.hybrid import with_candidates
from outrider_proto.errors import UsageError

# The order counts: the first family that recognizes a directory takes it. eagle2 (fc.*, layers.0.*) also recognizes
# dflash, dspark and eagle3 in vLLM's layout, and independent any whole model, even one that also holds heads or MTP
# layers.
FAMILIES: tuple[Family, ...] = (
    mtp.FAMILY,
    dflash.FAMILY,
    dspark.FAMILY,
    hydra.FAMILY,
    medusa.FAMILY,
    moa.FAMILY,
    eagle3.FAMILY,
    eagle2.FAMILY,
    lookup.FAMILY,
    suffix.FAMILY,
    independent.FAMILY,
)


def load_drafter(source: str | Path | DrafterSource, target: TargetWeights) -> Drafter:
    """Load the client half, in the type and on the device of `target`. Raises UsageError naming what does not fit."""
    family, files = open_drafter(DrafterSource.parse(source))
    if target.directory is not None:
        check_target(files, target.directory)
    with files.naming_errors():
        tokens = draft_vocabulary(family, files, target.sizes.vocab)
        if tokens is not None:
            # As the drafter's own weights: else the head's float32 rows are a third of a level on codes.
            target = target.drafting(tokens, int8=files.checkpoint.holds_codes)
        return with_candidates(family.drafter(files, target), files, target.embed.device)


def draft_vocabulary(family: Family, files: DrafterFiles, vocab: int) -> tuple[int, ...] | None:
    """Return the tokens that a drafter may draft, the most frequent first; None for all. Raises UsageError."""
    return files.draft_vocabulary(vocab) if DRAFT_VOCAB_OPTION in family.options else None


def load_tap(
    source: str | Path | DrafterSource,
    target_path: str | Path,
    dtype: torch.dtype = torch.float32,
    device: torch.device | str = "cpu",
) -> Tap | None:
    """Load the server half; None for a drafter without features. Raises UsageError naming what does not fit."""
    family, files = open_drafter(DrafterSource.parse(source))
    check_target(files, target_path)
    sizes = target_sizes(target_path)
    with files.naming_errors():
        return family.tap(files, sizes, like(dtype, device))


def open_drafter(source: DrafterSource) -> tuple[Family, DrafterFiles]:
    """Return a drafter's family and its opened files. Raises UsageError.

    A drafter without files is chosen by its name; a directory of that name is written ./NAME. An edge bundle stands for
    its drafter.
    """
    directory = Path(source.name).expanduser()
    if (bundle := find_bundle(directory)) is not None:
        source = bundle.source(directory, source.options)
    for family in FAMILIES:
        if source.name == family.name and not family.needs_files:
            _check_options(source.options, family, source.name)
            return family, DrafterFiles.without_files(source)
    files = DrafterFiles.open(source)
    return recognize_family(files), files


def check_target(files: DrafterFiles, target: str | Path) -> None:
    """Raise UsageError if a drafter names the fingerprint of another target; most name none."""
    made_for = files.config.get(TARGET_FINGERPRINT_KEY)
    if made_for is not None and made_for != (ours := target_fingerprint(target)):
        raise files.fault(
            f"made for another target (fingerprint {made_for}, that of {target} is {ours}): need one of its own"
        )


def recognize_family(files: DrafterFiles) -> Family:
    """Return the first family that recognizes the files, or the one the options name if it does. Raises UsageError."""
    chosen = files.options.family
    if chosen is not None and chosen not in _names():
        raise UsageError(f"family={chosen}: need one of {', '.join(_names())}")
    recognized = [family for family in FAMILIES if family.needs_files and family.recognizes(files)]
    if not recognized:
        raise files.fault(
            f"not a drafter directory (architectures={files.config.get('architectures')}); "
            f"need one of {', '.join(_names())}, but it holds {join_names(sorted(files.names)) or 'no tensors'}"
        )
    family = next((family for family in recognized if family.name == chosen), recognized[0])
    _check_options(files.options, family, files.directory)
    return family


def _check_options(options: DrafterOptions, family: Family, name: str | Path) -> None:
    if options.family is not None and options.family != family.name:
        raise UsageError(f"{name}: a drafter of family {family.name}, not {options.family}")
    # A family that copies anyway has nothing to copy for.
    taken = (*family.options, *(() if family.offline == "copies" else ("copy", "suffix")))
    if ignored := sorted(options.chosen().keys() - {"family", *taken}):
        raise UsageError(f"{name}: option {', '.join(ignored)}: family {family.name} takes {', '.join(taken)}")


def _names() -> list[str]:
    return [family.name for family in FAMILIES]
