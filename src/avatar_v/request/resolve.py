"""The part of a request that its weights decide: picture size, chunk length, guidance, inputs.

Known from the card alone (weights/card.Card), before any network is loaded.
"""

import dataclasses
import math
from dataclasses import dataclass

from avatar_v.base.video_format import VideoFormat
from avatar_v.models.audio import frames_heard
from avatar_v.models.config import CAUSAL_FIRST, Streaming
from avatar_v.models.refiner import CONTEXT_LATENTS, FACTOR
from avatar_v.parallel.timestep import steps_of_ranks
from avatar_v.request.request import Request
from avatar_v.sampling.blocks import check_chunks
from avatar_v.sampling.chunks import OVERLAP
from avatar_v.sampling.settings import Settings
from avatar_v.types import TEMPORAL_FACTOR, num_frames
from avatar_v.weights.card import DRAWN_PEOPLE, Card
from avatar_v.weights.presets import format_of, preset

NUM_STEPS, FULL_STEPS = 4, 24
"""Denoising steps of weights that are no few-step student: at small size 24 measure the same as 4,
at full size, where nobody has measured, they are those of the report (Avatar V §4.2)."""


@dataclass(frozen=True)
class InputSpec:
    """The inputs that some weights take: the picture always, more if they were trained to."""

    video: VideoFormat  # of the pictures that are read
    reference: bool  # the whole reference video
    motion: bool
    faces: bool = False  # close-ups of the face beside the reference
    drawn: bool = False  # of drawn people: they read motion as the meter of drawn faces does


@dataclass(frozen=True)
class Sizes:
    """The pictures of one request on their way."""

    base: VideoFormat  # of the generator
    larger: VideoFormat  # what a refiner makes of them; without one the same
    out: VideoFormat  # what is delivered, from the middle of those


