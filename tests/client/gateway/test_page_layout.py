"""The page's look: greeting, column, following, link, drawers, small windows, accessibility."""

from __future__ import annotations

import re

import pytest
from visitor import BROWSER, DESK, PHONE, QUESTION, SMALL_PHONE

pytestmark = BROWSER

LONG = "\n\n".join(f"Paragraph {number}." for number in range(80))


def gap(page) -> int:
    """Pixels between what is in sight and the newest words."""
    return page.evaluate("(log => log.scrollHeight - log.scrollTop - log.clientHeight)(document.getElementById('log'))")


def test_an_empty_page_greets(behind_link, visit, server):
    visitor = visit(behind_link)
    page = visitor.page
    page.get_by_text(re.compile(r"\d+ ms away")).wait_for()
    greeting = page.inner_text("#greeting")
    assert greeting.startswith(f"Ask {page.inner_text('#model-name')}")
    assert f"It runs on {server}, " in greeting
    assert "moa" in greeting
    assert "<<private: like this>>" in greeting
    assert page.locator("#examples button").count() == 3
    page.click("#examples button >> nth=2")
    assert page.inner_text("#leaves").startswith("The server sees: ")
    assert visitor.bodies() == []
    page.fill("#message", "")
    page.click("#examples button >> nth=0")
    assert page.is_hidden("#greeting")
    visitor.wait_for_answers(1)
    page.click("#begin-anew")
    assert page.is_visible("#greeting")


