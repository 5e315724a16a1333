"""Small reports, as the measurements' JSON has them."""

from __future__ import annotations

import json
import random
from dataclasses import replace

from outrider_bench.core.acceptance import PositionAcceptance
from outrider_bench.studies.drafters.comparison_report import (
    PLAIN,
    Comparison,
    DrafterMetrics,
    PromptFigures,
    Speed,
)
from outrider_client.core.head_statistics import AcceptedMeans, HeadUse

VERDICTS = 10
ONE_HEAD = HeadUse(
    accepted_tokens=20,
    rejected_tokens=100,
    confidence=AcceptedMeans(0.6, 0.1),
    drafted_by_confidence=(80, 0, 0, 0, 0, 20, 0, 0, 0, 20),
    accepted_by_confidence=(0, 0, 0, 0, 0, 10, 0, 0, 0, 10),
)


def compared(taus, families=("math", "chat"), per_family=20, speeds=None, seed=1):
    """A comparison whose ways have these tau, by family where a mapping says so, and speeds as ratios to plain."""
    chance = random.Random(seed)
    prompts = []
    for family in families:
        for _ in range(per_family):
            easy = chance.uniform(0.8, 1.25)
            judged = {
                way: round(VERDICTS * max(easy * (tau[family] if isinstance(tau, dict) else tau), 1.0))
                for way, tau in taus.items()
            }
            seconds = {PLAIN: [1.0, 1.0]} | {
                way: [1 / (speeds or {}).get(way, 1.0) * chance.uniform(0.98, 1.02) for _ in range(2)] for way in taus
            }
            heads = {way: replace(ONE_HEAD, accepted_tokens=tokens - VERDICTS) for way, tokens in judged.items()}
            prompts.append(PromptFigures(family, 50, seconds, dict.fromkeys(taus, VERDICTS), judged, heads))
    return Comparison(
        {way: _metrics(way, prompts, families) for way in taus},
        {way: Speed(100.0, (speeds or {}).get(way, 1.0), None, None) for way in (PLAIN, *taus)},
        2,
        1,
        prompts,
    )


def _metrics(way, prompts, families):
    def tau(asked):
        return sum(one.judged[way] for one in asked) / sum(one.verdicts[way] for one in asked)

    by_family = {family: tau([one for one in prompts if one.family == family]) for family in families}
    positions = PositionAcceptance((0.9, 0.6, 0.5), (0.9, 0.67, 0.83), 0.4)
    intervals = dict.fromkeys((*families, "all"))
    return DrafterMetrics("eagle2", by_family, tau(prompts), positions, 1.5, 100.0, 200.0, 0, {}, intervals, None)


def as_json(study, report):
    """The report as the command writes it and the measurement keeps it."""
    content = study.as_dict(report) | {"made_by": {}, "paper_key": "", "paper_failed": False}
    return json.loads(json.dumps(content))
