"""An app on the library: several questions at once, each over a session of its own that outlives a lost link.

    outrider-server serve
    python examples/library_async.py "Oscar has 10 melons. Oscar makes 3 more. How many?" "Who am I?"

Says what happens to the link while it waits, and then where the target itself was unsure of its words.
"""

from __future__ import annotations

import asyncio
import contextlib
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
    RolledBack,
    Unverified,
)

UNSURE = -1.0  # ln of the probability; about one in three


async def ask(config: ClientConfig, models: LocalModels, question: str) -> Completion:
    """The whole answer; a client writes one at a time."""
    async with AsyncClient(config, models=models) as client:
        return await client.complete(question)


async def watch(config: ClientConfig, models: LocalModels, question: str) -> None:
    """The answer as it comes."""
    async with (
        AsyncClient(config, models=models) as client,
        contextlib.aclosing(client.generate(question)) as events,
    ):
        async for event in events:
            match event:
                case Committed(text=text) | Unverified(text=text):
                    print(text, end="", flush=True)
                case RolledBack(text=text):
                    print(f"[not so: {text}]", end="")
                case LinkChanged(state=state):
                    print(f"[{state.value}]", end="")
                case Finished(statistics=s, text=rest):
                    print(f"{rest}\n{s.tokens_per_second:.0f} tokens/s, {s.mean_acceptance_length:.2f} a verdict\n")


def unsure_words(answer: Completion, models: LocalModels) -> list[str]:
    """What else the target might have said."""
    unsure = [one for one in answer.logprobs if one is not None and one.logprob < UNSURE]
    return [f"{models.decode([one.token])!r} or {models.decode([one.top[1][0]])!r}" for one in unsure]


async def run(questions: list[str], server: str) -> None:
    config = ClientConfig(server=server, max_new_tokens=100, wait_for_link_s=30, logprobs=2)
    models = await asyncio.to_thread(LocalModels.load, config)  # once, for all sessions
    await watch(config, models, questions[0])
    for answer in await asyncio.gather(*(ask(config, models, question) for question in questions)):
        print(f"{answer.text.strip()}\n  unsure: {', '.join(unsure_words(answer, models)) or 'nowhere'}")


def main(
    questions: Annotated[list[str], typer.Argument(help="One or more.")],
    server: Annotated[str, typer.Option(help="The server's HOST:PORT.")] = ClientConfig().server,
) -> None:
    """Ask several questions at once."""
    asyncio.run(run(questions, server))


if __name__ == "__main__":
    typer.run(main)
