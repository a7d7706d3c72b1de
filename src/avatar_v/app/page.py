"""The page: a Gradio form around a studio. Its words while a job runs are view.py's.

Nothing here decides what is allowed (ask.py) or makes anything (studio.py). Every ValueError and
OSError of the library is a sentence on the page; anything else is a fault of ours, so its
traceback goes to the terminal and the page says where to look.
"""

import logging
import secrets
from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import gradio as gr
from gradio import themes

from avatar_v.app import view
from avatar_v.app.ask import (
    CAMERA,
    CONSENT,
    FRAMED,
    GUIDANCE,
    MAX_PROMPT,
    NEW_SCENE,
    REFERENCE_S,
    STEPS,
    Ask,
    page_words,
)
from avatar_v.app.drawn import draw_person
from avatar_v.app.studio import Progress, Studio, Waiting
from avatar_v.models.weights import Card

STATIC = Path(__file__).with_name("static")
CSS = (STATIC / "page.css").read_text(encoding="utf-8")
HEAD = f"<script>{(STATIC / 'player.js').read_text(encoding='utf-8')}</script>"
NUM_DRAWN = 1000  # persons that "a drawn person" chooses from
SCENE = "A woman in a green shirt in front of a window"
DRAWN_SCENE = "a person in a red hoodie talking in front of a purple curtain, light from the left"
"""What a scene may be, for any weights and for those that ship, which know the world's words."""
HONEST = "Where you show the video, say that it is generated."
LOG = logging.getLogger("avatar_v.app")


def theme() -> themes.Base:
    """Quiet colours and the fonts of the system: nothing is fetched from elsewhere."""
    return themes.Base(
        primary_hue=themes.colors.teal,
        neutral_hue=themes.colors.stone,
        radius_size=themes.sizes.radius_lg,
        font=["system-ui", "DejaVu Sans", "sans-serif"],
        font_mono=["ui-monospace", "DejaVu Sans Mono", "monospace"],
    ).set(
        body_background_fill="#faf9f7",
        body_text_color_subdued="#57534e",
        block_info_text_color="#57534e",
        input_placeholder_color="#78716c",
        button_secondary_background_fill="#ffffff",
        button_secondary_background_fill_hover="#f5f5f4",
        button_secondary_border_color="#d6d3d1",
        button_border_width="1px",
        color_accent="#0f766e",
        button_primary_background_fill="#0f766e",
        button_primary_background_fill_hover="#115e59",
        button_primary_text_color="#ffffff",
        block_border_width="1px",
        block_shadow="none",
    )


@dataclass(frozen=True)
class _Form:
    """What a user gives, on the left."""

    reference: gr.Video
    speech: gr.Audio
    drawn: gr.Button  # fills both
    picture: gr.Radio
    prompt: gr.Textbox
    new_scene: gr.Checkbox
    steps: gr.Slider
    guidance: gr.Slider
    seconds: gr.Slider
    seed: gr.Number


@dataclass(frozen=True)
class _Screen:
    """Where a user starts, stops and watches, on the right."""

    picture: gr.HTML
    consent: gr.Checkbox
    make: gr.Button
    stop: gr.Button
    status: gr.HTML


def build_page(studio: Studio) -> gr.Blocks:
    """The whole page, ready to be mounted."""
    pipeline = studio.pipeline
    side = pipeline.size
    names = [studio.weights, *([pipeline.refiner.name] if pipeline.refiner else [])]
    named = " and ".join(Path(name).name for name in names)
    where = f"Weights: {named}, {side} × {side} pixels"
    if studio.weights == "small":
        where += "; they know drawn people only, a filmed face comes out blurred"
    with gr.Blocks(title="avatar_v", analytics_enabled=False) as page:
        gr.HTML(view.INTRO)
        with gr.Row(equal_height=False):
            with gr.Column(scale=6):
                form = _form(pipeline.card, DRAWN_SCENE if studio.weights == "small" else SCENE)
            with gr.Column(scale=5, elem_id="av-right"):
                screen = _screen()
        gr.HTML(view.footer(studio.limits, where))
        _wire(studio, form, screen)
    return page.queue()


