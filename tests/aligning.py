"""Tiny alignments for tests: weights with a motion network, rewards by path, and a short run."""

from pathlib import Path
from typing import Any

import lightning as L
import torch

from avatar_v.objectives.align_grpo import AlignGRPO
from avatar_v.objectives.policy_gradient import GRPO
from avatar_v.rewards.terms import RewardTerm
from avatar_v.sampling.exploring import Exploration
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.policies import Guidance
from avatar_v.training.settings import Models, Objective
from avatar_v.types import MOTION_NAMES, Batch
from avatar_v.weights.card import Capabilities, Card
from avatar_v.weights.presets import build
from avatar_v.weights.random import make_batch, motion_stats
from avatar_v.weights.weights import save_pipeline
from random_models import make_motion_net, randomise

CLIPS, GROUP, WINDOW, LENGTH = 2, 3, 2, 4
OBJECTIVE = Objective({0: LENGTH}, first_share=1.0)


def eyes(frames, audio, reference, motion, *, sign: float = 1.0, **columns) -> torch.Tensor:
    return sign * motion[..., MOTION_NAMES.index("eye_open")].mean(1)


EYES = RewardTerm(f"{__name__}.eyes", credit=("eye_open",))


def make_weights(folder: Path, **can: Any) -> str:
    """Tiny weights whose every parameter is random, motion network included."""
    dit, conditioner = build("tiny", seed=0)
    conditioner.motion_net = make_motion_net(conditioner.audio_encoder.dim)
    conditioner.motion_stats = dit.motion_stats = motion_stats()
    randomise(dit)
    card = Card("tiny", "", "", "loss.csv", Capabilities(reference=True, motion=True, **can))
    save_pipeline(folder / "start", dit, conditioner, card)
    return str(folder / "start")


def clips(num: int = CLIPS, seed: int = 0) -> Batch:
    return make_batch(num, 25, 32, latent_channels=16, has_reference=True, seed=seed)


def make_stage(weights: str, *rewards: RewardTerm, lr: float = 1e-2, **changes) -> AlignGRPO:
    numbers = {
        "grpo": GRPO(group_size=GROUP, kl_weight=0.1),
        "exploration": Exploration(num_steps=4, window=WINDOW, noise=0.7),
        "guidance": Guidance(audio=2.0, motion=1.5),
        **changes,
    }
    made = AlignGRPO(
        Models("tiny", init_from=weights),
        Optim(lr=lr, num_warmup_steps=0, weight_decay=0.0, final_lr_share=1.0),
        OBJECTIVE,
        rewards=list(rewards or (EYES,)),
        **numbers,
    )
    made.configure_model()
    return made


class Data(L.LightningDataModule):
    """The same clips in every batch, on which a run goes on where it was."""

    def __init__(self, batch: Batch) -> None:
        super().__init__()
        self.batch = batch

    def train_dataloader(self):
        return torch.utils.data.DataLoader([self.batch] * 40, batch_size=None)

    def val_dataloader(self):
        return [clips(6, seed=2)]


def fit(
    aligned: Engine, batch: Batch, folder: Path, steps: int, *, save: int | None = None,
    ckpt: Path | None = None, callbacks: tuple[L.Callback, ...] = (),
) -> list[float]:  # fmt: skip
    """The losses of a run, which keeps ``middle.ckpt`` behind step ``save``."""
    values = []

    class Losses(L.Callback):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            values.append(float(outputs["loss"]))
            if save == pl_module.step:
                trainer.save_checkpoint(folder / "middle.ckpt")

    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=steps, max_epochs=-1, logger=False,
        callbacks=[*callbacks, Losses()], enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, limit_val_batches=0,
    )  # fmt: skip
    trainer.fit(aligned, Data(batch), ckpt_path=ckpt, weights_only=True)
    return values
