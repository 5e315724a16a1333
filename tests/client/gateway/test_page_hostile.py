"""Neither what a model writes nor what others have stored in the browser stops the page."""

from __future__ import annotations

import contextlib
import itertools
import json

import pytest
from visitor import BROWSER, DESK, Visitor

from outrider_client.privacy.fences import parse_fences
from outrider_proto.errors import UsageError

from ...marks import slow
from ..privacy.test_fences import CODE, FENCES, MEANT

pytestmark = BROWSER

PLACE = "outrider conversations"
GOOD = {"id": "7", "title": "the good one", "turns": [{"role": "user", "parts": [{"text": "Hello?"}]}]}
ODD = [
    *(None, 5, "x", {}, [], [None, 5, "x", []], {"id": "1"}),
    *([{**GOOD, field: odd}] for field in GOOD for odd in (None, 5, {}, [None], [[]])),
    *([{**GOOD, "turns": [{**GOOD["turns"][0], field: odd}]}]
      for field in ("role", "parts", "taken", "remark", "confirmed") for odd in (None, "x", {}, [None], [{}])),
    [{**GOOD, "turns": [{"role": "assistant", "parts": [{"text": "x"}], "statistics": {"rtt_ms": "x"}}]}],
]  # fmt: skip
SETTINGS = ("mode", "privacy", "max-tokens", "temperature", "copy-tint", "appearance", "who-wrote")
STORED = ["", "{", "[" * 100_000, "\u0000", *map(json.dumps, ODD)]


@pytest.mark.parametrize("raw", [*STORED[::5], *slow(*(raw for at, raw in enumerate(STORED) if at % 5))])
def test_the_page_starts_from_whatever_is_stored(stored_page, raw):
    page = stored_page({PLACE: raw, **{f"outrider {name}": raw for name in SETTINGS}})
    assert page.input_value("#mode") == "auto"
    page.click("#open-history")
    for each in page.locator("#conversations li button:first-child").all():
        each.click()
        assert page.locator(".turn").count() >= 0
    page.evaluate("new Promise((drawn) => requestAnimationFrame(drawn))")


@pytest.fixture(scope="module")
def shared(browser, behind_link):
    with contextlib.closing(browser.new_context(viewport=DESK)) as context:
        yield Visitor(context, behind_link.url)


@pytest.fixture
def page(shared):
    """The page of one visitor for all of these tests; it may not have failed."""
    yield shared.page
    faults, shared.faults = shared.faults, []
    assert faults == []


@pytest.fixture
def stored_page(page):
    """Load the page anew with these values in its storage; it must come up."""

    def load(values: dict[str, str]):
        page.evaluate(
            """(values) => {
                localStorage.clear();
                for (const name in values) localStorage.setItem(name, values[name]);
            }""",
            values,
        )
        page.reload()
        page.wait_for_selector("#link-pill[data-state=online]")
        return page

    return load


def test_a_good_conversation_stays_among_odd_ones_and_a_full_storage_takes_the_newest(stored_page):
    page = stored_page({PLACE: json.dumps([5, GOOD, {"id": "8"}])})
    page.click("#open-history")
    assert page.locator("#conversations li button:first-child").all_inner_texts() == ["the good one"]
    kept = page.evaluate(
        """async ([place, turns]) => {
        const history = await import("./history.js");
        for (let size = 2 ** 20; size >= 1; size /= 2) {
            try {
                for (let i = 0; ; i++) localStorage.setItem(`other ${size} ${i}`, "x".repeat(size));
            } catch { /* full */ }
        }
        localStorage.removeItem("other 1024 0");
        history.keep({ id: "9", title: "new", turns });
        history.write("outrider mode", "x".repeat(1e6));
        return JSON.parse(localStorage.getItem(place)).map(({ id }) => id);
    }""",
        [PLACE, GOOD["turns"]],
    )
    assert kept[0] == "9"
    page.evaluate("localStorage.clear()")


SIGNS = " \t\n\\`~*_-+#>|:![]()<\"'.=1aAh"
BEGUN = ("", "| a |\n", "```", "[](", "[](a", "- a\n", "<<", "<<private: ", "> ", "http://")
MANY_LENGTHS = "".join("`" * length + "x" for length in range(600, 0, -1))
LINES = "".join(" " * length + "- a\n" for length in range(600))
PIECES = (
    "- a\n\n\n", "a\n- ", "| - |\n", "a|\n-|\n", "[a](", "http://:", "_http://:a_-", "[]()", "<http://",
    "<<A: b>>", "a`",
)  # fmt: skip
READ = """async ([texts]) => {
    const { parseMarkdown } = await import("./markdown.js");
    const { parseInline } = await import("./inline.js");
    const { parseFences } = await import("./fences.js");
    const slow = [];
    for (const [begun, unit, end, size] of texts) {
        const text = begun + unit.repeat(size / unit.length) + end;
        for (const read of [parseMarkdown, parseInline, parseFences]) {
            const began = performance.now();
            try {
                read(text);
            } catch (error) {
                if (!/private marker/.test(error.message)) throw error;
            }
            const tookMs = performance.now() - began;
            if (tookMs > 5000) slow.push([begun, unit.slice(0, 20), end, Math.round(tookMs)]);
        }
    }
    return slow;
}"""


def test_all_that_a_model_may_write_is_read_in_linear_time(page):
    """In quadratic time a text of this length takes 20 seconds and more, in linear time 20 milliseconds."""
    texts = [(begun, sign, end, 150_000) for begun in BEGUN for sign in SIGNS for end in ("", "x")]
    texts += [("", unit, "", 150_000) for unit in PIECES]
    texts += [("", MANY_LENGTHS, "", len(MANY_LENGTHS)), ("", LINES, "", len(LINES)), ("- a\n", "\n", "  b", 150_000)]
    texts += [("```", " ", "`", 150_000), ("", "~", "`", 150_000), ("", "* ", "x", 150_000)]
    assert page.evaluate(READ, [texts]) == []


@pytest.mark.slow
@pytest.mark.parametrize("first", SIGNS)
def test_and_so_are_pairs_of_all_signs(page, first):
    pairs = [
        (begun, first + second, end, 100_000) for second in SIGNS for begun in ("", "| a |\n", "a") for end in ("", "x")
    ]
    assert page.evaluate(READ, [pairs]) == []


TICKS = ["`", "``", "```", "~~~", "\n", " ", "a", "<<A: b>>", "<<", ">>", "\\<<", "<<private: "]
MARKED = [*CODE, *MEANT, *(text for text, _ in FENCES), "é <<private: 𝄞>> x", "<<A_1:  x  >>y<< z >>", "<<NAME:>>"]


def test_markers_are_read_as_the_library_does(page):
    texts = [*MARKED, *("".join(parts) for parts in itertools.product(TICKS, repeat=4))]
    read = page.evaluate(
        """async (texts) => {
        const { parseFences } = await import("./fences.js");
        const shown = ({ text, private: isPrivate, kind }) => [text, isPrivate, kind ?? null];
        return texts.map((text) => { try { return parseFences(text).map(shown); } catch { return null; } });
    }""",
        texts,
    )
    for text, parts in zip(texts, read, strict=True):
        try:
            expected = [[each.text, each.private, each.kind] for each in parse_fences(text)]
        except UsageError:
            expected = None
        assert parts == expected, text
