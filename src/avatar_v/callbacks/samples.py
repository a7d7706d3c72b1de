"""Pictures of progress: clips generated from validation conditions, beside the true ones."""

import dataclasses
from pathlib import Path

import lightning as L
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from PIL import Image
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.paths import whole_file
from avatar_v.callbacks.ema import averaged
from avatar_v.media.pixels import to_uint8
from avatar_v.sampling.blocks import make_blocks
from avatar_v.sampling.chunks import Chunk, Span
from avatar_v.sampling.rollout import States, Words, begin, chunk_velocity, make_chunk
from avatar_v.sampling.settings import Settings
from avatar_v.training.engine import Engine, steps_made, subject_of, trains_clips
from avatar_v.training.settings import MAX_GUIDANCE, MAX_SHIFT
from avatar_v.training.windows import Windows
from avatar_v.types import Batch, num_frames

Video = Float[Tensor, "b f 3 h w"]


class Samples(L.Callback):
    """After validation generates the beginnings of ``num_samples`` clips from their first latent
    and their other conditions, as generation makes a first chunk (sampling/rollout.py), after
    the clip's own motion where the stage reads it: the motion network is trained later.

    Writes ``default_root_dir/samples/step_N.png`` (each clip: true frames over generated ones) and
    ``step_N.mp4`` (25 fps: true above generated), and logs both to MLflow if it is the logger.
    """

    def __init__(
        self,
        num_samples: int = 4,
        num_steps: int = 12,
        shift: float = 1.0,
        guidance_audio: float = 1.0,
        num_columns: int = 8,
        videos: bool = True,
    ) -> None:
        """``shift`` bends the sampling times like those of training; ``guidance_audio`` 1 is none.
        ``num_columns`` frames, evenly spaced, stand in a row of the picture. ``videos``: the mp4
        is written, too, which takes PyAV."""
        checks.count("num_samples", num_samples)
        checks.count("num_steps", num_steps)
        checks.positive("shift", shift, most=MAX_SHIFT)
        checks.number("guidance_audio", guidance_audio, least=0, most=MAX_GUIDANCE)
        checks.count("num_columns", num_columns)
        self.num_samples = num_samples
        self.num_steps = num_steps
        self.shift = shift
        self.guidance_audio = guidance_audio
        self.num_columns = num_columns
        self.videos = videos
        self._batch: Batch | None = None

    def on_validation_batch_end(
        self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0
    ) -> None:
        if batch_idx == 0 and self._batch is None:
            self._batch = first_samples(batch, self.num_samples)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or self._batch is None:
            return
        if not trains_clips(pl_module):
            raise ValueError(f"Samples serves the DiT stages, got {type(pl_module).__name__}")
        # the precision of training: under FSDP2 the gathered weights have no other
        with averaged(trainer, pl_module), trainer.precision_plugin.forward_context():
            versions = self.generate(pl_module, self._batch)
        if trainer.is_global_zero:
            self._write(trainer, steps_made(trainer, pl_module), versions)

    @torch.no_grad()
    def generate(self, stage: Engine, batch: Batch) -> tuple[Video, ...]:
        """True and generated video in [-1, 1] of the first window of each clip."""
        subject, step = subject_of(stage), stage.step
        clean = stage.conditioner.clean_latents(subject.at_resolution(stage, batch, step))
        length = subject.window_length(step)
        clean = clean[:, :length]
        beginning = torch.zeros(clean.shape[0], dtype=torch.long)
        windows = Windows(beginning, beginning, beginning, length)
        cond = subject.conditions(stage, batch, windows, step=step)
        settings = stage.sampled_with(self._settings(length))
        num_prefix = min(1, length - 1)
        prefixes: States = (clean[:, :num_prefix],)
        words = Words(cond.text, stage.conditioner.encode_text([""] * len(clean)))
        by_blocks = stage.dit.config.is_causal and settings.streaming.needs_blocks
        anchor = by_blocks and cond.reference is not None  # which may replace the sink
        settings = dataclasses.replace(settings, anchor=anchor)
        carry = begin(stage.dit, prefixes, cond.reference, settings)
        given = chunk_velocity(stage.dit, words, cond.audio, carry, settings)
        velocity = given.after(cond.motion)
        chunk, seeds = first_chunk(length, num_prefix), range(len(clean))
        if by_blocks:
            config = stage.dit.config
            (latents,), _ = make_blocks(velocity, carry, chunk, settings, seeds, config)
        else:
            (latents,) = make_chunk(velocity, prefixes, chunk, settings, seeds)
        vae = stage.conditioner.vae
        return vae.decode(clean).clamp(-1, 1), vae.decode(latents).clamp(-1, 1)

    def _settings(self, length: int) -> Settings:
        return Settings(
            chunk_latents=length,
            num_steps=self.num_steps,
            shift=self.shift,
            guidance_audio=self.guidance_audio,
        )

    def _write(self, trainer: L.Trainer, step: int, versions: tuple[Video, ...]) -> None:
        folder = Path(trainer.default_root_dir) / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / f"step_{step:06d}"
        pairs = torch.stack([to_uint8(version) for version in versions], dim=1)
        picture, video = stem.with_suffix(".png"), stem.with_suffix(".mp4")
        with whole_file(picture) as partial:
            Image.fromarray(sheet(pairs, self.num_columns).numpy()).save(partial, "PNG")
        if self.videos:
            from avatar_v.media.reading import encode_video_bytes

            with whole_file(video) as partial:
                rows = rearrange(pairs, "b r f c h w -> f c (r h) (b w)")
                partial.write_bytes(encode_video_bytes(rows))
        if trainer.loggers:
            from avatar_v.callbacks.experiment_log import PatientMLFlowLogger  # MLflow

            for logger in trainer.loggers:
                if isinstance(logger, PatientMLFlowLogger):
                    for path in (picture, *([video] if self.videos else [])):
                        logger.log_file(path, "samples")


def first_chunk(length: int, num_prefix: int) -> Chunk:
    """The chunk of a whole window, which may be shorter than those of a plan."""
    whole = Span(0, length)
    return Chunk(0, "ref2v", whole, num_prefix, whole, Span(0, num_frames(length)))


def sheet(pairs: UInt8[Tensor, "b r f 3 h w"], num_columns: int) -> UInt8[Tensor, "y x 3"]:
    """One picture: a row of frames for each of the r versions of each clip."""
    num_frames = pairs.shape[2]
    columns = torch.linspace(0, num_frames - 1, min(num_columns, num_frames)).round().long()
    return rearrange(pairs[:, :, columns], "b r f c h w -> (b r h) (f w) c").contiguous()


def first_samples(batch: Batch, num: int) -> Batch:
    """The first ``num`` clips of a batch, with their references."""
    first = batch.map(lambda x: x[:num])
    names = {name: getattr(batch, name)[:num] for name in ("text", "key", "person", "scene")}
    reference = None if batch.reference is None else first_samples(batch.reference, num)
    return dataclasses.replace(first, **names, reference=reference)
