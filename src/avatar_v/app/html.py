"""The page itself, and what it says while a job runs: HTML with every foreign word escaped."""

import math
from collections.abc import Mapping
from html import escape
from pathlib import Path
from string import Template
from typing import Any

from avatar_v.app.form import GUIDANCE, MAX_SEED, MAX_TEXT, NEW_SCENE, REFERENCE_S, STEPS
from avatar_v.engines.voices import is_drawn
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.request.resolve import num_steps_of
from avatar_v.serving.job_tables import Job
from avatar_v.serving.limits import CONSENT, MAX_PROMPT, Limits
from avatar_v.serving.place import LIVE, RECORD, VIDEO
from avatar_v.weights.card import SHIPPED, Card

STATIC = Path(__file__).with_name("static")
STATIC_TYPES = {
    name: "text/css" if name.endswith(".css") else "text/javascript"
    for name in ("page.css", "page.js", "files.js", "player.js", "talk.js", "voice.js")
}
EMPTY = """<div class="av-screen av-empty"><p>Your video appears here while it is being made.</p>
</div>"""
SCENE = "A woman in a green shirt in front of a window"
DRAWN_SCENE = "a person in a red hoodie talking in front of a purple curtain, light from the left"
"""What a scene may be, for any weights and for those that ship, which know the world's words."""
UNPLAYABLE = "This browser cannot play the video while it grows; download it when it is done."
NBSP = "\N{NO-BREAK SPACE}"


def page(
    pipelines: Mapping[str, AvatarPipeline], limits: Limits, voice: str, *, is_own: bool = True
) -> str:
    """The whole page for sets of weights, the first of which its words are about; its videos are
    its own, or a server's."""
    pipeline = next(iter(pipelines.values()))
    names = [pipeline.name, *([pipeline.refiner.name] if pipeline.refiner else [])]
    named = " and ".join(Path(name).name for name in names)
    where = f"Weights: {named}, {str(pipeline.sizes().out).replace('x', '×')} pixels"
    if people := pipeline.card.can.people:
        where += f"; trained on {people}"
    reads = pipeline.card.can.reference
    words: dict[str, Any] = {
        "scene": DRAWN_SCENE if pipeline.name in SHIPPED else SCENE,
        "new_scene": NEW_SCENE,
        "new_scene_info": "Else the video begins with a frame of the clip, and stays there"
        if reads
        else "Without effect: these weights know a person by one picture",
        "seconds_info": "How much of the clip is read; 0: one picture"
        if reads
        else "Without effect: these weights read one picture of the person",
        "disabled": "" if reads else "disabled",
        "consent": CONSENT,
        "max_prompt": MAX_PROMPT,
        "max_text": MAX_TEXT,
        "type_it": "Or type what is to be said" + (", in English" if is_drawn(voice) else ""),
        "max_seed": MAX_SEED,
        "max_mib": f"{limits.upload_mib:g}",
        "steps": num_steps_of(None, pipeline.card),
        "guidance": f"{pipeline.card.guidance_audio:g}",
    }
    for name, (low, high) in {"steps": STEPS, "guide": GUIDANCE, "read": REFERENCE_S}.items():
        words |= {f"{name}_low": f"{low:g}", f"{name}_high": f"{high:g}"}
    words = {name: escape(str(word)) for name, word in words.items()}
    words["weights"] = (
        choice({name: one.card for name, one in pipelines.items()}) if len(pipelines) > 1 else ""
    )
    words |= {"empty": EMPTY, "stopped": stopped(), "footer": footer(limits, where, is_own=is_own)}
    return Template(static_file("page.html")).substitute(words)


def choice(cards: Mapping[str, Card]) -> str:
    """The field that chooses among sets of weights with ``cards``, each with what its sliders then
    say (static/page.js)."""
    options = "".join(
        f'<option value="{escape(name)}" data-steps="{num_steps_of(None, card)}" '
        f'data-guidance="{card.guidance_audio:g}">{escape(name)}</option>'
        for name, card in cards.items()
    )
    return (
        f'<label class="av-field">Weights\n<select id="av-weights">{options}</select></label>'
        '<p class="av-info">All are loaded; Talk takes the first</p>'
    )


def static_file(name: str) -> str:
    return (STATIC / name).read_text(encoding="utf-8")


