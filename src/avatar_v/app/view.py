"""What the page says while a job runs: pieces of HTML, and nothing of Gradio in them."""

import math
from html import escape

from avatar_v.app.ask import Limits
from avatar_v.app.studio import LIVE, RECORD, VIDEO, Progress, Waiting
from avatar_v.types import FRAME_RATE_HZ

INTRO = """<header class="av-intro"><h1>A face, a voice, a speaking video</h1>
<p>Give a short clip of a person and some speech. The person speaks it, and you watch while the
video is being made.</p></header>"""

EMPTY = """<div class="av-screen av-empty"><p>Your video appears here while it is being made.</p>
</div>"""

IDLE = '<div class="av-status"></div>'
REFUSED = "This could not be started: a value is outside its range."
UNPLAYABLE = "This browser cannot play the video while it grows; download it when it is done."
NBSP = "\N{NO-BREAK SPACE}"


def footer(limits: Limits, where: str) -> str:
    """What the page takes and what becomes of it; ``where`` says what runs the model."""
    return (
        f'<footer class="av-footer"><p>Files up to {limits.upload_mib:g} MiB, clips up to '
        f"{_span(limits.reference_s)}, speech up to {_span(limits.speech_s)}. One video is made at "
        "a time; others wait. What you send and what is made stays on the machine that runs this "
        f"page and is removed {_span(limits.keep_s)} after its last use, or when the page's "
        f"program ends.</p><p>{escape(where)}. There is no text-to-speech: the voice is yours to "
        "bring.</p></footer>"
    )


def player(progress: Progress) -> str:
    """The screen that follows the growing video (static/player.js)."""
    return (
        f'<div class="av-screen"><video controls playsinline data-live="jobs/{progress.token}/'
        f'{LIVE}" aria-label="The generated video"></video>'
        '<p class="av-soon">The first pictures are on their way …</p>'
        f'<p class="av-unplayable">{UNPLAYABLE}</p></div>'
    )


def waiting(turn: Waiting) -> str:
    before = "1 video is" if turn.ahead == 1 else f"{turn.ahead} videos are"
    return _status(f"Waiting in line: {before} made before yours. Stop leaves the line.", None)


def reading() -> str:
    return _status("Reading your files and looking for the face …", None)


def working(progress: Progress) -> str:
    """How far it is, and whatever is odd about the files."""
    if not progress.num_frames:
        return _status(f"Making {_seconds(progress.total)} of video …", None, progress.warnings)
    left_s = progress.elapsed_s * (progress.total / progress.num_frames - 1)
    said = f"{_seconds(progress.num_frames)} of {_seconds(progress.total)} made"
    if progress.num_frames < progress.total:
        said += f", about {_span(float(math.ceil(left_s)))} to go"
    return _status(said, progress.num_frames / progress.total, progress.warnings)


def done(progress: Progress) -> str:
    """The downloads."""
    record = progress.record
    assert record is not None
    timing = record.timing
    said = (
        f"{_seconds(record.num_frames)} made in {timing.total_s:.1f}{NBSP}s; "
        f"the first pictures came after {timing.first_frame_s:.1f}{NBSP}s"
    )
    folder = f"jobs/{progress.token}"
    links = (
        f'<p class="av-links"><a class="av-main" href="{folder}/{VIDEO}" download="{VIDEO}">'
        f'Download the video</a><a href="{folder}/{RECORD}" download="{RECORD}" title="Settings, '
        'seed, weights and timing: enough to make it again">and its record (.json)</a></p>'
    )
    return _status(said, 1.0, progress.warnings) + links


def stopped() -> str:
    return '<div class="av-status" role="status"><p>Stopped. Nothing of it was kept.</p></div>'


def failed(message: str) -> str:
    return f'<div class="av-status av-failed" role="alert"><p>{escape(message)}</p></div>'


def _status(said: str, share: float | None, warnings: tuple[str, ...] = ()) -> str:
    """A line, a bar (None: nobody knows how far) and notes."""
    notes = "".join(f"<li>{escape(text)}</li>" for text in warnings)
    value = "" if share is None else f' value="{share:.3f}"'
    return (
        f'<div class="av-status" role="status"><p>{escape(said)}</p>'
        f'<progress max="1"{value}></progress>' + (f"<ul>{notes}</ul>" if notes else "") + "</div>"
    )


def _seconds(num_frames: int) -> str:
    return f"{num_frames / FRAME_RATE_HZ:.1f}{NBSP}s"


def _span(seconds: float) -> str:
    return f"{seconds:g}{NBSP}s" if seconds < 120 else f"{round(seconds / 60, 1):g}{NBSP}minutes"
