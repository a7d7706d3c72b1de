"""At the end of stage 0: the averaged VAE as a folder, with the statistics of its latents and what
it knows: how well it rebuilds pictures of its training (models/fidelity.py)."""

import itertools
from collections.abc import Iterable
from pathlib import Path
from typing import Literal

import lightning as L
import torch

from avatar_v.base import checks
from avatar_v.base.paths import whole_folder
from avatar_v.callbacks.ema import averaged
from avatar_v.models.fidelity import ReconstructionStats, fidelity_db, known
from avatar_v.models.vae import Video, VideoVAE
from avatar_v.objectives.vae import TrainVAE, latent_stats
from avatar_v.objectives.vae_windows import require_video
from avatar_v.training.finite import require_finite_weights

PICTURES_A_CLIP, PICTURES_AT_ONCE, MAX_PICTURES = 8, 64, 2048
"""For what is known: a second or so of work at 64 pixels for every thousand."""


class ExportVAE(L.Callback):
    """Writes config.json, model.safetensors and known.json to ``default_root_dir/vae``.

    ``dtype`` is that of the stored weights, which are read back as float32. The statistics and what
    is known come from ``num_stats_batches`` training batches; a decoder-only run keeps the
    statistics of its encoder.
    """

    def __init__(
        self, dtype: Literal["float32", "float16"] = "float32", num_stats_batches: int = 64
    ) -> None:
        checks.count("num_stats_batches", num_stats_batches)
        self.dtype = {"float32": torch.float32, "float16": torch.float16}[dtype]
        self.num_stats_batches = num_stats_batches

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not isinstance(pl_module, TrainVAE):
            raise ValueError(f"ExportVAE serves TrainVAE, got {type(pl_module).__name__}")
        folder = Path(trainer.default_root_dir) / "vae"
        loader = trainer.train_dataloader
        assert loader is not None
        with averaged(trainer, pl_module), torch.no_grad():
            require_finite_weights(trainer, pl_module.vae, f"export to {folder}", self.dtype)
            if not trainer.is_global_zero:
                return
            if not pl_module.decoder_only:
                batches = itertools.islice(loader, self.num_stats_batches)
                videos = (require_video(batch) for batch in batches)
                pl_module.vae.set_latent_stats(*latent_stats(pl_module.vae, videos))
            batches = itertools.islice(loader, self.num_stats_batches)
            pl_module.vae.known = reconstruction_stats(
                pl_module.vae, (require_video(batch) for batch in batches)
            )
            with whole_folder(folder) as partial:
                pl_module.vae.save_pretrained(partial, self.dtype)


@torch.no_grad()
def reconstruction_stats(vae: VideoVAE, videos: Iterable[Video]) -> ReconstructionStats:
    """Fidelity of single pictures of ``videos``, spread over each clip, through ``vae``."""
    values, size = [], (0, 0)
    for video in videos:
        chosen = torch.linspace(0, video.shape[1] - 1, PICTURES_A_CLIP).round().long().unique()
        pictures = video[:, chosen].flatten(0, 1).to(vae.latents_mean.device)
        size = (pictures.shape[2], pictures.shape[3])
        for part in pictures.split(PICTURES_AT_ONCE):
            rebuilt = vae.decode(vae.encode(part[:, None]))[:, 0]
            values.append(fidelity_db(rebuilt.float(), part.float()).cpu())
        if sum(map(len, values)) >= MAX_PICTURES:
            break
    return known(torch.cat(values), size=size)
