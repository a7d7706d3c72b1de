"""What a stage is about: the networks that it starts from, and the windows and conditions that it
makes of a batch. An objective (objectives/) says what is learned of them.

`ClipSubject` is what the subjects of a pipeline (training/video.py, training/motion.py) share: they
load it, check the clips of a run, and go by the schedules of `Objective`.
"""

import dataclasses
import warnings
from abc import ABC, abstractmethod
from dataclasses import dataclass
from functools import partial
from typing import Any, Generic, Protocol, TypeVar, runtime_checkable

import lightning as L
from torch import nn

from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.identity import FaceVectors, add_identity
from avatar_v.models.text import ByteTextEncoder, StoredText
from avatar_v.motion.stats import MotionStats
from avatar_v.shards.training_data import TrainingData
from avatar_v.training.batch import Condition, Draws, TrainBatch
from avatar_v.training.settings import Models, Objective
from avatar_v.training.windows import Windows, draw_windows, reduced, value_at
from avatar_v.types import Batch, num_latents
from avatar_v.weights.presets import build
from avatar_v.weights.weights import find_stats, load_dit, load_pipeline, load_text


@runtime_checkable
class Prepared(Protocol):
    """A batch as a loss takes it."""

    @property
    def size(self) -> int: ...  # samples
    @property
    def num_tokens(self) -> int: ...


@runtime_checkable
class Networks(Protocol):
    """Where the networks of a pipeline are."""

    dit: AvatarDiT
    conditioner: Conditioner


@runtime_checkable
class WindowSource(Protocol):
    """Where the windows of a step lie."""

    def draw(self, num: int, clip_latents: int, length: int, draws: Draws) -> Windows:
        """Windows of ``num`` clips of so many latents, at a step whose windows have ``length``."""
        ...

    def longest(self, length: int) -> int:
        """Latents of clips that a window of ``length`` needs."""
        ...


@dataclass(frozen=True)
class FreeWindows:
    """A window of each clip on its own, as the numbers of ``objective`` say."""

    objective: Objective

    def draw(self, num: int, clip_latents: int, length: int, draws: Draws) -> Windows:
        return draw_windows(
            num,
            clip_latents,
            length,
            first_share=self.objective.first_share,
            image_share=self.objective.image_share,
            suffix_share=self.objective.suffix_share,
            generator=draws.own,
        )

    def longest(self, length: int) -> int:
        return length


Step = TypeVar("Step", bound=Prepared)
Step_co = TypeVar("Step_co", bound=Prepared, covariant=True)


class Subject(ABC, Generic[Step_co]):
    """The interface of a subject, as the engine calls it."""

    @abstractmethod
    def load(self, seed: int, trainer: L.Trainer | None) -> dict[str, nn.Module]:
        """The networks that the stage starts from, by the engine's attributes that take them."""

    @abstractmethod
    def begin(self, networks: Any, batch: Any, draws: Draws) -> Step_co:
        """The draws of a batch, encoded."""

    def check_data(self, networks: Any, data: object, num_steps: int) -> None:
        """ValueError for data that this subject cannot train on, before the first step of so many
        (-1: without an end)."""

    def freeze(self, networks: Any) -> None:
        """Freeze what no stage of this subject trains."""

    def set_aside(self, networks: Any) -> None:
        """Keep networks that no step runs from moving to the device of the stage."""

    @property
    def checkpoint_activations(self) -> bool:
        """Whether the blocks of a DiT are computed again in backward passes."""
        return False

    @property
    def compiles(self) -> bool:
        """Whether the blocks of a DiT are compiled."""
        return False

    def card_entries(self, networks: Any) -> dict[str, Any]:
        """What the card of the weights says they can do (models.card.Capabilities)."""
        return {}

    def state(self, networks: Any) -> dict[str, Any]:
        """State that a checkpoint holds beside the weights."""
        return {}

    def restore(self, networks: Any, state: dict[str, Any]) -> None:
        """Take back what `state` gave."""


