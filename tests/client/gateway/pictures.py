"""Take the pictures of the page for docs/, and a film of one run: `python tests/client/gateway/pictures.py docs`.

With SmolLM2 and a real cut; needs `outrider-models get smollm2`. All text in them is what the models write just then.
"""

from __future__ import annotations

import contextlib
import io
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from PIL import Image
from playwright.sync_api import Browser, Locator, sync_playwright
from visitor import CHROMIUM, FLAGS, Visitor

COMMANDS = Path(sys.executable).parent
PAIR = ("--target", "smollm2", "--drafter", "smollm2/eagle2")
TIPS = "Give me three tips for better sleep."
CODE = "Write a Python function that tells whether a word is a palindrome."
START_S = 300.0
WAIT_S = 120.0
FRAME_S = 0.25


def main(folder: Path) -> None:
    with gateway() as url, sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        for picture in (outage, private, phone, dark, run):
            print(picture(Pictures(browser, url, folder)).name)
        browser.close()


@dataclass(frozen=True)
class Pictures:
    browser: Browser
    url: str
    folder: Path

    @contextlib.contextmanager
    def visitor(self, **options: object) -> Iterator[Visitor]:
        with contextlib.closing(self.browser.new_context(**options)) as context:
            yield Visitor(context, self.url)

    def take(self, name: str, visitor: Visitor) -> Path:
        path = self.folder / f"page-{name}.png"
        visitor.page.screenshot(path=path)
        return path


def outage(pictures: Pictures) -> Path:
    """The link is cut: amber words that only this device has written."""
    with pictures.visitor(viewport={"width": 1200, "height": 720}) as visitor:
        cut_in_the_middle(visitor, TIPS, 395)
        wait_for_text(unverified(visitor), 60)
        picture = pictures.take("outage", visitor)
        visitor.page.click("#banner-restore")
    return picture


def private(pictures: Pictures) -> Path:
    """What the server will see of a message, below one that it answered by a placeholder."""
    with pictures.visitor(viewport={"width": 1200, "height": 640}) as visitor:
        page = visitor.page
        page.fill("#message", "Write a short note to <<PERSON: Ann Miller>> that I am late.")
        page.click("#other-privacy")
        page.press("#message", "Enter")
        page.mouse.move(0, 0)
        page.wait_for_selector(".turn.assistant [data-origin]")
        page.fill("#message", "Sign it as <<PERSON: Bea Holm>>.")
        wait_for_text(visitor.answer, 260)
        picture = pictures.take("private", visitor)
        page.click("#stop")
    return picture


def phone(pictures: Pictures) -> Path:
    """The link is back: struck-through words, and the chip that counts them."""
    with pictures.visitor(viewport={"width": 390, "height": 700}, device_scale_factor=1.5) as visitor:
        page = visitor.page
        cut_in_the_middle(visitor, CODE, 130)
        wait_for_text(unverified(visitor), 40)
        page.click("#banner-restore")
        visitor.wait_for_answers(1)
        if page.is_hidden("del"):  # faded by now
            page.click(".chip")
        return pictures.take("phone", visitor)


def dark(pictures: Pictures) -> Path:
    """Who wrote what, and the figures, in the dark."""
    with pictures.visitor(viewport={"width": 1440, "height": 720}, color_scheme="dark") as visitor:
        page = visitor.page
        cut_in_the_middle(visitor, TIPS, 395)
        wait_for_text(unverified(visitor), 40)
        page.click("#banner-restore")
        visitor.wait_for_answers(1)
        page.click("#who-wrote")
        page.click("#open-panel")
        drafted = visitor.answer.locator("[data-origin=accepted]")
        texts = drafted.all_inner_texts()
        drafted.nth(texts.index(max(texts, key=len))).hover()
        return pictures.take("dark", visitor)


def run(pictures: Pictures) -> Path:
    """An answer from its first word over a cut and back, as it looks to the eye: an animated WebP."""
    frames: list[Image.Image] = []
    with pictures.visitor(viewport={"width": 760, "height": 560}) as visitor:
        page = visitor.page

        def film(is_over: Callable[[], bool], at_least: int = 0) -> None:
            """Take a frame every so often until then."""
            deadline, first = time.monotonic() + WAIT_S, len(frames)
            while (not is_over() or len(frames) - first < at_least) and time.monotonic() < deadline:
                started = time.monotonic()
                frames.append(Image.open(io.BytesIO(page.screenshot(type="png"))).convert("RGB"))
                time.sleep(max(FRAME_S - (time.monotonic() - started), 0.0))

        visitor.ask(TIPS, mode="proactive")
        film(lambda: len(visitor.answer.inner_text()) >= 395)
        visitor.change_link()
        film(lambda: sum(map(len, unverified(visitor).all_inner_texts())) >= 40)
        page.click("#banner-restore")
        film(lambda: page.is_hidden("#stop"), at_least=24)
        film(lambda: not page.is_visible("del"), at_least=8)
    path = pictures.folder / "page-run.webp"
    frames[0].save(
        path, save_all=True, append_images=frames[1:], duration=int(FRAME_S * 1000), loop=0, quality=60, method=6
    )
    return path


def cut_in_the_middle(visitor: Visitor, question: str, num_chars: int) -> None:
    """Ask, and cut the link once the answer has so many characters."""
    visitor.ask(question, mode="proactive")
    visitor.page.wait_for_selector(".turn.assistant [data-origin]")
    wait_for_text(visitor.answer, num_chars)
    visitor.change_link()
    visitor.page.focus("#message")
    visitor.page.wait_for_selector("#banner-restore")


def unverified(visitor: Visitor) -> Locator:
    return visitor.answer.locator("[data-origin=unverified]")


def wait_for_text(locator: Locator, num_chars: int) -> None:
    deadline = time.monotonic() + WAIT_S
    while sum(map(len, locator.all_inner_texts())) < num_chars:
        if time.monotonic() > deadline:
            raise SystemExit(f"no {num_chars} characters within {WAIT_S:.0f} s")
        time.sleep(0.05)


@contextlib.contextmanager
def gateway() -> Iterator[str]:
    """Run a server and a gateway, behind a link that the page can cut; yield the gateway's address."""
    server, port = f"127.0.0.1:{free_port()}", free_port()
    link = ("--server", server, "--port", f"{port}", "--profile", "paper-4g", "--engine", "proxy")
    with (
        running("outrider-server", "serve", *PAIR, "--port", server.rpartition(":")[2]),
        running("outrider", "gateway", *PAIR, *link),
    ):
        url = f"http://127.0.0.1:{port}"
        wait_for_link(url)
        yield url


@contextlib.contextmanager
def running(command: str, *arguments: str) -> Iterator[None]:
    with subprocess.Popen([COMMANDS / command, *arguments]) as process:
        try:
            yield
        finally:
            process.terminate()


def wait_for_link(url: str) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline:
        with contextlib.suppress(urllib.error.URLError), urllib.request.urlopen(f"{url}/health") as health:
            if b'"online"' in health.read():
                return
        time.sleep(0.5)
    raise SystemExit(f"no link within {START_S:.0f} s")


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as probe:
        return probe.getsockname()[1]


if __name__ == "__main__":
    main(Path(sys.argv[1]))
