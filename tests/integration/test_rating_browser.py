"""The rating page in a real headless Chromium: keys, players in step, and what arrives as votes.

Needs playwright and a Chromium on the PATH; skipped with a reason else.
"""

import shutil
import time
from pathlib import Path

import pytest

from human_study import LINES, annotation_yaml, make_study, serve

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

PATIENCE_S = 180  # beside a training this session has taken minutes; alone it takes 20 s

ENDED = """() => [...document.querySelectorAll('video')]
    .filter(v => v.dataset.side != 'reference').every(v => v.ended)"""
STATES = """() => [...document.querySelectorAll('video')].map(v => [v.dataset.side, v.paused,
    v.ended, v.seeking, v.readyState, v.networkState, v.currentTime, v.duration])"""
DRIFT_S = """() => { const t = [...document.querySelectorAll('.left video, .right video')]
    .map(v => v.currentTime); return t.length ? Math.abs(t[0] - t[1]) : 0; }"""


def until(page, expression: str, argument: object = None) -> None:
    """Waits through evaluate: wait_for_function would need eval, which the page's CSP forbids."""
    end = time.monotonic() + PATIENCE_S
    while not page.evaluate(expression, argument):
        assert time.monotonic() < end, (expression, page.evaluate(STATES))
        page.wait_for_timeout(50)


def answer_item(page) -> str:
    """Plays to the end, answers by keys and sends; returns the kind."""
    kind = page.get_attribute("#rate", "data-kind")
    page.click("text=Withdraw")
    page.keyboard.press("Escape")
    page.keyboard.press("Enter")  # neither a way back into the dialog nor an answer: too early
    assert not page.query_selector("dialog[open]")
    assert page.is_disabled("[data-act=send]")
    page.keyboard.press("Space")
    until(page, ENDED)
    assert page.evaluate(DRIFT_S) < 0.1
    is_practice = "Practice" in page.inner_text("header")
    if kind == "ranges" and not is_practice:
        by_mouse(page)
    else:
        for key in KEYS[kind]:
            page.keyboard.press(key)
    until(page, "() => !document.querySelector('[data-act=send]').disabled")
    if is_practice:
        page.keyboard.press("Enter")
        page.wait_for_selector("#feedback[open]")
        if kind in LINES:
            assert "that is what we see too" in page.inner_text("#feedback")
    with page.expect_navigation():
        page.keyboard.press("Enter")
    return kind


KEYS = {
    "mos": "112111",
    "pair": ["b", "ArrowLeft"],
    "turing": ["a", "ArrowRight"],
    "score": ["8", "ArrowDown", "6", *["ArrowRight"] * 2, "ArrowDown", "ArrowLeft"],
    "ranges": ["2", *["ArrowLeft"] * 3, "s", *["ArrowRight"] * 2, "e", "s", "Backspace"],
    "attributes": ["2", "3", "ArrowUp", "7", "ArrowUp", "3", "2", "2"],  # changed, and back
}


def by_mouse(page) -> None:
    """Two marks, one of which is taken away again."""
    for fault in ("teeth", "blink"):
        page.click(f"[data-fault={fault}]")
        page.evaluate("() => { document.querySelector('.only video').currentTime = 0.1; }")
        page.click("[data-act=start]")
        page.evaluate("() => { document.querySelector('.only video').currentTime = 0.3; }")
        page.click("[data-act=stop]")
    page.click("#marks li:first-child button:last-child")


def test_a_whole_session_by_keyboard(tmp_path: Path) -> None:
    raw = annotation_yaml(1)
    raw["tasks"].append({"kind": "score", "systems": ["ours"], "raters_per_item": 1})
    raw["tasks"] = [{**task, "items_per_rater": 1} for task in raw["tasks"]]
    study = make_study(tmp_path, raw)
    with serve(study, tmp_path / "votes") as site, playwright.sync_playwright() as player:
        (rater,) = site.store.add_raters(1)
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page()
        page.set_default_timeout(1000 * PATIENCE_S)
        faults: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.goto(f"http://127.0.0.1:{site.port}/r/{rater.token}")
        page.check("input[type=checkbox]")
        with page.expect_navigation():
            page.click("text=Begin")
        kinds = []
        while not page.query_selector(".mark"):
            if page.query_selector("#rate"):
                kinds.append(answer_item(page))
            else:
                with page.expect_navigation():
                    page.keyboard.press("Enter")
        browser.close()
        votes = site.store.votes()
    assert not faults
    # practice; mos, trap; pair, gold, trap; turing; lines; score
    assert len(kinds) == 4 + 2 + 3 + 1 + 2 + 1
    assert [vote.answer for vote in votes if vote.kind == "score"] == ["80", "62", "49"]
    scores = [vote.answer for vote in votes if vote.kind == "mos"]
    assert scores == list("112111") * 3
    for vote in votes:
        left = "second" if vote.second_on_left else "first"
        right = "first" if vote.second_on_left else "second"
        assert vote.answer == {"pair": left, "turing": right}.get(vote.kind, vote.answer)
    marked = [vote.answer for vote in votes if vote.kind == "ranges"]
    assert marked == ["teeth:0.18-0.38", "blink:0.10-0.30"]
    chosen = [vote.answer for vote in votes if vote.kind == "attributes"]
    assert chosen == ["left", "sad", "beat", "presentation"] * 2
