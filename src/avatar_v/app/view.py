"""What the page says while a job runs: pieces of HTML, and nothing of Gradio in them."""

from html import escape

from avatar_v.app.ask import Limits
from avatar_v.app.studio import LIVE, RECORD, VIDEO, Progress
from avatar_v.types import FRAME_RATE_HZ

INTRO = """<header class="av-intro"><h1>A face, a voice, a speaking video</h1>
<p>Give a short clip of a person and some speech. The person speaks it, and you watch while the
video is being made.</p></header>"""

CONSENT_NOTE = """<p class="av-note"><b>Only your own face, or with permission.</b> A video of
somebody speaking words they never said can do harm. Use people who know about it and agree, and
say that a video is generated where you show it.</p>"""

EMPTY = """<div class="av-screen av-empty"><p>Your video appears here, while it is being made.</p>
</div>"""


REFUSED = "This could not be started: a value is outside its range, or too many are waiting."


def footer(limits: Limits, where: str) -> str:
    """What the page takes and what becomes of it; ``where`` says what runs the model."""
    return (
        f'<footer class="av-footer"><p>Files up to {limits.upload_mb:g} MB, clips up to '
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
        f'{LIVE}" aria-label="The generated video"></video></div>'
    )


def waiting() -> str:
    return _status("Waiting for its turn …", 0.0)


def reading() -> str:
    return _status("Reading your files …", 0.0)


def working(progress: Progress) -> str:
    """How far it is, and whatever is odd about the files."""
    if not progress.num_frames:
        said = f"Making {_seconds(progress.total)} of video: the first pictures are on their way …"
    else:
        speed = progress.num_frames / max(progress.elapsed_s, 1e-9)
        said = (
            f"{_seconds(progress.num_frames)} of {_seconds(progress.total)} made, "
            f"{speed:.0f} pictures a second"
        )
    return _status(said, progress.num_frames / progress.total, progress.warnings)


def done(progress: Progress) -> str:
    """The downloads."""
    record = progress.record
    assert record is not None
    said = (
        f"{_seconds(record.num_frames)} made in {record.timing.total_s:.1f} s; the first pictures "
        f"came after {record.timing.first_frame_s:.1f} s"
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


def _status(said: str, share: float, warnings: tuple[str, ...] = ()) -> str:
    notes = "".join(f"<li>{escape(text)}</li>" for text in warnings)
    return (
        f'<div class="av-status" role="status"><p>{escape(said)}</p>'
        f'<progress max="1" value="{share:.3f}"></progress>'
        + (f"<ul>{notes}</ul>" if notes else "")
        + "</div>"
    )


def _seconds(num_frames: int) -> str:
    return f"{num_frames / FRAME_RATE_HZ:.1f} s"


def _span(seconds: float) -> str:
    return f"{seconds:g} s" if seconds < 120 else f"{seconds / 60:g} minutes"
