"""Kinds of chats, and the words with which a user's turn begins so that the model goes on in that kind.

An opening of "" leaves the whole turn to the model. None ends in a space, which would be a token of its own that hardly
anything but digits follows. Summaries and questions go over a text that the model wrote before.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Kind:
    """Openings of a user's turn; `share` of the chats. `over_text`: the turn begins with a text."""

    share: float
    openings: Sequence[str]
    over_text: bool = False
    asks_all: bool = False  # the opening is the whole request, and the model adds nothing


KINDS: Mapping[str, Kind] = {
    "open": Kind(0.22, ("",)),
    "chat": Kind(0.16, (
        "Hi,", "Can you", "I am", "My", "How do I", "What should I", "I want to", "Tell me", "Should I",
        "Help me", "What do you think about", "I have a question about", "Give me advice on",
    )),
    "knowledge": Kind(0.14, (
        "What is", "Why do", "Why is", "Who was", "When did", "Explain", "What are the", "How does",
        "Describe", "What is the difference between", "Where is", "List", "Name three",
    )),
    "writing": Kind(0.12, (
        "Write a short story about", "Write an email", "Write a poem", "Write a paragraph about",
        "Create a", "Rewrite the following sentence:", "Write a letter to", "Translate", "Draft a",
    )),
    "code": Kind(0.12, (
        "Write a Python function that", "Write a function", "Write a program", "Fix this code:\n",
        "How do I write a loop", "Write a SQL query", "Write JavaScript code", "What does this code do?\n",
        "Implement", "Write a class",
    )),
    "math": Kind(0.10, (
        "Calculate", "Solve the equation", "What is the sum of", "A shop sells", "If a train", "How many",
        "Find the", "A farmer has", "What is 15", "Simplify", "Tom has", "The length of a rectangle is",
    )),
    "summary": Kind(0.07, (
        "Summarize the text above.", "Summarize the text above in one sentence.", "What is the text above about?",
        "Give the main points of the text above.",
    ), over_text=True, asks_all=True),
    "qa": Kind(0.07, (
        "Question: What", "Question: Why", "Question: Who", "Question: How", "According to the text,",
        "Answer from the text:",
    ), over_text=True),
}  # fmt: skip