class ClipSubject(Subject[TrainBatch[Condition]]):
    """Windows of clips, for a DiT and its conditioner."""

    knows_motion = False
    """Whether motion is read, whose statistics the networks then have."""
    reads_stills = False
    """Whether steps show whole frames of a reference for its video."""

    def __init__(
        self, models: Models, objective: Objective, windows: WindowSource | None = None
    ) -> None:
        """``windows``: where they lie; None: as the objective says."""
        self.models, self.objective = models, objective
        self.windows = windows or FreeWindows(objective)

    def load(self, seed: int, trainer: L.Trainer | None) -> dict[str, nn.Module]:
        """With the statistics that motion is normalised by: those of the recipe, else those of the
        weights, else those of the training clips."""
        m = self.models
        if m.init_from is None:
            dit = None if m.dit is None else load_dit(m.dit)
            dit, conditioner = build(
                m.preset, seed=seed, dit=dit, vae=m.vae, text=m.text, audio=m.audio
            )
        else:
            dit, conditioner = load_pipeline(m.init_from, preset=m.preset, vae=m.vae)
        text, source = conditioner.text_encoder, m.init_from or m.text
        if m.stored_text and source is not None and not isinstance(text, StoredText):
            conditioner.text_encoder = StoredText.of(text, partial(load_text, source))
        if m.identity is not None:
            _read_faces(dit, conditioner, FaceVectors(m.identity))
        conditioner.hear(m.audio_look_ahead, m.audio_window, is_learned=dit.has_audio)
        dit.motion_stats = conditioner.motion_stats = self._stats(conditioner.motion_stats, trainer)
        return {"dit": dit, "conditioner": conditioner}

    def _stats(self, stats: MotionStats | None, trainer: L.Trainer | None) -> MotionStats | None:
        given = self.models.motion_stats
        if given is not None:
            return find_stats(given)
        if stats is not None or not self.knows_motion:
            return stats
        data = None if trainer is None else trainer.datamodule  # pyright: ignore
        if not isinstance(data, TrainingData):
            raise ValueError("models.motion_stats: expected a file of motion statistics")
        return data.motion_stats()

    def freeze(self, networks: Networks) -> None:
        """A motion network has learned to read what the audio encoder says."""
        if networks.conditioner.motion_net is not None:
            networks.conditioner.motion_net.requires_grad_(False)
            networks.conditioner.audio_encoder.requires_grad_(False)

    @property
    def checkpoint_activations(self) -> bool:
        return self.models.checkpoint_activations

    @property
    def compiles(self) -> bool:
        return self.models.compile

    def state(self, networks: Networks) -> dict[str, Any]:
        stats = networks.conditioner.motion_stats
        return {"motion_stats": None if stats is None else dataclasses.asdict(stats)}

    def restore(self, networks: Networks, state: dict[str, Any]) -> None:
        """A run that goes on keeps its statistics of motion."""
        stats = state["motion_stats"]
        stats = None if stats is None else MotionStats(**stats)
        networks.dit.motion_stats = networks.conditioner.motion_stats = stats

    def check_data(self, networks: Networks, data: object, num_steps: int) -> None:
        """Precomputed latents must come from the VAE that will decode them, every window of the
        schedule must fit the clips, and weights that keep a rate must be shown that rate."""
        if not isinstance(data, TrainingData):
            return
        longest = self.longest_window(num_steps)
        data.require_vae(networks.conditioner.vae.hash())
        data.require_length(longest)
        data.require_one_rate()
        kept = self.card_entries(networks).get("video")
        if kept is not None and kept.frame_rate_hz != data.frame_rate_hz:
            raise ValueError(
                f"{self.models.init_from} make {kept.frame_rate_hz} frames a second, as the "
                f"weights of this stage will, and the clips have {data.frame_rate_hz}"
            )
        networks.conditioner.at_rate(data.frame_rate_hz)
        data.require_tokens(networks.conditioner.vae.spatial_factor * networks.dit.config.patch)
        text = networks.conditioner.text_encoder
        if isinstance(text, ByteTextEncoder):
            data.require_captions(text.num_bytes)
        if isinstance(text, StoredText):
            data.require_text(text.hash)
        if self.reads_stills:
            data.require_stills()
        if note := self.unlearned(data.most_latents, longest):
            warnings.warn(note, stacklevel=2)

    def unlearned(self, clip_latents: int, longest_window: int) -> str:
        """What a run cannot teach where no clip is longer than so many latents; empty: nothing."""
        if clip_latents > longest_window or self.objective.first_share == 1 or longest_window == 1:
            return ""
        return (
            f"no clip has more than the {clip_latents} latents of a window: all windows of that "
            "length begin their clip, and no later chunk of a video is trained; longer clips teach "
            f"it (objective.first_share is {self.objective.first_share:g})"
        )

    def card_entries(self, networks: Networks) -> dict[str, Any]:
        return {"shift": self.objective.shift}

    @abstractmethod
    def conditions(
        self,
        networks: Networks,
        batch: Batch,
        windows: Windows,
        draws: Draws | None = None,
        *,
        step: int = 0,
    ) -> Condition:
        """Everything that these windows are conditioned on. Without draws nothing is drawn and all
        is taken, at the resolution of ``step``."""

    def longest_window(self, num_steps: int) -> int:
        """Latents of the longest window of a run of so many steps; -1 is without an end."""
        lengths = self.objective.window_latents.items()
        return self.windows.longest(
            max(length for at, length in lengths if at < num_steps or num_steps < 0)
        )

    def window_length(self, step: int) -> int:
        """Latents of a window at this step of the schedule."""
        return value_at(self.objective.window_latents, step)

    def at_resolution(self, networks: Networks, batch: Batch, step: int) -> Batch:
        """``batch`` with its videos at this step's resolution."""
        share = value_at(self.objective.resolution, step)
        return reduced(batch, share, multiple=token_side(networks))

    def num_windows(self, batch: Batch) -> int:
        """Windows that a step draws from ``batch``."""
        return len(batch.motion)

    def draw_windows(self, batch: Batch, draws: Draws) -> Windows:
        """This step's windows."""
        clip_latents = num_latents(batch.motion.shape[1])
        return self.windows.draw(
            self.num_windows(batch), clip_latents, self.window_length(draws.step), draws
        )


def _read_faces(dit: AvatarDiT, conditioner: Conditioner, vectors: FaceVectors) -> None:
    """Let networks read these vectors. ValueError where they learned to read others."""
    known = conditioner.face_vectors
    if known is not None and known.hash() != vectors.hash():
        raise ValueError(
            f"models.identity is {vectors.name} ({vectors.hash()}), and the weights were trained "
            f"with {known.name} ({known.hash()}): leave it out"
        )
    add_identity(dit, vectors.dim)
    conditioner.face_vectors = vectors


def token_side(networks: Networks) -> int:
    """Pixels of the side of a token."""
    return networks.conditioner.vae.spatial_factor * networks.dit.config.patch
