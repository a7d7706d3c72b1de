"""At the end of stage 0: the averaged VAE with the statistics of its latents, as a folder."""

import itertools
from pathlib import Path
from typing import Literal

import lightning as L
import torch

from avatar_v.callbacks.ema import averaged
from avatar_v.stages.vae import VAEStage, latent_stats, video_of


class ExportVAE(L.Callback):
    """Writes config.json and model.safetensors to ``default_root_dir/vae``.

    ``dtype`` is that of the stored weights, which are read back as float32. The statistics come
    from ``num_stats_batches`` training batches; a decoder-only run keeps those of its encoder.
    """

    def __init__(
        self, dtype: Literal["float32", "float16"] = "float32", num_stats_batches: int = 64
    ) -> None:
        self.dtype = {"float32": torch.float32, "float16": torch.float16}[dtype]
        self.num_stats_batches = num_stats_batches

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not isinstance(pl_module, VAEStage):
            raise ValueError(f"ExportVAE serves VAEStage, got {type(pl_module).__name__}")
        if not trainer.is_global_zero:
            return
        loader = trainer.train_dataloader
        assert loader is not None
        with averaged(trainer, pl_module), torch.no_grad():
            if not pl_module.decoder_only:
                batches = itertools.islice(loader, self.num_stats_batches)
                videos = (video_of(batch) for batch in batches)
                pl_module.vae.set_latent_stats(*latent_stats(pl_module.vae, videos))
            pl_module.vae.save_pretrained(Path(trainer.default_root_dir) / "vae", self.dtype)
