"""An app that uses the library: several questions at once, each in a session of its own, which survives a lost link.

    outrider-server serve
    python examples/library_async.py "Oscar has 10 melons. Oscar makes 3 more. How many?" "Who am I?"

It shows the first answer as it is written, with changes of the link, and then every answer with the words that the
target was unsure of.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from typing import Annotated

import typer

from outrider_client import (
    AsyncClient,
    ClientConfig,
    Committed,
    Completion,
    Finished,
    LinkChanged,
    LocalModels,
    OutriderError,
    RolledBack,
    Unverified,
)

UNSURE = -1.0  # natural logarithm of a probability of about one third


async def watch(client: AsyncClient, question: str) -> None:
    """Print the answer as it is written."""
    async with contextlib.aclosing(client.generate([{"role": "user", "content": question}])) as events:
        async for event in events:
            match event:
                case Committed(text=text) | Unverified(text=text):
                    print(text, end="", flush=True)
                case RolledBack(text=text):
                    print(f"[rolled back: {text}]", end="")
                case LinkChanged(state=state):
                    print(f"[{state.value}]", end="")
                case Finished(statistics=s, text=rest):
                    print(f"{rest}\n{s.tokens_per_second:.0f} tokens/s, {s.mean_acceptance_length:.2f} per verdict\n")


def unsure_words(answer: Completion, models: LocalModels) -> list[str]:
    """List the unlikely words of an answer with the likeliest alternative to each."""
    unsure = [one for one in answer.logprobs if one is not None and one.logprob < UNSURE]
    return [f"{models.decode([one.token])!r} or {models.decode([one.top[1][0]])!r}" for one in unsure]


async def run(questions: list[str], server: str) -> None:
    config = ClientConfig(server=server, max_new_tokens=100, wait_for_link_s=30, logprobs=2)
    models = await asyncio.to_thread(LocalModels.load, config)  # here, for the words of tokens
    async with AsyncClient(config, models=models) as client:
        await watch(client, questions[0])
        for answer in await asyncio.gather(*map(client.complete, questions)):
            print(f"{answer.text.strip()}\n  unsure: {', '.join(unsure_words(answer, models)) or 'none'}")


def main(
    questions: Annotated[list[str], typer.Argument(help="One or more questions.")],
    server: Annotated[str, typer.Option(help="Address of the server, HOST:PORT.")] = ClientConfig().server,
) -> None:
    """Ask several questions at once."""
    try:
        asyncio.run(run(questions, server))
    except OutriderError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