def footer(limits: Limits, where: str, *, is_own: bool = True) -> str:
    """What the page takes and what becomes of it; ``where`` says what runs the model."""
    kept = (
        "One video is made at a time; others wait. What you send and what is made stays on the "
        f"machine that runs this page and is removed {_span(limits.keep_s)} after its last use, or "
        "when the page's program ends."
        if is_own
        else "A server makes the videos, and keeps what you send and what is made for as long as "
        "it is set to."
    )
    return (
        f'<footer class="av-footer"><p>Files up to {limits.upload_mib:g} MiB, clips up to '
        f"{_span(limits.reference_s)}, speech up to {_span(limits.speech_s)}. {kept}</p>"
        f"<p>{escape(where)}.</p></footer>"
    )


def player(id_: str) -> str:
    """The screen that follows the growing video (static/player.js)."""
    return (
        f'<div class="av-screen"><video controls playsinline data-live="jobs/{id_}/{LIVE}" '
        'aria-label="The generated video"></video>'
        '<p class="av-soon">The first pictures are on their way …</p>'
        f'<p class="av-unplayable">{UNPLAYABLE}</p></div>'
    )


def waiting(ahead: int) -> dict[str, Any]:
    """The page for a job behind so many others; 0: somebody talks."""
    if ahead == 0:
        status = _status("Waiting until nobody talks any more. Stop leaves the line.", None)
    else:
        before = "1 video is" if ahead == 1 else f"{ahead} videos are"
        words = f"Waiting in line: {before} made before yours. Stop leaves the line."
        status = _status(words, None)
    return {"screen": EMPTY, "status": status, "over": False}


def working(job: Job, elapsed_s: float, rate: int) -> dict[str, Any]:
    """How far it is, and whatever is odd about the files; the screen is as it was."""
    if not job.num_frames:
        words, share = f"Making {_seconds(job.total, rate)} of video …", None
    else:
        left_s = elapsed_s * (job.total / job.num_frames - 1)
        words = f"{_seconds(job.num_frames, rate)} of {_seconds(job.total, rate)} made"
        if job.num_frames < job.total:
            words += f", about {_span(float(math.ceil(left_s)))} to go"
        share = job.num_frames / job.total
    return {"screen": None, "status": _status(words, share, job.warnings), "over": False}


def done(job: Job, timing: Mapping[str, float], rate: int) -> dict[str, Any]:
    """The downloads, with the ``timing`` of the record."""
    said = (
        f"{_seconds(job.num_frames, rate)} made in {timing['total_s']:.1f}{NBSP}s; "
        f"the first pictures came after {timing['first_frame_s']:.1f}{NBSP}s"
    )
    folder = f"jobs/{job.id}"
    links = (
        f'<p class="av-links"><a class="av-main" href="{folder}/{VIDEO}" download="{VIDEO}">'
        f'Download the video</a><a href="{folder}/{RECORD}" download="{RECORD}" title="Settings, '
        'seed, weights and timing: enough to make it again">and its record (.json)</a></p>'
    )
    status = _status(said, 1.0, job.warnings) + links
    return {"screen": None, "status": status, "over": True}


def failed(message: str) -> dict[str, Any]:
    """The page for a fault."""
    status = f'<div class="av-status av-failed" role="alert"><p>{escape(message)}</p></div>'
    return {"screen": EMPTY, "status": status, "over": True}


def stopped() -> str:
    return '<div class="av-status" role="status"><p>Stopped. Nothing of it was kept.</p></div>'


def _status(said: str, share: float | None, warnings: tuple[str, ...] = ()) -> str:
    """A line, a bar (None: nobody knows how far) and notes."""
    notes = "".join(f"<li>{escape(text)}</li>" for text in warnings)
    value = "" if share is None else f' value="{share:.3f}"'
    return (
        f'<div class="av-status" role="status"><p>{escape(said)}</p>'
        f'<progress max="1"{value}></progress>' + (f"<ul>{notes}</ul>" if notes else "") + "</div>"
    )


def _seconds(num_frames: int, frame_rate_hz: int) -> str:
    return f"{num_frames / frame_rate_hz:.1f}{NBSP}s"


def _span(seconds: float) -> str:
    return f"{seconds:g}{NBSP}s" if seconds < 120 else f"{round(seconds / 60, 1):g}{NBSP}minutes"