def sizes_of(size: str | None, card: Card, refiner: Card | None = None) -> Sizes:
    """The ``size`` that is asked for, or that the weights were trained on; with a ``refiner`` as
    many times larger as its factor is. ValueError as `fitted`, and for a preset that there is
    not."""
    sizes, factor = format_of(card), factor_of(refiner)
    if size is not None:
        return fitted(sizes.video.sized(*VideoFormat.of(size).size), sizes.token, factor)
    larger = sizes.video.scaled(factor)
    return Sizes(sizes.video, larger, larger.sized(*(side // 2 * 2 for side in larger.size)))


def fitted(out: VideoFormat, token: int, factor: float = 1.0) -> Sizes:
    """The pictures on the way to ``out``: with a refiner of this ``factor`` those of the generator
    are the smallest of whole tokens that hold it. ValueError, with the nearest sizes, where that
    has to be whole tokens itself, or has odd sides, which no mp4 holds."""
    out.require_multiples(token if factor == 1 else 2)
    least = out.sized(*(math.ceil(side / factor) for side in out.size))
    base = least.covering(token)
    return Sizes(base, base.scaled(factor), out)


def factor_of(refiner: Card | None) -> float:
    """How many times larger the pictures of a refiner are, each way; 1 where there is none."""
    return 1.0 if refiner is None else refiner.can.factor or FACTOR


def format_warnings(
    card: Card, refiner: Card | None = None, size: str | None = None
) -> tuple[str, ...]:
    """Sizes that weights with this card, and a refiner behind them, may not have been trained for,
    where pictures of ``size`` are asked for. ValueError as `sizes_of`."""
    sizes, can = format_of(card), card.can
    unsaid = {
        f"the size of their pictures (taken: {sizes.video} pixels)": can.video,
        f"the length of their windows (taken: {sizes.chunk_latents} latents)": can.window_latents,
        f"the shift of their times (taken: {sizes.shift:g})": can.shift,
    }
    missing = [what for what, value in unsaid.items() if value is None]
    warnings: list[str] = []
    if missing:
        warnings.append(
            f"the card of these weights does not say {', '.join(missing)}: as preset "
            f"{card.preset} has it, which may not be what they were trained with"
        )
    way = sizes_of(size, card, refiner)
    if way.base != sizes.video:
        warnings.append(
            f"these weights know pictures of {sizes.video} pixels, and were asked for {way.base}"
        )
    known = None if refiner is None else refiner.can.video
    if known is not None and known.frame_rate_hz != sizes.video.frame_rate_hz:
        raise ValueError(
            f"the refiner knows {known.frame_rate_hz} frames a second, and these weights make "
            f"{sizes.video.frame_rate_hz}"
        )
    if known is not None and known.size != way.larger.size:
        warnings.append(
            f"the refiner was trained on pictures of {known} pixels, and makes {way.larger} of "
            f"these weights' {way.base}"
        )
    return tuple(warnings)


def sound_warnings(*, has_audio: bool) -> tuple[str, ...]:
    """The warning that these weights take no audio."""
    if has_audio:
        return ()
    return (
        "these weights know no sound (stage 1), so the video does not follow the speech: "
        "recipes/2_a2v.yaml teaches it",
    )


def motion_warnings(card: Card, *, makes_motion: bool) -> tuple[str, ...]:
    """What weights lack that were trained to follow a motion and have no network to make it."""
    if makes_motion or not card.can.motion:
        return ()
    return (
        "these weights follow a motion and have no motion network to make it, so the person's way "
        "of moving is lost: recipes/3_motion.yaml trains one",
    )


def input_spec(request: Request, card: Card, refiner: Card | None = None) -> InputSpec:
    """The inputs of ``request`` that weights with this card take, with a refiner behind them in
    larger pictures. ValueError as `sizes_of`."""
    can, drawn = card.can, card.can.people == DRAWN_PEOPLE
    video = sizes_of(request.sampling.size, card, refiner).larger
    return InputSpec(video, can.reference, can.motion, can.faces, drawn)


def check_fits(card: Card, request: Request, num_ranks: int = 1) -> None:
    """ValueError for what weights with this card cannot do: overshoot, where steps go to x_0 and
    back anyway; of causal weights chunks that are no whole blocks, more ranks than steps, a sink
    replaced by nothing, and to go on with a run, since their keys and values are in no file. Needs
    no file of the request."""
    asked = request.sampling
    if card.can.causal_block is not None:
        check_chunks(card.can.causal_block, resolve_chunk_latents(request, card))
        steps_of_ranks(num_steps_of(asked.num_steps, card), num_ranks)
        if request.output.resume:
            raise ValueError("--resume: a video of causal weights is made in one run")
        if request.person.listen is not None and num_ranks > 1:
            raise ValueError(f"--devices {num_ranks}: with causal weights one device listens")
        if streaming_of(request, card).history == "clean" and num_ranks > 1:
            raise ValueError(
                f"--devices {num_ranks}: with a clean history a block waits for the one before, so "
                "one device makes all of its steps"
            )
        anchor = card.can.anchor if asked.anchor is None else asked.anchor
        if streaming_of(request, card).sink == "replaced" and not anchor:
            raise ValueError(
                "a sink that is replaced is replaced by the anchor, and there is none: pass "
                "--anchor and a reference video, or --sink beside"
            )
    elif (asked.sink, asked.history, asked.rolling) != (None, None, True):
        raise ValueError("--sink, --history and --no-rolling are for causal weights")
    overshoot, trained = asked.overshoot, card.can.num_steps
    if trained is not None and overshoot > 0:
        raise ValueError(
            f"--overshoot {overshoot:g} is for weights of many steps; these are a student of "
            f"{trained}, whose steps add fresh noise by themselves"
        )


def resolved(request: Request, card: Card, *, has_clips: bool, num_ranks: int = 1) -> Request:
    """``request`` with the values that it left to the weights: the number of steps, the guidance of
    audio and motion, and whether the first frame becomes an anchor.

    ``has_clips``: a reference video is read. ValueError as `check_fits`."""
    asked, sink = request.sampling, request.sampling.sink
    anchor, audio, motion = asked.anchor, asked.guidance_audio, asked.guidance_motion
    if card.can.causal_block is not None and sink is None and not has_clips:
        sink = "beside"  # nothing is there that an anchor could replace
    request = request.changed(
        anchor=card.can.anchor and has_clips if anchor is None else anchor,
        sink=sink,
        guidance_audio=card.guidance_audio if audio is None else audio,
        guidance_motion=card.guidance_motion if motion is None else motion,
        num_steps=num_steps_of(asked.num_steps, card),
        chunk_latents=resolve_chunk_latents(request, card),
    )
    check_fits(card, request, num_ranks)
    return request


def streaming_of(request: Request, card: Card) -> Streaming:
    """What causal weights see of the past: as they were trained, unless the request says more."""
    asked, trained = request.sampling, (card.can.streaming or Streaming()).without_noise
    return dataclasses.replace(
        trained,
        sink=asked.sink or trained.sink,
        history=asked.history or trained.history,
        rolling=asked.rolling and trained.rolling,
    )


def resolve_chunk_latents(request: Request, card: Card) -> int:
    """Latents of a chunk: what was asked for, or the windows of training; of causal weights two
    blocks, so that a voice is followed block by block."""
    if request.sampling.chunk_latents is None and card.can.causal_block is not None:
        return CAUSAL_FIRST + card.can.causal_block
    return request.sampling.chunk_latents or format_of(card).chunk_latents


@dataclass(frozen=True)
class LiveDelay:
    """Seconds of a live sound that its pictures wait for. The time of making them is not in it."""

    first_s: float  # from the first sample
    later_s: float  # from a sample to its own picture: its chunk has to be heard before

    def described(self) -> str:
        return (
            f"live: the first picture waits for {self.first_s:.2f} s of sound; later ones come "
            f"{self.later_s:.2f} s behind theirs; to both is added what a chunk takes to be made"
        )


def live_delay(request: Request, card: Card, refiner: Card | None = None) -> LiveDelay:
    """Of weights with this card, and a ``refiner`` behind them: their chunk, what their encoder of
    sound and their motion look ahead, and the two frames that lips look ahead."""
    length = resolve_chunk_latents(request, card)
    cards = [card] if refiner is None else [card, refiner]
    ahead = max(each.can.audio_look_ahead or 0 for each in cards) + request.sampling.look_ahead
    first = frames_heard(length + ahead)
    later = first - num_frames(OVERLAP)  # the overlap has been shown
    if refiner is not None:  # which holds back what the next chunk shows it
        later += TEMPORAL_FACTOR * CONTEXT_LATENTS
    rate = format_of(card).video.frame_rate_hz
    return LiveDelay(first / rate, later / rate)


def num_steps_of(asked: int | None, card: Card) -> int:
    """Denoising steps where ``asked`` leaves them to the weights."""
    is_full = preset(card.preset).embedded is None
    return asked or card.can.num_steps or (FULL_STEPS if is_full else NUM_STEPS)


def sampling_warnings(request: Request, card: Card) -> tuple[str, ...]:
    """Values of a `resolved` request that the weights were not trained for."""
    warnings: list[str] = []
    asked, trained = request.sampling.num_steps, card.can.num_steps
    if trained is not None and asked not in (1, trained):  # noise to x_0 is a step of every student
        warnings.append(
            f"these weights are a student of {trained} steps and were asked for {asked}: they know "
            "other times of denoising"
        )
    length, window = resolve_chunk_latents(request, card), format_of(card).chunk_latents
    if (ahead := request.sampling.look_ahead) and length + ahead > window:
        warnings.append(
            f"these weights know windows of {window} latents, and motion was asked for over "
            f"{length} and {ahead} ahead of them"
        )
    if length != window and card.can.causal_block is None:
        warnings.append(
            f"these weights know windows of {window} latents, and were asked for chunks of {length}"
        )
    streaming, trained = streaming_of(request, card), card.can.streaming or Streaming()
    if request.sampling.anchor and streaming.sink != trained.sink:
        warnings.append(
            f"these weights know a sink that is {trained.sink}, and were asked for one that is "
            f"{streaming.sink}"
        )
    if streaming.history != trained.history:
        warnings.append(
            f"these weights know a history that is {trained.history}, and were asked for one that "
            f"is {streaming.history}"
        )
    return tuple(warnings)


def sampler_settings(request: Request, card: Card, *, bf16: bool) -> Settings:
    """The sampler's settings for a `resolved` request."""
    asked, sizes = request.sampling, format_of(card)
    assert asked.num_steps is not None
    assert asked.guidance_audio is not None
    assert asked.guidance_motion is not None
    return Settings(
        chunk_latents=resolve_chunk_latents(request, card),
        window_latents=sizes.chunk_latents,
        look_ahead=asked.look_ahead,
        shift=sizes.shift,
        motion_steps=card.can.motion_steps,
        renoise=card.can.num_steps is not None,
        num_steps=asked.num_steps,
        guidance_text=asked.guidance_text,
        guidance_audio=asked.guidance_audio,
        guidance_reference=asked.guidance_reference,
        overshoot=asked.overshoot,
        from_prompt=request.person.from_prompt,
        guidance_motion=asked.guidance_motion,
        anchor=bool(asked.anchor),
        blend=asked.blend,
        interpolate=asked.interpolate,
        seed=asked.seed,
        bf16=bf16,
        streaming=streaming_of(request, card),
    )
