"""A visitor of the page in a real Chromium."""

from __future__ import annotations

import json
import shutil
from collections.abc import Sequence

import pytest

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser") or shutil.which("google-chrome")
BROWSER = [
    pytest.mark.browser,
    pytest.mark.skipif(CHROMIUM is None, reason="no Chromium: apt-get install chromium"),
]
FLAGS = ["--no-sandbox", "--disable-gpu", "--disable-background-networking", "--disable-component-update"]
QUESTION = (
    "Write a function build_total(names). Given a list of words, it should keep words ending with 'e', then keep words"
    " with the letter 'r', then keep words with more than 9 letters, then return one text with spaces between."
)  # the embedded pair knows the like of it
SMALL_PHONE = {"width": 320, "height": 568}
DESK = {"width": 1280, "height": 860}
WAIT_MS = 60_000


class Visitor:
    """A page in its own browser, with its requests and its errors."""

    def __init__(self, context, url: str) -> None:
        self.page = context.new_page()
        self.page.set_default_timeout(WAIT_MS)
        self.requests = []
        self.faults: list[str] = []
        self.page.on("request", lambda request: self.requests.append(request))
        self.page.on("pageerror", lambda error: self.faults.append(str(error)))
        self.page.add_init_script("delete Crypto.prototype.randomUUID")  # missing where an address is not localhost
        self.page.goto(url)
        self.page.wait_for_selector("#link-pill[data-state=online]")

    def set(self, *, mode: str | None = None, **fields: str) -> None:
        """Change settings in their drawer."""
        if self.page.is_hidden("#panel"):
            self.page.click("#open-panel")
        if mode is not None:
            self.page.select_option("#mode", mode)
        for name, value in fields.items():
            self.page.fill(f"#{name.replace('_', '-')}", value)
        self.page.click("#panel .close")

    def ask(self, text: str, *, mode: str = "stop-and-wait", answers: int = 0) -> None:
        """Ask, and wait until so many answers are there."""
        if self.page.input_value("#mode") != mode:
            self.set(mode=mode)
        self.page.fill("#message", text)
        self.page.press("#message", "Enter")
        if answers:
            self.wait_for_answers(answers)

    def reopen(self, conversation: int = 0) -> None:
        """Load the page anew and open a conversation from the history."""
        self.page.reload()
        self.page.click("#open-history")
        self.page.click(f"#conversations li button >> nth={conversation}")

    def begin(self, text: str) -> None:
        """Ask, and wait for the first words of the answer."""
        self.ask(text)
        self.page.wait_for_selector(".turn.assistant [data-origin]")

    def wait_for_answers(self, count: int) -> None:
        # wait_for_function would need eval, which the page forbids
        done = self.page.locator(".turn.assistant .actions")
        done.nth(count - 1).wait_for(state="attached")
        assert done.count() == count

    def change_link(self) -> None:
        """Cut the link in the pill's card, or restore it."""
        self.page.click("#link-pill")
        self.page.click("#cut")
        self.page.keyboard.press("Escape")

    @property
    def answer(self):
        return self.page.locator(".turn.assistant").last.locator(".text")

    @property
    def written(self) -> str:
        """The text of the newest answer, as the model wrote it and the browser keeps it."""
        return "".join(part["text"] for part in self.kept()[0]["turns"][-1]["parts"])

    def kept(self) -> list[dict]:
        return json.loads(self.page.evaluate("localStorage.getItem('outrider conversations') ?? '[]'"))

    @property
    def origins(self) -> set[str]:
        return set(self.answer.locator("[data-origin]").evaluate_all("all => all.map(each => each.dataset.origin)"))

    @property
    def remarks(self) -> list[str]:
        return self.page.locator(".turn.assistant .remark").all_inner_texts()

    @property
    def sticks_out(self) -> bool:
        """True if the page is wider than the window."""
        return self.page.evaluate("document.documentElement.scrollWidth > innerWidth")

    def bodies(self) -> list[dict]:
        return [request.post_data_json for request in self.requests if request.url.endswith("/v1/chat/completions")]

    def draw(self, chunks: Sequence[tuple[str, dict]]) -> None:
        """Show an answer of these chunks in a turn of its own, as if the gateway had sent them."""
        self.page.evaluate(
            """async (chunks) => {
                const { AnswerText } = await import("./answer.js");
                const { AnswerTurn } = await import("./turn.js");
                const turn = new AnswerTurn(new AnswerText());
                document.getElementById("turns").append(turn.element);
                for (const [text, extension] of chunks) turn.take(text, extension);
                turn.finish({ statistics: null, remark: "" });
            }""",
            list(chunks),
        )


def html(visitor, text: str) -> str:
    """The answer's elements without what tells origins."""
    visitor.page.evaluate("document.getElementById('turns').replaceChildren()")
    visitor.draw([(text, {"origin": "bonus"})])
    return visitor.answer.evaluate("""text => {
        const copy = text.cloneNode(true);
        copy.querySelectorAll(".bar").forEach((bar) => bar.remove());
        copy.querySelectorAll("[data-origin]").forEach((span) => span.replaceWith(...span.childNodes));
        const others = (element) => element.getAttributeNames().filter((name) => name !== "href" && name !== "start");
        copy.querySelectorAll("*").forEach((each) => others(each).forEach((name) => each.removeAttribute(name)));
        return copy.innerHTML;
    }""")