def _form(card: Card, scene: str) -> _Form:
    reference = gr.Video(
        label="The person: a few seconds, face to the camera",
        sources=["upload", "webcam"],
        include_audio=True,
        buttons=[],
        height=300,
        elem_id="av-reference",
    )
    speech = gr.Audio(
        label="The speech",
        sources=["upload", "microphone"],
        type="filepath",
        buttons=[],
        elem_id="av-speech",
    )
    drawn = gr.Button(
        "No files at hand? Take a drawn person and a made voice", size="sm", elem_id="av-drawn"
    )
    picture = gr.Radio([CAMERA, FRAMED], value=CAMERA, label="The clip is", elem_id="av-picture")
    prompt = gr.Textbox(
        label="The scene, in words (optional)",
        placeholder=scene,
        max_length=MAX_PROMPT,
        elem_id="av-prompt",
    )
    new_scene = gr.Checkbox(
        label=NEW_SCENE,
        info="Else the video begins with a frame of the clip, and stays there"
        if card.reference
        else "Without effect: these weights know a person by one picture",
        interactive=card.reference,
        elem_id="av-new-scene",
    )
    with gr.Accordion("Options", open=False, elem_id="av-options"):
        steps = gr.Slider(*STEPS, value=24, step=1, label="Steps", info="More is finer and slower")
        guidance = gr.Slider(
            *GUIDANCE,
            value=card.guidance_audio,
            step=0.1,
            label="Strength of the sound",
            info="How strongly the sound drives the mouth; 1 is plain",
        )
        seconds = gr.Slider(
            *REFERENCE_S,
            value=16,
            step=1,
            label="Seconds of reference",
            info="How much of the clip is read; 0: one picture"
            if card.reference
            else "Without effect: these weights read one picture of the person",
            interactive=card.reference,
        )
        seed = gr.Number(
            value=0, precision=0, label="Seed", info="The same seed gives the same video"
        )
    return _Form(
        reference, speech, drawn, picture, prompt, new_scene, steps, guidance, seconds, seed
    )


def _screen() -> _Screen:
    picture = gr.HTML(view.EMPTY)
    consent = gr.Checkbox(label=CONSENT, info=HONEST, elem_id="av-consent")
    with gr.Row():
        make = gr.Button("Generate", variant="primary", elem_id="av-make")
        stop = gr.Button("Stop", interactive=False, elem_id="av-stop")
    return _Screen(picture, consent, make, stop, gr.HTML(view.IDLE))


def _wire(studio: Studio, form: _Form, screen: _Screen) -> None:
    """What the buttons do."""
    shown = [screen.picture, screen.status, screen.make, screen.stop]
    asked = [form.reference, form.speech, screen.consent, form.prompt, form.new_scene, form.picture]
    asked += [form.steps, form.guidance, form.seconds, form.seed]  # the order of Ask
    quietly: dict[str, Any] = {"show_progress": "hidden", "api_visibility": "private"}

    def begin():
        return view.EMPTY, view.reading(), *_buttons(busy=True)

    def run(*values) -> Iterator[tuple]:
        yield from running(studio, Ask(*values))

    def halt():
        return view.EMPTY, view.stopped(), *_buttons(busy=False)

    def refuse():  # by Gradio, before the job: a value outside its slider
        return view.EMPTY, view.failed(view.REFUSED), *_buttons(busy=False)

    def draw() -> tuple[str, str, str]:
        folder = studio.uploads / secrets.token_hex(16)
        clip, speech = draw_person(folder, secrets.randbelow(NUM_DRAWN))
        return str(clip), str(speech), FRAMED

    made = screen.make.click(begin, outputs=shown, queue=False, **quietly).then(
        run, inputs=asked, outputs=shown, concurrency_limit=None, **quietly
    )  # no limit here: the studio's own line knows who is before whom
    made.failure(refuse, outputs=shown, queue=False, **quietly)
    screen.stop.click(halt, outputs=shown, cancels=[made], queue=False, **quietly)
    for new in (form.reference.upload, form.reference.stop_recording):  # no drawn person any more
        new(lambda: CAMERA, outputs=form.picture, queue=False, **quietly)
    drawn = [form.reference, form.speech, form.picture]
    form.drawn.click(draw, outputs=drawn, concurrency_limit=1, **quietly)


def running(studio: Studio, ask: Ask) -> Iterator[tuple]:
    """What the screen, the status and the two buttons show, from the first check to the end."""
    try:
        with closing(studio.make(ask)) as job:
            for state in job:
                yield _seen(state)
    except (ValueError, OSError) as error:
        text = page_words(str(error) or type(error).__name__, ask.reference, ask.speech)
        yield view.EMPTY, view.failed(text), *_buttons(busy=False)
    except Exception:
        LOG.exception("a job failed")
        text = "Something went wrong in the program; the terminal it runs in says what."
        yield view.EMPTY, view.failed(text), *_buttons(busy=False)


def _seen(state: Waiting | Progress) -> tuple:
    if isinstance(state, Waiting):
        return view.EMPTY, view.waiting(state), *_buttons(busy=True)
    if state.record is not None:
        return gr.skip(), view.done(state), *_buttons(busy=False)
    screen = gr.skip() if state.num_frames else view.player(state)
    return screen, view.working(state), *_buttons(busy=True)


def _buttons(*, busy: bool) -> tuple[gr.Button, gr.Button]:
    return gr.Button(interactive=not busy), gr.Button(interactive=busy)
