"""The report in a real headless Chromium: it stands alone, fits, and plays two videos in step.

Needs playwright and a Chromium on the PATH; skipped with a reason else.
"""

import shutil
from dataclasses import replace
from pathlib import Path

import polars as pl
import pytest

from avatar_v_eval import cli
from avatar_v_eval.bench.world70 import DrawnSet
from avatar_v_eval.files import file_hash
from bench_cases import make_manifest
from bench_runs import OUTPUTS, make_run, save

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

COUNTS = Path(__file__).resolve().parents[2] / "eval" / "benchmarks" / "avatar_v_report"
PATIENCE_MS = 120_000  # beside a training a page has taken half a minute

PLAYED = """() => [...document.querySelectorAll('.case:first-child video')]
    .every(v => v.readyState > 1 && v.currentTime > 0.3)"""
DRIFT_S = """() => { const t = [...document.querySelectorAll('.case:first-child video')]
    .map(v => v.currentTime); return Math.abs(t[0] - t[1]); }"""


@pytest.fixture(scope="module")
def report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of two systems whose videos are there, but for one that has changed; with human tables."""
    folder = tmp_path_factory.mktemp("report")
    made = make_manifest(folder / "w", DrawnSet("w", num_cases=2, num_frames=50, first=11, size=64))
    run = make_run({
        "truth": {"syncnet_c": [8.0, 7.0], "face_arcface": [0.9, 0.8]},
        "ours": {"syncnet_c": [6.0, 5.0], "face_arcface": [0.7, None]},
    }, OUTPUTS)  # fmt: skip
    files = {f"c{i:02d}": made.path(case, "truth") for i, case in enumerate(made.cases)}
    hashes = {case: file_hash(path) for case, path in files.items()}
    cases = run.cases.with_columns(
        pl.col("case").replace_strict({k: str(v) for k, v in files.items()}).alias("file"),
        pl.when((pl.col("system") == "ours") & (pl.col("case") == "c00"))
        .then(pl.lit("f" * 64))
        .otherwise(pl.col("case").replace_strict(hashes))
        .alias("video"),
    )
    words = ["report", str(save(folder / "run", replace(run, cases=cases)))]
    words += ["--votes", str(COUNTS), "--baseline", "truth", "--out", str(folder / "out")]
    assert cli.main(words) == 0
    return folder / "out" / "index.html"


def test_what_has_changed_is_said_and_not_shown(report: Path):
    source = report.read_text()
    assert source.count("has changed since it was scored") == 1
    assert source.count("<video") == 3


def test_the_page_plays_alone_and_fits(report: Path, tmp_path: Path):
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1280, "height": 900})
        page.set_default_timeout(PATIENCE_MS)
        faults: list[str] = []
        asked: list[str] = []
        page.on("console", lambda message: faults.append(message.text))
        page.on("pageerror", lambda error: faults.append(str(error)))
        page.on("request", lambda request: asked.append(request.url))
        page.goto(report.as_uri())
        page.click(".case:first-child button.play")
        page.wait_for_function(PLAYED)
        assert page.evaluate(DRIFT_S) < 0.15  # a tick of timeupdate is up to 0.25 s apart
        assert page.evaluate("document.querySelectorAll('video[muted]').length") == 1
        for width in (1280, 420):
            page.set_viewport_size({"width": width, "height": 900})
            assert page.evaluate("document.documentElement.scrollWidth") == width
        shown = page.evaluate("[...document.images].map(i => i.naturalWidth > 100)")
        assert shown == [True] * 3
        page.screenshot(path=tmp_path / "page.png", full_page=True)
        browser.close()
    assert not faults
    assert [url for url in asked if not url.startswith("data:")] == [report.as_uri()]
