"""Who is measured: a target, drafters by their role in the papers, questions, and how many of them."""

from __future__ import annotations

import math
import os
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import count
from pathlib import Path

from outrider_bench.core.report import without_places
from outrider_bench.studies.drafters.comparison import drafter_label
from outrider_lab.paper.claims import Report
from outrider_lab.paper.measurement import Measurement, Reports, settings
from outrider_lab.paper.trained import ABLATION, HEADS, HYDRA, SECOND, SECOND_TARGET, SHIPPED, trained_dir
from outrider_models.core.embedded import EMBEDDED, shipped_drafters
from outrider_proto.errors import UsageError

PAPERS_TREE = settings(breadth=8, levels=6, budget=62)  # Mixture of Attentions, section 4
UNTRAINED = ("lookup", "suffix")  # drafters without weights, of any target
PAPERS_CHAIN = settings(breadth=1, levels=4, budget=4)  # its section 4.3
OWN_TREES = "drafters-own-trees"
# Roles of one run with trees of the drafters' own, which the exhibits share.
HYDRA_ROLES = ("medusa", "hydra_plain", "hydra_labels", "hydra_noise", "hydra_noprefix", "hydra")
ROLES = ("moa_tli3", "moa_tli1", "moa", "eagle2", "independent", "eagle3", "dspark", *HYDRA_ROLES)


@dataclass(frozen=True, slots=True)
class Extent:
    """How much is asked: questions per family, of code and over links, new tokens, repetitions, seconds of load.

    `only`: the only roles that are measured; None: all.
    """

    per_family: int
    code: int
    over_links: int
    new_tokens: int
    repetitions: int
    seconds: int
    only: tuple[str, ...] | None = None


# With everything that `paper train` trains, of one seed, 45 minutes on two cores.
WHOLE = Extent(per_family=8, code=164, over_links=12, new_tokens=96, repetitions=1, seconds=12)
OTHER = Extent(per_family=10, code=10, over_links=8, new_tokens=48, repetitions=1, seconds=15)  # of a larger target
QUICK = Extent(
    per_family=1,
    code=2,
    over_links=2,
    new_tokens=8,
    repetitions=1,
    seconds=2,
    only=("moa", "eagle2", "hydra", "medusa", "eagle2_math", "eagle2_chat", "eagle3"),
)


