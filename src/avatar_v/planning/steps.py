"""Which passes a batch of each stage makes, as its `iterate` does: the longest window at the
largest picture, with the longest reference for the memory and one of mean length for the time.

Not counted, since each is small at full size: losses, discriminators, heads (but the passes whose
features they read), close-ups of the face, the anchor. Perceptual losses and rewards of pictures,
which decode video, are not counted either, and a plan says so where they are on.
"""

import math
from collections.abc import Callable
from dataclasses import dataclass, replace

from avatar_v.models.reference import NUM_STILLS
from avatar_v.objectives.a2v import A2V
from avatar_v.objectives.align_dpo import AlignDPO
from avatar_v.objectives.align_grpo import AlignGRPO
from avatar_v.objectives.align_video_dpo import AlignVideoDPO
from avatar_v.objectives.causal_forcing import CausalForcing
from avatar_v.objectives.distill_cfg import DistillCFG
from avatar_v.objectives.distill_dmd import DistillDMD
from avatar_v.objectives.distill_motion import DistillMotion
from avatar_v.objectives.motion_prior import MotionPrior
from avatar_v.objectives.refiner import Refiner
from avatar_v.objectives.refiner_adversarial import AdversarialRefiner
from avatar_v.objectives.self_forcing import SelfForcing
from avatar_v.objectives.sft import SFT
from avatar_v.objectives.t2v import T2V
from avatar_v.planning.measure import Number
from avatar_v.planning.passes import MotionPass, Pass
from avatar_v.sampling.guidance import NAMES, streams
from avatar_v.shards.pairs import NUM_PORTRAITS
from avatar_v.training.continuation import CONTEXT_LATENTS
from avatar_v.training.engine import Engine, subject_of
from avatar_v.training.policies import MotionPolicy, VideoPolicy
from avatar_v.training.video import VideoSubject
from avatar_v.types import num_latents
from avatar_v.weights.presets import preset

GUIDED = 4
"""Passes of a guided velocity: everything, and without sound, words or the person."""


@dataclass(frozen=True)
class Clips:
    """What a rank reads in a batch."""

    batch_size: int
    num_frames: int
    size: int  # pixels of the square picture

    @property
    def latents(self) -> int:
        return num_latents(self.num_frames)


@dataclass(frozen=True)
class Repeated:
    """A pass of one of the stage's networks, and how often a batch makes it on average."""

    network: str  # attribute of the stage
    of: Pass | MotionPass
    times: Number = 1


def passes_of(stage: Engine, clips: Clips, window: int, *, longest: bool) -> list[Repeated]:
    """The passes of a batch. ValueError for a stage that this file does not know."""
    found = _PASSES.get(type(stage))
    if found is None:
        raise ValueError(f"no plan for a stage {type(stage).__name__}")
    cells = clips.size // stage.conditioner.vae.spatial_factor
    tokens = preset(subject_of(stage).models.preset).text_tokens
    plain = Pass(clips.batch_size, window, (cells, cells), text_tokens=tokens)
    return found(stage, clips, plain, longest)


def mean_run(least: int, most: int) -> float:
    """The mean length of a run that training/personality.draw_run draws."""
    low, steps = min(least, most), 1000
    ratio = (most + 1) / low
    drawn = (min(int(low * ratio ** ((i + 0.5) / steps)), most) for i in range(steps))
    return sum(drawn) / steps


def _t2v(stage: T2V, clips: Clips, plain: Pass, longest: bool) -> list[Repeated]:
    return [Repeated("dit", replace(plain, trains=True, audio=False))]


def _a2v(stage: A2V, clips: Clips, plain: Pass, longest: bool) -> list[Repeated]:
    return [Repeated("dit", replace(plain, trains=True))]


def _sft(stage: SFT | CausalForcing, clips: Clips, plain: Pass, longest: bool) -> list[Repeated]:
    shown = _with_reference(stage, clips, plain, longest)
    return [*_estimated(stage, shown, "dit"), Repeated("dit", replace(shown, trains=True))]


