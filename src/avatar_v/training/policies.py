"""Policies of alignment: the motion network and the video DiT behind one interface.

A policy says what its samples begin from, which network makes them, what rewards see of them, and
which of their numbers a reward is about. Samples of a batch lie one round of all conditions after
another: row ``k c + i`` is sample k of condition i.
"""

import contextlib
import dataclasses
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, runtime_checkable

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from avatar_v.base import checks
from avatar_v.critics.look import Faces
from avatar_v.flow import State
from avatar_v.losses.flow import box_cover, latent_boxes
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.motion_net import MotionNet
from avatar_v.motion.own_units import build_style
from avatar_v.motion.vectors import known_mask, motion_frames
from avatar_v.rewards.terms import RewardSamples
from avatar_v.sampling.guidance import guided
from avatar_v.sampling.motion import guided_motion
from avatar_v.sampling.solver import VelocityFn
from avatar_v.training.judged_frames import reference_faces, reference_places
from avatar_v.training.settings import MAX_GUIDANCE
from avatar_v.training.windows import Windows
from avatar_v.types import (
    MOTION_NAMES,
    SAMPLES_PER_FRAME,
    TEMPORAL_FACTOR,
    Batch,
    Cond,
    MotionCond,
    num_frames,
)


@dataclass(frozen=True)
class Guidance:
    """Guidance weights of the rollouts, those of generation by their names; 1 is none."""

    text: float = 1.0
    audio: float = 1.0
    reference: float = 1.0
    motion: float = 1.0  # of the person's style, in motion

    def __post_init__(self) -> None:
        for name in ("text", "audio", "reference", "motion"):
            checks.number(f"guidance.{name}", getattr(self, name), least=0, most=MAX_GUIDANCE)


@dataclass(frozen=True)
class WarmStartWindows(Windows):
    """Windows behind so many chunks that the policy made itself."""

    lead: int


@dataclass(frozen=True)
class SampleLayout:
    """Order of the samples of a batch: row ``k c + i`` is sample k of condition i."""

    num: int  # samples of a condition
    length: int  # latent frames
    num_given: int  # of them, at the beginning, that no sample made


@dataclass(frozen=True)
class RolloutBatch:
    """The state that the samples of a batch begin from; c conditions with n samples each."""

    batch: Batch  # of the conditions
    windows: Windows
    clean: State  # "c l *rest", the truth behind what is given
    cond: MotionCond | Cond  # of the conditions
    num: int  # n

    @property
    def num_given(self) -> int:
        """Latents at the beginning of the windows that are given clean, alike in all of them."""
        return int(self.windows.prefix[0])

    @property
    def prefix(self) -> State | None:
        given = self.num_given
        return repeated(self.clean[:, :given], self.num) if given else None

    @property
    def layout(self) -> SampleLayout:
        return SampleLayout(self.num, self.windows.length, self.num_given)

    @property
    def condition(self) -> Int[Tensor, " b"]:
        """The condition of each sample."""
        return torch.arange(len(self.clean), device=self.clean.device).repeat(self.num)


@runtime_checkable
class Policy(Protocol):
    """A network that makes samples of a state, whatever the state is."""

    module: str  # the attribute of the engine that is trained
    of_motion: bool
    guidance: Guidance

    def begin(
        self, conditioner: Conditioner, batch: Batch, windows: Windows
    ) -> tuple[State, MotionCond | Cond]:
        """The true states of the windows, and their conditions without dropout."""
        ...

    def velocity(
        self, network: nn.Module, conditioner: Conditioner, rollout: RolloutBatch
    ) -> VelocityFn:
        """The guided velocity of all samples."""
        ...

    def samples(
        self, conditioner: Conditioner, rollout: RolloutBatch, made: State
    ) -> RewardSamples:
        """What rewards see."""
        ...

    def check_names(self, names: Sequence[str]) -> None:
        """ValueError for what no sample has a part of."""
        ...

    def credit(self, names: Sequence[str], rollout: RolloutBatch) -> Tensor:
        """How much each number of the generated latents counts for a reward about ``names``; it
        broadcasts to them. No name is everything."""
        ...


