"""A custom drafter: it guesses the next tokens of a text, and the library does the rest. The answer stays the target's.

outrider-server serve
python examples/custom_drafter.py
"""

from __future__ import annotations

import asyncio
import sys
from collections import Counter
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from typing import Annotated

import typer

from outrider_client import AsyncClient, ClientConfig, Completion, LocalModels, OutriderError
from outrider_drafters import TextDrafter

QUESTION = "Summarize:\nName: Rene\nJob: potter\nHobby: running\nCity: Oxford\nAge: 41\nPet: deer"


class BigramDrafter(TextDrafter):
    """Guesses the tokens that followed the last one earlier in the text, weighted by their counts."""

    def guesses(self, text: Sequence[int]) -> Counter[int]:
        return Counter(following for token, following in pairwise(text) if token == text[-1])


async def answer(question: str, server: str) -> Completion:
    config = ClientConfig(server=server, drafter="none", mode="stop-and-wait")
    models = LocalModels.load(config)
    models = replace(models, drafter=BigramDrafter(models.vocab_size))
    async with AsyncClient(config, models=models) as client:
        return await client.complete(question)


def main(
    question: Annotated[str, typer.Argument(help="The question to answer.")] = QUESTION,
    server: Annotated[str, typer.Option(help="Address of the server, HOST:PORT.")] = ClientConfig().server,
) -> None:
    """Answer a question with a drafter that counts pairs of tokens."""
    try:
        completion = asyncio.run(answer(question, server))
    except OutriderError as error:
        sys.exit(str(error))
    statistics = completion.statistics
    print(completion.text)
    print(f"{statistics.mean_acceptance_length:.2f} tokens per verdict, {statistics.target_calls} target calls")


if __name__ == "__main__":
    typer.run(main)