def _distill_cfg(stage: DistillCFG, clips: Clips, plain: Pass, longest: bool) -> list[Repeated]:
    shown = _with_reference(stage, clips, plain, longest)
    return [
        *_guided("teacher", shown, GUIDED),
        *_estimated(stage, shown, "teacher"),
        Repeated("dit", replace(shown, trains=True)),
    ]


def _distill_dmd(
    stage: DistillDMD | SelfForcing, clips: Clips, plain: Pass, longest: bool
) -> list[Repeated]:
    """A step of the student is due in one of ``fake_updates`` batches; every role encodes the
    reference for itself, without gradient. A causal student's video is seen in part."""
    numbers, rollout = stage.matching.numbers, stage.rollout
    shown = replace(_with_reference(stage, clips, plain, longest), through=False)
    keys = replace(shown, encodes=False)
    due = 1 / numbers.fake_updates
    steps = rollout.num_steps[max(rollout.num_steps)]
    behind = (1 - rollout.prompt_share - rollout.image_share) * (rollout.num_chunks - 1)
    moves = (steps + 1) / 2  # of the chunk that is judged; the last has the gradient
    fake, real = ("dit", "dit") if stage.trainable.parts == "lora" else ("fake", "real")
    seen = shown
    if isinstance(stage, SelfForcing):
        seen = replace(shown, latents=stage.student.score_latents)
    text, audio, reference = (numbers.real_guidance.get(name, 1.0) for name in NAMES)
    guided = streams(text=text, audio=audio, reference=reference, has_reference=True)
    found = [
        Repeated("dit", shown, behind + 1 - due),
        Repeated("dit", keys, behind * (steps - 1) + moves - 1),
        Repeated("dit", replace(shown, trains=True), due),
        *_guided(real, seen, len(guided), due),
        Repeated(fake, seen, due),
    ]
    if any(numbers.regression.values()):
        found += [
            Repeated(real, shown, due),
            Repeated(real, keys, due * (numbers.teacher_steps - 1)),
            Repeated("dit", replace(shown, trains=True), due),
        ]
    if numbers.has_head:  # it reads the fake score's features, of the made and of the true video
        found += [Repeated(fake, replace(seen, trains=True), due), Repeated(fake, seen, 2)]
    return [*found, Repeated(fake, replace(seen, trains=True))]


def _refiner(
    stage: Refiner | AdversarialRefiner, clips: Clips, plain: Pass, longest: bool
) -> list[Repeated]:
    numbers = stage.subject.refinement
    frames = _frames(
        numbers.min_reference_latents,
        min(numbers.max_reference_latents, clips.latents),
        longest,
    )
    return [Repeated("dit", replace(plain, trains=True, motion=True, reference=frames))]


def _motion(stage: MotionPrior, clips: Clips, plain: Pass, longest: bool) -> list[Repeated]:
    windows = clips.batch_size * stage.subject.training.num_windows
    return [Repeated(_NET, MotionPass(windows, plain.latents, trains=True))]


def _distill_motion(
    stage: DistillMotion, clips: Clips, plain: Pass, longest: bool
) -> list[Repeated]:
    numbers, of = stage.matching, MotionPass(
        clips.batch_size * stage.subject.training.num_windows, plain.latents
    )  # fmt: skip
    due, moves = 1 / numbers.fake_updates, (numbers.num_steps + 1) / 2
    guided = 1 + (numbers.guidance_audio != 1) + (numbers.guidance_style != 1)
    return [
        Repeated(_NET, of, moves - due),
        Repeated(_NET, replace(of, trains=True), due),
        Repeated("real", replace(of, samples=guided * of.samples), due),
        Repeated("fake", of, due),
        Repeated("fake", replace(of, trains=True)),
    ]