class MotionPolicy:
    """The motion network. Rewards see motion alone, so that a rollout costs no picture."""

    module = "conditioner.motion_net"
    of_motion = True

    def __init__(self, guidance: Guidance) -> None:
        self.guidance = guidance

    def begin(
        self, conditioner: Conditioner, batch: Batch, windows: Windows
    ) -> tuple[State, MotionCond]:
        """The style is that of the whole reference. ValueError without a reference."""
        reference = _reference(batch)
        motion = windows.crop(conditioner.pack_motion(batch.motion))
        audio = conditioner.encode_audio_windows(batch.audio, windows.start, windows.length)
        moments = conditioner.clip_moments(
            reference.motion, reference.valid, known=reference.habits_known
        )
        style = build_style(moments, conditioner.known_stats)
        return motion.to(audio.device), MotionCond(audio, style=style.to(audio.device))

    def velocity(
        self, network: nn.Module, conditioner: Conditioner, rollout: RolloutBatch
    ) -> VelocityFn:
        assert isinstance(network, MotionNet)
        cond = rollout.cond.map(lambda x: repeated(x, rollout.num))
        assert isinstance(cond, MotionCond)
        weights = self.guidance
        return guided_motion(network, cond, audio=weights.audio, style=weights.motion)

    def samples(
        self, conditioner: Conditioner, rollout: RolloutBatch, made: State
    ) -> RewardSamples:
        return _samples(conditioner, rollout, made, None, {})

    def check_names(self, names: Sequence[str]) -> None:
        wrong = sorted(set(names) - set(MOTION_NAMES))
        if wrong:
            raise ValueError(
                f"credit names components of motion, {', '.join(MOTION_NAMES)}; got {wrong}"
            )

    def credit(self, names: Sequence[str], rollout: RolloutBatch) -> Float[Tensor, "1 1 md"]:
        mask = known_mask(names or MOTION_NAMES).float().repeat(1, TEMPORAL_FACTOR)
        return mask[None].to(rollout.clean.device)