@dataclass(frozen=True, slots=True)
class PaperSetup:
    """`target`: as --target takes it, None: the embedded one. `roles`: names or sources of drafters by their role.

    Roles are names of recipes, such as moa, moa_tli1, eagle2; a drafter that ships has that of its name. `more_seeds`
    are the drafters of the training seeds 1, 2 and so on, as far as they are there, by role. `measured`: what commands
    name whose reports are there; its models count as there, too, so that a report is written again without them.
    """

    target: str | None
    roles: Mapping[str, str]
    questions: Path | None
    extent: Extent
    more_seeds: Sequence[Mapping[str, str]] = ()
    seed: int = 0
    measured: frozenset[str] = frozenset()

    @property
    def is_embedded(self) -> bool:
        return self.target is None

    @property
    def second(self) -> PaperSetup | None:
        """The second target, with QKV bias, and its drafters, for the base paper's Table 9; None if not trained."""
        if not self.is_embedded or not (target := trained_roles([SECOND_TARGET], measured=self.measured)):
            return None

        def seed_roles(seed: int) -> dict[str, str]:
            found = trained_roles(list(SECOND), seed, self.measured)
            return {SECOND[name]: source for name, source in found.items()}

        more = () if self.is_quick else tuple(_further_seeds(seed_roles))
        return replace(self, target=target[SECOND_TARGET], roles=seed_roles(0), more_seeds=more)

    @property
    def seeds(self) -> list[PaperSetup]:
        """This setup, and one for each further seed of its drafters."""
        more = (replace(self, roles=roles, more_seeds=(), seed=seed) for seed, roles in enumerate(self.more_seeds, 1))
        return [self, *more]

    def over_seeds(
        self, measure: Callable[[PaperSetup, Sequence[str]], Measurement], roles: Sequence[str]
    ) -> list[Measurement]:
        """Return a measurement of the roles for each seed; for a further one only if it has two of them to compare."""
        present = [(one, one.present(*roles)) for one in self.seeds]
        return [
            measure(one, there)
            for one, there in present
            if one.seed == 0 or (len(there) > 1 and any(role in one.roles for role in there))
        ]

    def measured_as(self, name: str) -> str:
        """Return the name of the measurement with this seed's drafters."""
        return f"{name}-seed-{self.seed}" if self.seed else name

    def reports_of_seeds(self, name: str, reports: Reports) -> list[tuple[PaperSetup, Report]]:
        """Return the reports of a measurement, each with the setup of the seed that it is of."""
        return [(one, reports[key]) for one in self.seeds if (key := one.measured_as(name)) in reports]

    @property
    def is_quick(self) -> bool:
        return self.extent is QUICK

    @property
    def at_once(self) -> int:
        """How many measurements that are not timed run side by side; a larger target needs the memory and the cores."""
        return os.cpu_count() or 1 if self.is_embedded else 1

    def source(self, role: str) -> str:
        """Return the drafter of a role as reports name it."""
        return without_places(self.roles.get(role, role))

    def label(self, role: str) -> str:
        """Return the name that a comparison has for the drafter of a role, `lookup` and `suffix` being their own."""
        return drafter_label(self.roles.get(role, role))

    def present(self, *roles: str) -> list[str]:
        """Return those roles for which there is a drafter."""
        only = self.extent.only
        there = (role for role in roles if role in self.roles or role in UNTRAINED)
        return [role for role in there if only is None or role in only]

    @property
    def ask(self) -> tuple[str, ...]:
        """Options that name target and questions."""
        target = () if self.target is None else ("--target", self.target)
        return (*target, *(() if self.questions is None else settings(questions=self.questions)))

    @property
    def ask_sweep(self) -> tuple[str, ...]:
        """As `ask`, with half as many questions as elsewhere, where every setting is a way beside the controls."""
        extent = self.extent
        count = math.ceil(extent.per_family / 2)
        counts = settings(per_family=count, repetitions=extent.repetitions, max_new_tokens=extent.new_tokens)
        return (*self.ask, *counts)

    def drafters(self, roles: Sequence[str]) -> tuple[str, ...]:
        return tuple(option for role in roles for option in ("--drafter", self.roles.get(role, role)))

    def comparison(self, name: str, roles: Sequence[str], *options: str, families: str | None = None) -> Measurement:
        """Compare drafters in process: `outrider-bench drafters`."""
        extent, only = self.extent, () if families is None or not self.is_embedded else settings(families=families)
        # A family alone is asked more questions, as far as the corpus has them.
        count = extent.per_family if families is None else min(extent.code, 3 * extent.per_family)
        counts = settings(per_family=count, repetitions=extent.repetitions, max_new_tokens=extent.new_tokens)
        asked = (*self.ask, *only, *counts, *self.drafters(roles), *options)
        return Measurement(self.measured_as(name), ("drafters", *asked))

    @property
    def own_trees(self) -> Measurement:
        """All drafters in one run, each with trees of its own kind and size."""
        return self.own_trees_over_seeds[0]

    @property
    def own_trees_over_seeds(self) -> list[Measurement]:
        return self.over_seeds(lambda one, roles: one.comparison(OWN_TREES, roles), ROLES)


def trained_roles(recipes: Sequence[str], seed: int = 0, measured: Collection[str] = ()) -> dict[str, str]:
    """Return the directories of those recipes that `paper train` has trained with this seed, or that were measured."""
    directories = {name: str(trained_dir(name, seed)) for name in recipes}
    return {
        name: source
        for name, source in directories.items()
        if Path(source).is_dir() or without_places(source) in measured
    }


def _further_seeds(roles_of: Callable[[int], Mapping[str, str]]) -> Iterator[Mapping[str, str]]:
    """Yield the roles of seeds 1, 2 and so on, up to the first that nothing was trained with."""
    for seed in count(1):
        if not (roles := roles_of(seed)):
            return
        yield roles


def paper_setup(
    target: str | None,
    named: Sequence[str],
    questions: Path | None,
    *,
    quick: bool,
    measured: frozenset[str] = frozenset(),
) -> PaperSetup:
    """Return the setup. Raises UsageError for a drafter without role, and for no questions to another target."""
    roles = {}
    for text in named:
        role, equals, source = text.partition("=")
        if not equals or not role or not source:
            raise UsageError(f"drafter={text!r}: need ROLE=DRAFTER, such as eagle2=DIR")
        roles[role] = source
    embedded = target is None or target == EMBEDDED
    if not embedded and questions is None:
        raise UsageError(f"target={target}: its own prompts come only with the embedded target: give --questions FILE")
    extent = QUICK if quick else WHOLE if embedded else OTHER
    shipped = {name.rsplit("/", 1)[-1]: name for name in shipped_drafters(None if embedded else target)}
    made = trained_roles((*ABLATION, *HYDRA, *HEADS), measured=measured) if embedded else {}

    def seed_roles(seed: int) -> dict[str, str]:
        # Whom the user names has no other seeds that are known of.
        return trained_roles([name for name in (*ABLATION, *HYDRA, *SHIPPED) if name not in roles], seed, measured)

    more = tuple(_further_seeds(seed_roles)) if embedded and not quick else ()
    asked = None if embedded else target
    setup = PaperSetup(asked, shipped | made | roles, questions, extent, more, measured=measured)
    if not setup.roles:
        raise UsageError(f"target={target}: no drafter ships for it: name some with --drafter ROLE=DRAFTER")
    return setup
