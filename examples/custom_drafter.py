"""A drafter of one's own: guess what follows a text, and the library does the rest. The answer is the target's anyway.

outrider-server serve
python examples/custom_drafter.py
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

import typer

from outrider_client import AsyncClient, ClientConfig, Completion, LocalModels
from outrider_drafters import TextDrafter

QUESTION = "Summarize:\nName: Rene\nJob: potter\nHobby: running\nCity: Oxford\nAge: 41\nPet: deer"


class Bigrams(TextDrafter):
    """What followed the last token before, as often as it did."""

    def guesses(self, text: Sequence[int]) -> Counter[int]:
        return Counter(after for token, after in pairwise(text) if token == text[-1])


async def answer(question: str, server: str) -> Completion:
    config = ClientConfig(server=server, drafter="none", mode="stop-and-wait")
    models = LocalModels.load(config)
    models = replace(models, drafter=Bigrams(models.vocab_size))
    async with AsyncClient(config, models=models) as client:
        return await client.complete(question)


def main(
    question: Annotated[str, typer.Argument()] = QUESTION,
    server: Annotated[str, typer.Option(help="The server's HOST:PORT.")] = ClientConfig().server,
) -> None:
    """Answer with a drafter that counts pairs of tokens."""
    completion = asyncio.run(answer(question, server))
    statistics = completion.statistics
    print(completion.text)
    print(f"{statistics.mean_acceptance_length:.2f} tokens a verdict, {statistics.target_calls} target calls")


if __name__ == "__main__":
    typer.run(main)
