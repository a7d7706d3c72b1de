"""The app in a real headless Chromium: upload, generate, watch it live, download, stop, faults.

`avatar-v app` runs as a user starts it, at tiny random weights. Needs the extra `app`,
playwright and a Chromium on the PATH; skipped with a reason else.
Screenshots go to AVATAR_V_SCREENSHOTS, or to the test's own folder.
"""

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import av
import pytest
import torch
import torch.nn.functional as F

from avatar_v.app.example import draw_person
from avatar_v.media.reading import probe, read_audio, read_video
from avatar_v.media.writer import Mp4Writer, write_wav
from avatar_v.serving.limits import CONSENT
from avatar_v.types import SAMPLE_RATE_HZ
from avatar_v.world.clip import make_clip
from page_site import PATHS

pytest.importorskip("fastapi", reason="the app's extra is not installed")
playwright = pytest.importorskip("playwright.sync_api", reason="playwright is not installed")

CHROMIUM = shutil.which("chromium") or shutil.which("chromium-browser")
pytestmark = [
    pytest.mark.skipif(CHROMIUM is None, reason="no chromium on the PATH"),
]

CAMERA = ("--use-fake-device-for-media-stream", "--use-fake-ui-for-media-stream")
"""Chromium's own beep, and `camera_file` for a picture, with permission given."""
PATIENCE_S = 300  # beside a training; alone each wait is a few seconds
SHOWN = "v => [v.currentTime, v.videoWidth, v.getVideoPlaybackQuality().totalVideoFrames, v.ended]"


@dataclass(frozen=True)
class Site:
    url: str
    root: Path  # everything that the app keeps

    @property
    def jobs(self) -> set[str]:
        return {path.name for path in (self.root / "jobs").iterdir()}


