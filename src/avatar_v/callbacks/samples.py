"""Pictures of progress: clips generated from validation conditions, beside the true ones."""

from pathlib import Path

import lightning as L
import torch
from einops import rearrange
from jaxtyping import Float, UInt8
from lightning.pytorch.loggers import MLFlowLogger
from PIL import Image
from torch import Tensor

from avatar_v.callbacks.ema import averaged
from avatar_v.flow import schedule
from avatar_v.generate.guidance import guided
from avatar_v.generate.sampler import sample
from avatar_v.media import encode_video_bytes
from avatar_v.stages.base import Stage
from avatar_v.stages.windows import Windows
from avatar_v.types import Batch

Video = Float[Tensor, "b f 3 h w"]


class Samples(L.Callback):
    """After validation generates the beginnings of ``num_samples`` clips from their first latent
    and their other conditions, with the sampler and guidance of generation.

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
    ) -> None:
        """``shift`` bends the sampling times like those of training; ``guidance_audio`` 1 is none.
        ``num_columns`` frames, evenly spaced, stand in a row of the picture."""
        if min(num_samples, num_steps, num_columns) < 1:
            raise ValueError("num_samples, num_steps and num_columns are at least 1")
        self.num_samples = num_samples
        self.num_steps = num_steps
        self.shift = shift
        self.guidance_audio = guidance_audio
        self.num_columns = num_columns
        self._batch: Batch | None = None

    def on_validation_batch_end(
        self, trainer, pl_module, outputs, batch, batch_idx, dataloader_idx=0
    ) -> None:
        if batch_idx == 0 and self._batch is None:
            self._batch = first_samples(batch, self.num_samples)

    def on_validation_epoch_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if trainer.sanity_checking or self._batch is None:
            return
        if not isinstance(pl_module, Stage):
            raise ValueError(f"Samples serves the DiT stages, got {type(pl_module).__name__}")
        # the precision of training: under FSDP2 the gathered weights have no other
        with averaged(trainer, pl_module), trainer.precision_plugin.forward_context():
            versions = self.generate(pl_module, self._batch)
        if trainer.is_global_zero:
            self._write(trainer, versions)

    @torch.no_grad()
    def generate(self, stage: Stage, batch: Batch) -> tuple[Video, ...]:
        """True and generated video in [-1, 1] of the first window of each clip."""
        clean = stage.conditioner.clean_latents(stage.at_resolution(batch))
        length = stage.window_length
        clean = clean[:, :length]
        beginning = torch.zeros(clean.shape[0], dtype=torch.long)
        cond = stage.conditions(batch, Windows(beginning, beginning, beginning, length))
        noise = torch.randn(clean.shape, generator=torch.Generator().manual_seed(0)).to(clean)
        velocity = guided(stage.dit, cond, text=1.0, audio=self.guidance_audio)
        prefix = clean[:, :1] if length > 1 else None
        times = schedule(self.num_steps, shift=self.shift)
        latents = sample(velocity, noise, times, prefix=prefix)
        vae = stage.conditioner.vae
        return vae.decode(clean).clamp(-1, 1), vae.decode(latents).clamp(-1, 1)

    def _write(self, trainer: L.Trainer, versions: tuple[Video, ...]) -> None:
        folder = Path(trainer.default_root_dir) / "samples"
        folder.mkdir(parents=True, exist_ok=True)
        stem = folder / f"step_{trainer.global_step:06d}"
        pairs = torch.stack([to_uint8(version) for version in versions], dim=1)
        picture, video = stem.with_suffix(".png"), stem.with_suffix(".mp4")
        Image.fromarray(sheet(pairs, self.num_columns).numpy()).save(picture)
        video.write_bytes(encode_video_bytes(rearrange(pairs, "b r f c h w -> f c (r h) (b w)")))
        for logger in trainer.loggers:
            if isinstance(logger, MLFlowLogger):
                for path in (picture, video):
                    logger.experiment.log_artifact(logger.run_id, str(path), "samples")


def sheet(pairs: UInt8[Tensor, "b r f 3 h w"], num_columns: int) -> UInt8[Tensor, "y x 3"]:
    """One picture: a row of frames for each of the r versions of each clip."""
    num_frames = pairs.shape[2]
    columns = torch.linspace(0, num_frames - 1, min(num_columns, num_frames)).round().long()
    return rearrange(pairs[:, :, columns], "b r f c h w -> (b r h) (f w) c").contiguous()


def first_samples(batch: Batch, num: int) -> Batch:
    """The first ``num`` clips of a batch, with their references."""
    return Batch(
        video=None if batch.video is None else batch.video[:num],
        audio=batch.audio[:num],
        text=batch.text[:num],
        motion=batch.motion[:num],
        face_box=batch.face_box[:num],
        mouth_box=batch.mouth_box[:num],
        valid=batch.valid[:num],
        key=batch.key[:num],
        person=batch.person[:num],
        scene=batch.scene[:num],
        latents=None if batch.latents is None else batch.latents[:num],
        low=None if batch.low is None else batch.low[:num],
        faces=None if batch.faces is None else batch.faces[:num],
        faces_valid=None if batch.faces_valid is None else batch.faces_valid[:num],
        stills=None if batch.stills is None else batch.stills[:num],
        stills_valid=None if batch.stills_valid is None else batch.stills_valid[:num],
        still_frames=None if batch.still_frames is None else batch.still_frames[:num],
        motion_known=None if batch.motion_known is None else batch.motion_known[:num],
        habits_known=None if batch.habits_known is None else batch.habits_known[:num],
        reference=None if batch.reference is None else first_samples(batch.reference, num),
    )


def to_uint8(video: Video) -> UInt8[Tensor, "b f 3 h w"]:
    return ((video.float().cpu() + 1) * 127.5).round().clamp(0, 255).to(torch.uint8)