class VideoPolicy:
    """The DiT, on windows that start with their clip, after the clip's own motion.

    The reference is encoded once for all samples of a condition, and its keys and values carry no
    gradient: that saves the memory of its whole pass.
    """

    module = "dit"
    of_motion = False
    decoded_at_once = 4  # samples

    def __init__(self, guidance: Guidance) -> None:
        self.guidance = guidance

    def begin(self, conditioner: Conditioner, batch: Batch, windows: Windows) -> tuple[State, Cond]:
        """ValueError without a reference, and for windows that do not start with their clip, whose
        frames could not be decoded alone."""
        if bool((windows.start > 0).any()):
            raise ValueError("policy video needs objective.first_share 1: windows start a clip")
        clean = windows.crop(conditioner.clean_latents(batch))
        motion = windows.crop(conditioner.pack_motion(batch.motion)).to(clean.device)
        cond = Cond(
            text=conditioner.encode_captions(batch),
            audio=conditioner.encode_audio_windows(batch.audio, windows.start, windows.length),
            reference=conditioner.with_identity(
                conditioner.encode_reference(_reference(batch)).without_faces(), _reference(batch)
            ),
            motion=motion,
        )
        return clean, cond

    def velocity(
        self, network: nn.Module, conditioner: Conditioner, rollout: RolloutBatch
    ) -> VelocityFn:
        assert isinstance(network, AvatarDiT)
        assert isinstance(rollout.cond, Cond)
        reference, weights = rollout.cond.reference, self.guidance
        assert reference is not None, "begin encodes it"
        with without_gradient():
            past = network.encode_reference(reference)
            assert past is not None
            past = past.rotated().repeat(rollout.num)
            no_text = conditioner.encode_text([""] * len(rollout.condition))
        plain = dataclasses.replace(
            rollout.cond, reference=None, moments=network.reference_moments(reference)
        )
        return guided(
            network,
            plain.map(lambda x: repeated(x, rollout.num)),
            text=weights.text,
            audio=weights.audio,
            reference=weights.reference,
            no_text=no_text,
            past=past,
        )

    def samples(
        self, conditioner: Conditioner, rollout: RolloutBatch, made: State
    ) -> RewardSamples:
        vae, clean = conditioner.vae, rollout.clean
        frames = torch.cat([vae.decode(part) for part in made.split(self.decoded_at_once)])
        every, frame = torch.arange(len(clean)), torch.arange(frames.shape[1])
        reference = _reference(rollout.batch)
        columns = {
            "truth": torch.cat([vae.decode(part) for part in clean.split(self.decoded_at_once)]),
            "portrait": reference_faces(vae, reference, every),
            "faces": Faces.of(rollout.batch).at(every[:, None], frame[None]),
            "portrait_faces": reference_places(reference, every),
        }
        assert isinstance(rollout.cond, Cond)
        assert rollout.cond.motion is not None
        motion = repeated(rollout.cond.motion, rollout.num)
        return _samples(conditioner, rollout, motion, frames, columns)

    def check_names(self, names: Sequence[str]) -> None:
        wrong = sorted(set(names) - {"face", "mouth"})
        if wrong:
            raise ValueError(f"credit names parts of the picture, face and mouth; got {wrong}")

    def credit(self, names: Sequence[str], rollout: RolloutBatch) -> Tensor:
        clean, batch = rollout.clean, rollout.batch
        if not names:
            return clean.new_ones(1, 1, 1, 1, 1)
        cover = clean.new_zeros(())
        for name in names:
            boxes = latent_boxes(getattr(batch, f"{name}_box"), batch.valid)
            cells = box_cover(rollout.windows.crop(boxes), *clean.shape[-2:])
            cover = torch.maximum(cover, cells.to(clean))
        return repeated(cover[:, rollout.num_given :], rollout.num)


@contextlib.contextmanager
def without_gradient() -> Iterator[None]:
    """`torch.no_grad` whose half-precision copies of weights are forgotten at its end.

    Autocast keeps the copies that it makes. Those made without gradients would serve the passes
    with gradients behind them, whose weights would then get none.
    """
    with torch.no_grad():
        yield
    torch.clear_autocast_cache()


def repeated(x: Tensor, num: int) -> Tensor:
    """All rows ``num`` times, one round after another."""
    return x.repeat(num, *[1] * (x.dim() - 1))


def _reference(batch: Batch) -> Batch:
    if batch.reference is None:
        raise ValueError("alignment needs references: set data.init_args.pairs to true")
    return batch.reference


def _samples(
    conditioner: Conditioner,
    rollout: RolloutBatch,
    motion: Float[Tensor, "b l md"],
    frames: Float[Tensor, "b f 3 h w"] | None,
    columns: dict[str, Any],
) -> RewardSamples:
    """Rewards see windows from the last frame of their first latent on, so that a latent frame is
    the frames that the VAE decodes it to."""
    windows, batch = rollout.windows, rollout.batch
    first = SAMPLES_PER_FRAME * TEMPORAL_FACTOR * windows.start.to(batch.audio.device)
    sample = torch.arange(SAMPLES_PER_FRAME * num_frames(windows.length), device=first.device)
    audio = batch.audio.gather(1, first[:, None] + sample)
    true = conditioner.pack_motion(batch.motion)
    true = motion_frames(windows.crop(true), conditioner.known_stats)[:, TEMPORAL_FACTOR - 1 :]
    return RewardSamples(
        frames=frames,
        audio=repeated(audio, rollout.num),
        reference=batch.reference,
        motion=motion_frames(motion, conditioner.known_stats)[:, TEMPORAL_FACTOR - 1 :],
        condition=rollout.condition,
        num_given=rollout.num_given,
        columns={
            "true_motion": true.to(motion),
            "person": batch.person,
            "text": batch.text,
            **columns,
        },
    )
