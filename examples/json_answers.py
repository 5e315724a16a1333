"""Answers as JSON over an emulated link: each follows its schema, and the drafter keeps drafting within it.

    outrider-server serve
    python examples/json_answers.py --questions 100 --profile paper-4g

It asks every question twice, free and by the schema, and counts which answers are valid (one that is cut is not), and
how many tokens a verdict brings.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import sys
from dataclasses import replace
from typing import Annotated

import typer

from outrider_client import AsyncClient, ClientConfig, Completion, OutriderError
from outrider_netsim import Link, profile_named

KINDS = ["animal", "person", "place", "thing"]
SCHEMA = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "maxLength": 40},
        "kind": {"enum": KINDS},
        "facts": {"type": "array", "items": {"type": "string", "maxLength": 80}, "minItems": 1, "maxItems": 3},
        "age": {"type": "integer", "minimum": 0, "maximum": 9999},
    },
    "required": ["name", "kind", "facts", "age"],
    "additionalProperties": False,
}
SUBJECTS = [
    "a lighthouse",
    "a baker",
    "an owl",
    "a violin",
    "a harbor",
    "a teacher",
    "a glacier",
    "a bicycle",
    "a whale",
    "a village",
]
WISHES = ["cheerful", "old", "tiny", "famous", "lonely", "green", "noisy", "patient", "hidden", "lucky"]
QUESTIONS = [f"Describe {a} that is {b}, as a JSON object." for a, b in itertools.product(SUBJECTS, WISHES)]


def is_valid(text: str) -> bool:
    """Return whether an answer is an object of the schema. (Packages such as jsonschema check any schema.)"""
    try:
        given = json.loads(text)
    except ValueError:
        return False
    return (
        list(given) == SCHEMA["required"]
        and len(given["name"]) <= 40
        and given["kind"] in KINDS
        and 1 <= len(given["facts"]) <= 3
        and all(len(fact) <= 80 for fact in given["facts"])
        and 0 <= given["age"] <= 9999
    )


def summary(name: str, answers: list[Completion]) -> str:
    """Return one line on some answers."""
    tau = sum(answer.statistics.mean_acceptance_length for answer in answers) / len(answers)
    rate = sum(answer.statistics.tokens_per_second for answer in answers) / len(answers)
    valid = sum(is_valid(answer.text) for answer in answers)
    return f"{name:<7} {valid} of {len(answers)} valid, {tau:.2f} tokens a verdict, {rate:.1f} tokens/s"


async def run(questions: int, profile: str, mode: str, config: ClientConfig) -> list[str]:
    """Ask so many questions over a link of that profile; return a line on the free answers and one on the others."""
    free: list[Completion] = []
    bound: list[Completion] = []
    async with (
        Link(profile_named(profile), config.server, "proxy", seed=1) as link,
        AsyncClient(replace(config, server=link.address)) as client,
    ):
        for question in itertools.islice(itertools.cycle(QUESTIONS), questions):
            free.append(await client.complete(question, mode=mode))
            bound.append(await client.complete(question, mode=mode, json_schema=SCHEMA))
    return [summary("free", free), summary("schema", bound)]


def main(
    questions: Annotated[int, typer.Option(help="Number of questions.", min=1)] = 10,
    profile: Annotated[str, typer.Option(help="Emulated link: outrider-netsim list shows all.")] = "paper-4g",
    mode: Annotated[
        str, typer.Option(help="Of the client: auto, stop-and-wait, proactive, pipelined, stream or server-draft.")
    ] = "stop-and-wait",
    max_new_tokens: Annotated[int, typer.Option(help="Most tokens of an answer.", min=1)] = 400,
    server: Annotated[str, typer.Option(help="Address of the server, HOST:PORT.")] = ClientConfig().server,
) -> None:
    """Ask for JSON."""
    try:
        config = ClientConfig(server=server, max_new_tokens=max_new_tokens, wait_for_link_s=30)
        print("\n".join(asyncio.run(run(questions, profile, mode, config))))
    except OutriderError as error:
        sys.exit(str(error))


if __name__ == "__main__":
    typer.run(main)