@pytest.fixture(scope="module")
def site(weights: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Site]:
    """The app on a free port. When it is interrupted it leaves nothing behind."""
    place = tmp_path_factory.mktemp("app")
    command = [sys.executable, "-c", "from avatar_v.cli import main; raise SystemExit(main())"]
    options = ["--port", "0", "--device", "cpu", "--precision", "fp32", "--max-upload", "8"]
    options += ["--live", "1"]
    process = subprocess.Popen(
        [*command, "app", "--weights", str(weights), *options],
        env=os.environ | {"TMPDIR": str(place), "PYTHONPATH": PATHS},
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert process.stdout is not None
        url = re.search(r"http://127\.0\.0\.1:\d+", process.stdout.readline())
        assert url, "the app ended at once"
        (root,) = place.glob("avatar_v_app_*")
        yield Site(f"{url[0]}/", root)
        process.send_signal(signal.SIGINT)
        process.wait(PATIENCE_S)
        assert list(place.glob("avatar_v_app_*")) == []
    finally:
        process.kill()


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    return draw_person(tmp_path_factory.mktemp("drawn"), 11)


@pytest.fixture(scope="module")
def long_files(files, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """The same person with four minutes to say. Tiny weights make 40 s of it while a browser that
    shares their cores takes a screenshot; then there is nothing to stop."""
    clip, speech = files
    sound, num = read_audio(speech), 240 * SAMPLE_RATE_HZ
    path = tmp_path_factory.mktemp("long") / "speech.wav"
    write_wav(path, sound.repeat(-(-num // len(sound)))[:num])
    return clip, path


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator:
    file = camera_file(tmp_path_factory.mktemp("camera") / "face.y4m")
    seen = f"--use-file-for-fake-video-capture={file}"
    with playwright.sync_playwright() as player:
        browser = player.chromium.launch(
            executable_path=CHROMIUM, args=["--no-sandbox", *CAMERA, seen]
        )
        yield browser
        browser.close()


def camera_file(path: Path) -> Path:
    """A drawn person in the middle of a wide picture, as a camera shows one."""
    video = make_clip(3, 3, 3, num_frames=9, size=240).video
    assert video is not None
    with av.open(str(path), "w", format="yuv4mpegpipe") as container:
        stream = container.add_stream("wrapped_avframe", rate=25)
        stream.width, stream.height, stream.pix_fmt = 320, 240, "yuv420p"
        for picture in F.pad(video, (40, 40), value=128).movedim(1, -1).numpy():
            frame = av.VideoFrame.from_ndarray(picture.copy(), format="rgb24")
            container.mux(stream.encode(frame.reformat(format="yuv420p")))
        container.mux(stream.encode(None))
    return path


@pytest.fixture
def new_page(browser, site: Site) -> Iterator:
    """Opens the page, as often as it is called. No page asks others than the app for anything."""
    pages, strange = [], []

    def open_page():
        page = browser.new_page(viewport={"width": 1180, "height": 900})
        page.set_default_timeout(1000 * PATIENCE_S)
        own = (site.url, "blob:", "data:")
        page.on("request", lambda r: None if r.url.startswith(own) else strange.append(r.url))
        page.on("pageerror", lambda error: strange.append(str(error)))
        page.goto(site.url)
        page.wait_for_selector("#av-make")
        pages.append(page)
        return page

    yield open_page
    for page in pages:
        page.close()
    assert not strange


@pytest.fixture
def page(new_page):
    return new_page()


def shoot(page, name: str, tmp_path: Path) -> None:
    folder = Path(os.environ.get("AVATAR_V_SCREENSHOTS", tmp_path))
    page.screenshot(path=str(folder / f"{name}.png"), full_page=True)


def give(page, clip: Path, speech: Path) -> None:
    for name, path in (("reference", clip), ("speech", speech)):
        page.set_input_files(f"#av-{name} input[type=file]", str(path))
        page.wait_for_selector(f"#av-{name}[data-state=given]")


def fill(page, files: tuple[Path, Path], *, steps: int = 2) -> None:
    give(page, *files)
    page.click("text=Options")
    page.fill("#av-steps", str(steps))
    page.check("#av-consent input")


def make(page) -> None:
    """Start, and wait until the library has accepted the files."""
    page.click("#av-make")
    page.wait_for_selector("video[data-live]", state="attached")


def shown(page) -> list:
    """Seconds played, width, frames shown, at its end."""
    return page.eval_on_selector("video[data-live]", SHOWN)


def until(page, what, told: str) -> None:
    end = time.monotonic() + PATIENCE_S
    while not what():
        assert time.monotonic() < end, told
        page.wait_for_timeout(100)


def test_upload_generate_watch_download(page, files, tmp_path: Path) -> None:
    shoot(page, "1_empty", tmp_path)
    fill(page, files)
    shoot(page, "2_filled", tmp_path)
    make(page)
    shoot(page, "3_before_the_first_picture", tmp_path)
    until(page, lambda: shown(page)[2] > 10, "no pictures are shown")
    shoot(page, "4_playing", tmp_path)
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
    assert values["request"]["sampling"]["num_steps"] == 2
    until(page, lambda: shown(page)[3], "it does not play to its end")
    seconds, width = shown(page)[:2]
    assert seconds == pytest.approx(6.0, abs=0.2)  # the sound may end an AAC frame later
    assert width == 32
    shoot(page, "5_done", tmp_path)


def test_record_with_camera_and_microphone(page, tmp_path: Path) -> None:
    for name in ("reference", "speech"):
        page.click(f"#av-{name} >> text=Record")
        page.wait_for_selector(f"#av-{name}[data-state=recording]")
        page.wait_for_timeout(2000)
        page.click(f"#av-{name} >> text=Stop recording")
        page.wait_for_selector(f"#av-{name}[data-state=given]")
    shoot(page, "11_recorded", tmp_path)
    page.check("#av-consent input")
    make(page)
    page.wait_for_selector(".av-links")
    with page.expect_download() as video:
        page.click("text=Download the video")
    video.value.save_as(tmp_path / "got.mp4")
    assert 25 <= len(read_video(tmp_path / "got.mp4")) <= 200  # as long as the beeps
    shoot(page, "12_recorded_and_made", tmp_path)


def test_stop_ends_the_job(page, site: Site, long_files, tmp_path: Path) -> None:
    before = site.jobs
    fill(page, long_files, steps=64)
    make(page)
    page.click("#av-stop")
    page.wait_for_selector("text=Stopped. Nothing of it was kept.")
    shoot(page, "6_stopped", tmp_path)
    until(page, lambda: site.jobs == before, "the job's folder stays")
    assert page.is_enabled("#av-make")


def test_a_closed_page_ends_its_job(new_page, site: Site, long_files) -> None:
    before, page, other = site.jobs, new_page(), new_page()
    fill(page, long_files, steps=64)
    make(page)
    assert site.jobs > before
    page.close()
    until(other, lambda: site.jobs == before, "the job goes on without anybody to see it")


def test_one_video_at_a_time_and_the_place_in_line(
    new_page, site: Site, files, long_files, tmp_path
) -> None:
    before, first, second = site.jobs, new_page(), new_page()
    fill(first, long_files, steps=64)
    fill(second, files)
    make(first)
    second.click("#av-make")
    second.wait_for_selector("text=1 video is made before yours")
    shoot(second, "7_in_line", tmp_path)
    assert len(site.jobs - before) == 1
    first.click("#av-stop")
    second.wait_for_selector(".av-links")
    assert len(site.jobs - before) == 1


def test_talk_with_the_microphone(page, files, tmp_path: Path) -> None:
    """Chromium's beeps, as they come; the place is left when the page is told to stop."""
    fill(page, files)
    page.uncheck("#av-consent input")
    page.click("#av-talk")
    page.wait_for_selector(f".av-failed >> text=Tick “{CONSENT}” first")
    page.check("#av-consent input")
    page.click("#av-talk")
    video = "#av-screen video[data-begun]"
    page.wait_for_selector(video)
    shown = "v => [v.videoWidth, v.currentTime, v.getVideoPlaybackQuality().totalVideoFrames]"
    until(page, lambda: page.eval_on_selector(video, shown)[1] > 2, "it does not play")
    until(page, lambda: page.eval_on_selector(video, shown)[2] > 10, "no pictures are shown")
    assert page.eval_on_selector(video, shown)[0] == 32
    health = f"{page.url}health"
    assert page.request.get(health).json()["conversations"] == 1
    line = "#av-typed input"
    page.fill(line, "We are 10.")
    page.press(line, "Enter")
    page.wait_for_selector(".av-failed >> text=English words, and not '10'")
    assert page.input_value(line) == "We are 10."
    page.fill(line, "Hello.")
    page.click("text=Say this")
    page.wait_for_selector("text=Talk, or type. Stop ends it.")
    assert page.input_value(line) == ""
    shoot(page, "13_talking", tmp_path)
    page.click("text=Hush")
    page.click("#av-stop")
    page.wait_for_selector("text=Stopped. Nothing of it was kept.")
    left = lambda: page.request.get(health).json()["conversations"] == 0  # noqa: E731
    until(page, left, "the place is not left")
    assert page.is_enabled("#av-talk")
    assert page.is_hidden("#av-typed")


def test_no_microphone_stays_on_that_was_asked_for_in_vain(page, files) -> None:
    """Stop, and a second click on Record, while the browser still asks whether it may be used."""
    fill(page, files)
    page.evaluate("""() => {
      window.tracks = [];
      const media = navigator.mediaDevices, real = media.getUserMedia.bind(media);
      media.getUserMedia = async how => {
        await new Promise(done => setTimeout(done, 500));
        const stream = await real(how);
        window.tracks.push(...stream.getTracks());
        return stream;
      };
    }""")
    asked = []
    page.on("request", lambda request: asked.append(request.url))
    on = lambda: page.evaluate("tracks.map(track => track.readyState === 'live')")  # noqa: E731
    page.click("#av-talk")
    page.click("#av-stop")
    until(page, lambda: on() == [False], "the microphone stays on")
    page.wait_for_timeout(300)
    assert not [url for url in asked if url.endswith("/live")]
    record = "#av-speech .av-record"
    page.click("#av-speech .av-clear")
    page.eval_on_selector(record, "button => { button.click(); button.click(); }")
    page.wait_for_selector(f"{record} >> text=Stop recording")
    page.wait_for_timeout(700)
    assert on() == [False, True]
    page.click(record)
    until(page, lambda: on() == [False, False], "the microphone stays on")
    page.wait_for_selector("#av-speech[data-state=given]")


def test_faults_are_told_on_the_page(page, site: Site, files, tmp_path: Path) -> None:
    def told(text: str) -> None:
        page.click("#av-make")
        page.wait_for_selector(f".av-failed >> text={text}")

    told("Add a clip of the person")
    (tmp_path / "big.mp4").write_bytes(bytes(9 * 2**20))
    page.set_input_files("#av-reference input[type=file]", str(tmp_path / "big.mp4"))
    page.wait_for_selector("text=big.mp4 has 9.0 MiB; at most 8 MiB are taken")
    shoot(page, "8_too_big", tmp_path)
    fill(page, files)
    page.uncheck("#av-consent input")
    told(f"Tick “{CONSENT}” first")
    page.check("#av-consent input")
    (tmp_path / "broken.wav").write_bytes(b"RIFF" + bytes(100))
    page.click("#av-speech button[aria-label=Clear]")
    page.set_input_files("#av-speech input[type=file]", str(tmp_path / "broken.wav"))
    page.wait_for_selector("#av-speech[data-state=given]")
    told("broken.wav")
    shoot(page, "9_fault", tmp_path)
    assert str(site.root) not in page.inner_text("body")
    assert "Traceback" not in page.inner_text("body")


@pytest.mark.faces
def test_a_clip_without_a_face(page, files, tmp_path: Path) -> None:
    with Mp4Writer(tmp_path / "wall.mp4", torch.zeros(640 * 9)) as writer:
        writer.write(torch.full((9, 3, 96, 128), 128, dtype=torch.uint8))
    give(page, tmp_path / "wall.mp4", files[1])
    page.check("#av-consent input")
    page.click("#av-make")
    page.wait_for_selector(".av-failed >> text=wall.mp4: no face")
    assert "send one that shows the face" in page.inner_text(".av-failed")  # what to do about it
    shoot(page, "10_no_face", tmp_path)


def test_a_drawn_person_fills_the_form(page, tmp_path: Path) -> None:
    page.click("#av-drawn")
    page.wait_for_selector("#av-reference[data-state=given]")
    length = "video => video.duration"
    until(page, lambda: page.eval_on_selector("#av-reference video", length) == 4.04, "no preview")


def test_a_typed_text_becomes_speech(page, tmp_path: Path) -> None:
    """And never a file of the server that it names."""
    secret = tmp_path / "secret.txt"
    secret.write_text("hello")
    for text, told in ((str(secret), "The text: "), ("Call 911.", "and not '911'")):
        page.fill("#av-script", text)
        page.click("#av-say")
        note = page.wait_for_selector(f"#av-speech .av-note:has-text({told!r})")
        assert "hello" not in note.inner_text()
    page.fill("#av-script", "Hello and welcome to our village.")
    page.click("#av-say")
    page.wait_for_selector("#av-speech[data-state=given]")
    length = "audio => audio.duration"
    until(page, lambda: 1 < page.eval_on_selector("#av-speech audio", length) < 5, "no speech")
    shoot(page, "12_typed", tmp_path)


def test_another_name_for_this_machine_is_refused(page, site: Site) -> None:
    answer = page.request.get(site.url, headers={"Host": "evil.example"})
    assert answer.status == 400
    assert page.request.get(f"{site.url}jobs/{'0' * 32}/avatar.mp4").status == 404
    assert page.request.get(f"{site.url}jobs/{'0' * 32}/live.m3u8").status == 404