def test_a_sign_of_life_comes_before_the_first_word(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
    seen = []

    def look(route) -> None:
        seen.append((page.is_visible(".waiting"), page.is_visible("#stop"), page.is_visible("#send")))
        route.continue_()

    page.route("**/v1/chat/completions", look)
    visitor.ask("Who am I?")
    visitor.wait_for_answers(1)
    assert seen == [(True, True, False)]
    assert page.locator(".waiting").count() == 0
    assert page.is_visible("#send")


@pytest.mark.parametrize("size", [DESK, PHONE, SMALL_PHONE], ids=["desk", "phone", "small"])
def test_the_message_stays_and_the_answer_is_followed(behind_link, visit, size):
    visitor = visit(behind_link, viewport=size)
    page = visitor.page
    visitor.draw([(LONG, {"origin": "bonus"})], is_open=True)
    visitor.ask(QUESTION)
    page.wait_for_selector(".turn .actions")
    assert not visitor.sticks_out
    assert page.evaluate("document.documentElement.scrollHeight") <= size["height"]
    send = page.locator("#send").bounding_box()
    assert send["y"] + send["height"] <= size["height"]
    assert gap(page) < 8
    visitor.draw([(LONG, {"origin": "bonus"})], is_open=True)
    assert gap(page) < 8
    page.evaluate("document.getElementById('log').scrollTop -= 300")
    page.wait_for_selector("#to-newest")
    before = page.evaluate("document.getElementById('log').scrollTop")
    visitor.draw([(LONG, {"origin": "bonus"})], is_open=True)
    assert page.evaluate("document.getElementById('log').scrollTop") == before
    page.click("#to-newest")
    assert gap(page) < 8
    assert page.is_hidden("#to-newest")


def test_header_log_and_message_share_a_column(behind_link, visit):
    visitor = visit(behind_link, viewport={"width": 1440, "height": 900})
    boxes = [
        visitor.page.locator(f"{part} .column, {part}.column").first.bounding_box()
        for part in ("header", "#log", "#composer")
    ]
    middles = [box["x"] + box["width"] / 2 for box in boxes]
    assert max(middles) - min(middles) <= 8  # the log may have a scroll bar
    assert abs(middles[0] - 720) <= 8


def test_wide_code_scrolls_by_itself(behind_link, visit):
    visitor = visit(behind_link, viewport=SMALL_PHONE)
    visitor.draw([(f"```\n{'wide ' * 60}\n```\n\n{'x' * 300} `{'y' * 300}`\n\n|a|b|\n|-|-|\n|{'z' * 90}|c|", {})])
    assert not visitor.sticks_out
    assert visitor.answer.locator("pre").evaluate("pre => pre.scrollWidth > pre.clientWidth")


def test_the_pill_tells_the_link_and_changes_it(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
    page.get_by_text(re.compile(r"^\d+ ms$")).first.wait_for()
    assert page.is_hidden("#link-card")
    page.click("#link-pill")
    assert page.inner_text("#link-meaning") == "The server checks the words as they come."
    assert page.input_value("#profile") == "paper-4g"
    page.select_option("#profile", "wifi")
    assert next(report for report in behind_link.link_states() if report["emulated"]["profile"] == "wifi")
    page.select_option("#profile", "paper-4g")
    page.keyboard.press("Escape")
    assert page.is_hidden("#link-card")


def test_figures_have_plain_names_units_and_axes(behind_link, visit):
    visitor = visit(behind_link)
    page = visitor.page
    visitor.ask(QUESTION)
    visitor.wait_for_answers(1)
    assert page.is_hidden("#panel")
    page.click("#open-panel")
    assert page.get_attribute("#open-panel", "aria-expanded") == "true"
    page.locator(".chart b:text('tokens/s')").wait_for()
    captions = page.locator(".chart figcaption").all_inner_texts()
    assert [caption.splitlines()[0] for caption in captions] == [
        "Round trip",
        "Speed",
        "Tokens a reply of the server",
        "Traffic",
    ]
    axes = page.locator(".chart .axis").all_inner_texts()
    assert re.fullmatch(r"\d+ ms\n0", axes[0])
    assert re.fullmatch(r"\d+ tokens/s\n0", axes[1])
    assert page.locator(".chart .times").first.inner_text().split("\n") == ["2 min ago", "now"]
    page.keyboard.press("Escape")
    assert page.is_hidden("#panel")
    assert page.evaluate("document.activeElement.id") == "open-panel"


def test_on_a_phone_a_drawer_covers_the_conversation(behind_link, visit):
    visitor = visit(behind_link, viewport=SMALL_PHONE)
    page = visitor.page
    page.click("#open-history")
    assert page.evaluate("document.getElementById('chat').inert")
    page.keyboard.press("Escape")
    assert not page.evaluate("document.getElementById('chat').inert")
    visitor.ask("Who am I?")
    visitor.wait_for_answers(1)
    page.click("#open-history")
    page.click("#new-conversation")
    assert page.is_hidden("#history")
    assert not visitor.sticks_out


def set_up(visitor, scene: str) -> None:
    page = visitor.page
    if scene != "empty":
        visitor.draw([("Try *this*:\n\n```py\nx = 1\n```\n\n| a |\n|-|\n| https://b.c |\n\n", {"origin": "accepted"})])
        visitor.draw([("1. drafted ", {"origin": "accepted"}), ("and not checked", {"origin": "unverified"})])
        visitor.draw([("a ", {"origin": "bonus"}), ("b c", {"origin": "unverified"}), ("", {"rollback_to": 2})])
        page.evaluate("document.getElementById('greeting').hidden = true")
    match scene:
        case "asked":
            visitor.ask("Who am <<private: I>>?")
            page.locator(".turn summary").wait_for()
            page.click(".turn summary")
            page.click("#open-history")
        case "origins":
            page.click("#who-wrote")
            page.hover(".assistant [data-origin]")
        case "offline":
            visitor.change_link()
            page.wait_for_selector("#banner:not([hidden])")
        case "drawer":
            page.click("#open-panel")
        case "link":
            page.click("#link-pill")
        case "key":
            page.evaluate("document.getElementById('key-dialog').showModal()")


@pytest.fixture
def online(behind_link):
    yield behind_link
    behind_link.order(cut=False)
    behind_link.wait_for_link("online")


@pytest.mark.parametrize("size", [DESK, SMALL_PHONE], ids=["desk", "small"])
@pytest.mark.parametrize("scene", ["empty", "asked", "origins", "offline", "drawer", "link", "key"])
def test_no_accessibility_finding(online, visit, size, scene):
    """axe-core finds nothing at all, in light and dark."""
    from axe_playwright_python.sync_playwright import Axe

    visitor = visit(online, viewport=size, reduced_motion="reduce")
    set_up(visitor, scene)
    for scheme in ("light", "dark"):
        visitor.page.emulate_media(color_scheme=scheme)
        findings = Axe().run(visitor.page).response["violations"]
        assert [f"{each['id']} ({each['impact']}): {each['nodes'][0]['html']}" for each in findings] == [], scheme
    assert not visitor.sticks_out
    assert not re.search(r"undefined|NaN|null", visitor.page.inner_text("body"))
