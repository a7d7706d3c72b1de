"""At the end of training a codec of speech: its averaged weights as a folder."""

from pathlib import Path

import lightning as L
import torch

from avatar_v.base.paths import whole_folder
from avatar_v.callbacks.ema import averaged
from avatar_v.objectives.voice_codec import TrainVoiceCodec
from avatar_v.training.finite import require_finite_weights


class ExportCodec(L.Callback):
    """Writes config.json and model.safetensors to ``default_root_dir/codec``, as float16."""

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        if not isinstance(pl_module, TrainVoiceCodec):
            raise ValueError(f"ExportCodec serves TrainVoiceCodec, got {type(pl_module).__name__}")
        folder = Path(trainer.default_root_dir) / "codec"
        with averaged(trainer, pl_module), torch.no_grad():
            require_finite_weights(trainer, pl_module.codec, f"export to {folder}", torch.float16)
            if trainer.is_global_zero:
                with whole_folder(folder) as partial:
                    pl_module.codec.save(partial)
