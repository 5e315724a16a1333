"""Load a drafter's two halves from its source: the client's drafter and the server's tap. Knows all families.

A directory belongs to the first family that recognizes it: those that installed packages add, by entry points of the
group `outrider.drafters` and in the order of their names, then Outrider's own, each package of `families` that has a
module `family`. The option `family` chooses another one.
"""

from importlib import import_module
from pathlib import Path
from pkgutil import iter_modules
from typing import Any

import torch

from outrider_drafters import families
from outrider_drafters.checkpoints.bundle import DRAFTER, find_bundle
from outrider_drafters.checkpoints.drafter_files import DrafterFiles
from outrider_drafters.checkpoints.fingerprint import TARGET_FINGERPRINT_KEY, target_fingerprint
from outrider_drafters.checkpoints.options import DRAFT_VOCAB_OPTION, FAMILY_OPTION, DrafterOption
from outrider_drafters.checkpoints.source import DrafterSource
from outrider_drafters.checkpoints.target_weights import TargetWeights, target_sizes
from outrider_drafters.contracts.drafter import Drafter
from outrider_drafters.contracts.tap import Tap
from outrider_drafters.families.family import Family, like
from outrider_drafters.families.refusals import refuse_unsupported
from outrider_drafters.families.suffix.hybrid import COPY_OPTION, SUFFIX_OPTION, with_candidates
from outrider_drafters.plug_ins import PlugIns
from outrider_drafters.readers.checkpoint import join_names
from outrider_proto.errors import UsageError


def _own_families() -> tuple[Family, ...]:
    """Return each package's `family.FAMILY`, in the order in which they are asked."""
    names = [package.name for package in iter_modules(families.__path__) if package.ispkg]
    found = [import_module(f"{families.__name__}.{name}.family").FAMILY for name in names]
    return tuple(sorted(found, key=lambda family: (family.asked, family.name)))


FAMILIES = _own_families()
PLUG_INS = PlugIns("outrider.drafters", Family, lambda: [family.name for family in FAMILIES])


def load_drafter(source: str | Path | DrafterSource, target: TargetWeights) -> Drafter:
    """Load the client half, in the type and on the device of `target`. Raises UsageError naming what does not fit."""
    family, files = open_drafter(DrafterSource.parse(source))
    if target.directory is not None:
        check_target(files, target.directory)
    with files.naming_errors(), PLUG_INS.blaming(family.name):
        tokens = draft_vocabulary(family, files, target.sizes.vocab)
        if tokens is not None:
            # Where the drafter's weights are int8 codes, so are the rows of the target's head that it uses: in float32
            # these alone took a third of a level's time.
            target = target.drafting(tokens, int8=files.checkpoint.holds_codes)
        return with_candidates(family.drafter(files, target), files, target.embed.device)


def draft_vocabulary(family: Family, files: DrafterFiles, vocab: int) -> tuple[int, ...] | None:
    """Return the tokens that a drafter may draft, the most frequent first; None for all. Raises UsageError."""
    return files.draft_vocabulary(vocab) if DRAFT_VOCAB_OPTION in family.declared_options else None


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
    with files.naming_errors(), PLUG_INS.blaming(family.name):
        return family.tap(files, sizes, like(dtype, device))


def open_drafter(source: DrafterSource) -> tuple[Family, DrafterFiles]:
    """Return a drafter's family and files; a name without files, or a bundle, stands for them. Raises UsageError."""
    directory = Path(source.name).expanduser()
    if (bundle := find_bundle(directory)) is not None:
        if bundle.drafter != DRAFTER and family_without_files(bundle.drafter) is None:
            raise UsageError(f"{directory}: refers to a drafter outside of it: {bundle.drafter!r}")
        source = bundle.source(directory, source.options)
    family = family_without_files(source.name)
    files = DrafterFiles.open(source) if family is None else DrafterFiles.without_files(source)
    with files.naming_errors():
        family = recognize_family(files) if family is None else family
        check_options(files, family)
    return family, files


def family_without_files(name: str) -> Family | None:
    """Return the family of that name if it needs no files. Raises UsageError for a package's that is broken."""
    family = next((family for family in FAMILIES if family.name == name), None) or PLUG_INS.get(name)
    return None if family is None or family.needs_files else family


def check_target(files: DrafterFiles, target: str | Path) -> None:
    """Raise UsageError if a drafter names the fingerprint of another target; most name none."""
    made_for = files.config.get(TARGET_FINGERPRINT_KEY)
    if made_for is not None and made_for != (ours := target_fingerprint(target)):
        raise files.fault(
            f"made for another target (fingerprint {made_for}, that of {target} is {ours}): need one of its own"
        )


def recognize_family(files: DrafterFiles) -> Family:
    """Return the first family that recognizes the files, or the one the options name if it does. Raises UsageError."""
    chosen = files.options.get(FAMILY_OPTION)
    if chosen is not None and chosen not in family_names():
        raise UsageError(
            f"family={chosen}: need one of {', '.join(family_names())}, or the package that adds it: install that"
        )
    # Of those that packages add only the one that was chosen, if one was.
    added = PLUG_INS.usable() if chosen is None else [PLUG_INS.get(chosen)]
    found: list[Family] = [each for each in (*added, *FAMILIES) if each is not None and _recognizes(each, files)]
    family = next((each for each in found if each.name == chosen), next(iter(found), None))
    if family is None or family in FAMILIES:
        refuse_unsupported(files, None if family is None else family.name, is_chosen=chosen is not None)
    if family is None:
        raise files.fault(
            f"not a drafter directory (architectures={files.config.get('architectures')}); "
            f"need one of {', '.join(family_names())}, but it holds {join_names(sorted(files.names)) or 'no tensors'}"
        )
    return family


def check_options(files: DrafterFiles, family: Family) -> None:
    """Raise UsageError for another family than the options name, or an option that the family does not take."""
    chosen = files.options.get(FAMILY_OPTION)
    if chosen not in (None, family.name):
        raise files.fault(f"a drafter of family {family.name}, not {chosen}")
    try:
        files.options.but(family=None).check(family.name, options_of(family))
    except UsageError as error:
        raise files.fault(str(error)) from None


def options_of(family: Family) -> tuple[DrafterOption[Any], ...]:  # Any: each has values of its own type
    """Return the options that drafters of a family take, besides `family`."""
    # A family that copies anyway has nothing to copy for.
    return (*family.declared_options, *(() if family.offline == "copies" else (COPY_OPTION, SUFFIX_OPTION)))


def all_families() -> list[Family]:
    """Return all families that can be used, in the order in which they are asked."""
    return [*PLUG_INS.usable(), *FAMILIES]


def family_names() -> list[str]:
    """Return the names of all families, in the order in which they are asked."""
    return [*PLUG_INS.names, *(family.name for family in FAMILIES)]


def _recognizes(family: Family, files: DrafterFiles) -> bool:
    is_chosen = files.options.get(FAMILY_OPTION) == family.name
    with (PLUG_INS.blaming if is_chosen else PLUG_INS.tolerating)(family.name):
        return family.needs_files and family.recognizes(files)
    return False