def _dpo(stage: AlignDPO, clips: Clips, plain: Pass, longest: bool) -> list[Repeated]:
    of = MotionPass(2 * clips.batch_size * stage.subject.training.num_windows, plain.latents)
    return [Repeated(_NET, replace(of, trains=True)), Repeated("frozen", of)]


def _video_dpo(stage: AlignVideoDPO, clips: Clips, plain: Pass, longest: bool) -> list[Repeated]:
    """The person is counted for each of both videos, and is encoded once."""
    of = replace(
        plain, samples=2 * clips.batch_size, motion=True, reference=NUM_PORTRAITS, stills=True
    )
    return [Repeated("dit", replace(of, trains=True)), Repeated("frozen", of)]


def _grpo(stage: AlignGRPO, clips: Clips, plain: Pass, longest: bool) -> list[Repeated]:
    policy, numbers = stage.policy, stage.exploration
    samples = clips.batch_size * stage.grpo.group_size
    of: Pass | MotionPass
    if isinstance(policy, MotionPolicy):
        weights, network = policy.guidance, _NET
        guided = 1 + (weights.audio != 1) + (weights.motion != 1)
        of = MotionPass(guided * samples, plain.latents)
    else:
        assert isinstance(policy, VideoPolicy)
        weights, network = policy.guidance, "dit"
        guided = len(
            streams(
                text=weights.text, audio=weights.audio, reference=weights.reference,
                has_reference=True,
            )
        )  # fmt: skip
        of = replace(
            plain, samples=guided * samples, motion=True, reference=clips.latents, encodes=False
        )
    updates = numbers.window * stage.grpo.updates_per_rollout
    return [
        Repeated(network, of, numbers.num_steps),
        Repeated("frozen", of, numbers.window),
        Repeated(network, replace(of, trains=True), updates),
    ]


_NET = "conditioner.motion_net"
_PASSES: dict[type, Callable[..., list[Repeated]]] = {
    T2V: _t2v,
    A2V: _a2v,
    SFT: _sft,
    DistillCFG: _distill_cfg,
    DistillDMD: _distill_dmd,
    SelfForcing: _distill_dmd,
    CausalForcing: _sft,
    Refiner: _refiner,
    AdversarialRefiner: _refiner,
    MotionPrior: _motion,
    DistillMotion: _distill_motion,
    AlignDPO: _dpo,
    AlignVideoDPO: _video_dpo,
    AlignGRPO: _grpo,
}


def _with_reference(stage: Engine, clips: Clips, plain: Pass, longest: bool) -> Pass:
    assert isinstance(stage.subject, VideoSubject)
    numbers = stage.subject.personality
    assert numbers is not None
    run = (numbers.min_reference_latents, min(numbers.max_reference_latents, clips.latents))
    clip, stills = _frames(*run, longest), _frames(1, NUM_STILLS, longest)
    as_stills = numbers.stills_share >= 0.5 if not longest else numbers.stills_share == 1
    return replace(plain, motion=True, reference=stills if as_stills else clip, stills=as_stills)


def _guided(network: str, shown: Pass, num: int, times: Number = 1) -> list[Repeated]:
    """``num`` passes as one batch, which read the same keys of a reference."""
    if num == 1:
        return [Repeated(network, shown, times)]
    keys = replace(shown, latents=0, through=False)
    together = replace(shown, samples=num * shown.samples, encodes=False)
    return [Repeated(network, keys, times), Repeated(network, together, times)]


def _estimated(stage: Engine, shown: Pass, network: str) -> list[Repeated]:
    assert isinstance(stage.subject, VideoSubject)
    if stage.subject.continuation.estimate_share == 0:
        return []
    latents = min(CONTEXT_LATENTS, shown.latents)
    return [Repeated(network, replace(shown, latents=latents, encodes=False))]


def _frames(least: int, most: int, longest: bool) -> int:
    return most if longest else math.ceil(mean_run(least, most))
