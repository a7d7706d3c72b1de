"""The app in a real headless Chromium: upload, generate, watch it live, download, stop, faults.

Needs Gradio (extra `app`), playwright (no dependency of ours) and a Chromium on the PATH; skipped
with a reason else. Screenshots go to AVATAR_V_SCREENSHOTS, or to the test's own folder.
"""

import dataclasses
import json
import os
import shutil
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from avatar_v.app.ask import CONSENT, FRAMED, Limits
from avatar_v.app.drawn import draw_person
from avatar_v.app.server import create_app
from avatar_v.app.studio import Studio
from avatar_v.media import probe, read_video

gradio = pytest.importorskip("gradio", reason="the app's extra is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")
import uvicorn  # noqa: E402  comes with Gradio

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH")

PATIENCE_S = 120  # beside a training; alone each wait is a second or two
PLAYING = "() => { const v = document.querySelector('video[data-live]'); return v && [v.readyState,"
PLAYING += " v.currentTime, v.videoWidth, v.getVideoPlaybackQuality().totalVideoFrames, v.ended]; }"


@dataclasses.dataclass
class Site:
    studio: Studio
    url: str


@pytest.fixture(scope="module")
def site(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The real server on a free port, at the tiny random checkpoint."""
    root, before = tmp_path_factory.mktemp("app"), os.environ.get("GRADIO_TEMP_DIR")
    limits = Limits(upload_mib=2.0, speech_s=60.0)
    studio = Studio(root, weights=weights, device="cpu", precision="fp32", limits=limits)
    config = uvicorn.Config(create_app(studio, host="127.0.0.1"), port=0, log_level="error")
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run, daemon=True)
    thread.start()
    while not server.started:
        assert thread.is_alive(), "the server ended at once"
        thread.join(0.01)
    port = server.servers[0].sockets[0].getsockname()[1]
    yield Site(studio, f"http://127.0.0.1:{port}/")
    server.should_exit = True
    server.force_exit = True
    thread.join(10)
    os.environ.pop("GRADIO_TEMP_DIR")
    if before is not None:
        os.environ["GRADIO_TEMP_DIR"] = before


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return draw_person(tmp_path_factory.mktemp("drawn"), 11)


@pytest.fixture
def page(site: Site, tmp_path: Path) -> Iterator:
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(executable_path=CHROMIUM, args=["--no-sandbox"])
        page = browser.new_page(viewport={"width": 1180, "height": 1080})
        page.set_default_timeout(1000 * PATIENCE_S)
        page.outside = []  # requests to anywhere but the app
        page.faults = []
        page.on("request", lambda r: None if r.url.startswith((site.url, "blob:", "data:"))
                else page.outside.append(r.url))  # fmt: skip
        page.on("pageerror", lambda error: page.faults.append(str(error)))
        page.goto(site.url)
        page.wait_for_selector("#av-make")
        yield page
        browser.close()


def shoot(page, name: str, tmp_path: Path) -> None:
    folder = Path(os.environ.get("AVATAR_V_SCREENSHOTS", tmp_path))
    page.screenshot(path=str(folder / f"{name}.png"), full_page=True)


def fill(page, files: tuple[Path, Path], *, steps: int = 2) -> None:
    clip, speech = files
    page.set_input_files("#av-reference input[type=file]", str(clip))
    page.wait_for_selector("#av-reference video")
    page.set_input_files("#av-speech input[type=file]", str(speech))
    page.wait_for_selector("#av-speech button[aria-label=Play], #av-speech .waveform-container")
    page.click(f"text={FRAMED}")
    page.click("text=Options")
    page.fill("#av-options input[type=number] >> nth=0", str(steps))
    page.keyboard.press("Tab")
    page.check("#av-consent input")


def until(page, what, told: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, told
        page.wait_for_timeout(100)


@pytest.mark.slow
def test_upload_generate_watch_download(page, site: Site, files, tmp_path: Path) -> None:
    shoot(page, "1_empty", tmp_path)
    fill(page, files)
    shoot(page, "2_filled", tmp_path)
    page.click("#av-make")
    page.wait_for_selector("video[data-live]")
    until(page, lambda: (page.evaluate(PLAYING) or [0] * 4)[3] > 10, "no pictures are shown")
    shoot(page, "3_playing", tmp_path)
    page.wait_for_selector(".av-links")
    with page.expect_download() as video:
        page.click("text=Download the video")
    with page.expect_download() as record:
        page.click("text=and its record")
    video.value.save_as(tmp_path / "got.mp4")
    record.value.save_as(tmp_path / "got.json")
    values = json.loads((tmp_path / "got.json").read_text())
    assert values["num_frames"] == len(read_video(tmp_path / "got.mp4")) == 150
    assert probe(tmp_path / "got.mp4").has_audio
    assert values["request"]["num_steps"] == 2
    until(page, lambda: page.evaluate(PLAYING)[4], "it does not play to its end")
    seconds, width = page.evaluate(PLAYING)[1:3]
    assert seconds == pytest.approx(6.0, abs=0.2)  # the sound may end an AAC frame later
    assert width == 32
    shoot(page, "4_done", tmp_path)
    assert not page.faults
    assert not page.outside


@pytest.mark.slow
def test_stop_ends_the_job(page, site: Site, files, tmp_path: Path) -> None:
    before = set(site.studio.jobs.iterdir())
    fill(page, files, steps=64)
    page.click("#av-make")
    page.wait_for_selector("video[data-live]")
    page.click("#av-stop")
    page.wait_for_selector("text=Stopped. Nothing of it was kept.")
    shoot(page, "5_stopped", tmp_path)
    until(page, lambda: set(site.studio.jobs.iterdir()) == before, "the job's folder stays")
    assert not [thread for thread in threading.enumerate() if thread.name == "writer"]
    assert page.is_enabled("#av-make")


@pytest.mark.slow
def test_faults_are_told_on_the_page(page, site: Site, files, tmp_path: Path) -> None:
    page.click("#av-make")
    page.wait_for_selector("text=Add a clip of the person")
    fill(page, files)
    page.uncheck("#av-consent input")
    page.click("#av-make")
    page.wait_for_selector(f".av-failed >> text=Tick “{CONSENT}” first")
    page.check("#av-consent input")
    (tmp_path / "broken.wav").write_bytes(b"RIFF" + bytes(100))
    page.click("#av-speech button[aria-label=Clear]")
    page.set_input_files("#av-speech input[type=file]", str(tmp_path / "broken.wav"))
    page.wait_for_timeout(1000)
    page.click("#av-make")
    page.wait_for_selector(".av-failed >> text=broken.wav")
    shoot(page, "6_fault", tmp_path)
    assert str(site.studio.uploads) not in page.inner_text(".av-failed")
    assert "Traceback" not in page.inner_text("body")


@pytest.mark.slow
def test_a_drawn_person_fills_the_form(page, tmp_path: Path) -> None:
    page.click("#av-drawn")
    page.wait_for_selector("#av-reference video")
    until(page, lambda: page.is_checked(f"#av-picture label:has-text('{FRAMED}') input"), "radio")
    page.wait_for_timeout(500)
    shoot(page, "7_drawn", tmp_path)


@pytest.mark.slow
def test_another_name_for_this_machine_is_refused(page, site: Site) -> None:
    answer = page.request.get(site.url, headers={"Host": "evil.example"})
    assert answer.status == 400
    assert page.request.get(f"{site.url}jobs/{'0' * 32}/avatar.mp4").status == 404
