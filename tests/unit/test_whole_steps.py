"""callbacks/whole_steps: a checkpoint between two steps, and the run that goes on from it."""

import itertools
from collections.abc import Mapping
from pathlib import Path

import lightning as L
import pytest
import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader
from two_networks import Numbers, TwoNetworks

from avatar_v.callbacks.ema import EMA
from avatar_v.callbacks.whole_steps import WholeSteps
from avatar_v.objectives.epochs import RandomLoader
from avatar_v.shards.buckets import BatchPlan, Bucket
from avatar_v.shards.loader import ResumableLoader
from avatar_v.training.batch import Draws, Logs
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.roles import STUDENT, Role, Updates, constant
from avatar_v.types import Batch
from avatar_v.weights.random import make_batch

EPOCH, EVERY, STEPS = 5, 3, 4
BUCKET = Bucket(32, 32, 5)
OPTIM = Optim(lr=0.1, num_warmup_steps=1)


class InMemory(L.LightningDataModule):
    """Epochs of five random batches."""

    def train_dataloader(self) -> RandomLoader:
        return RandomLoader(lambda g: draw(0, int(torch.randint(99, (), generator=g))), EPOCH, 0)

    def val_dataloader(self) -> DataLoader:
        return DataLoader([draw(99, 0)], batch_size=None)


class Data(InMemory):
    """The same of a plan, and where a run stands in them."""

    loader: ResumableLoader | None = None
    stored: dict[str, int] | None = None

    def train_dataloader(self) -> ResumableLoader:
        self.loader = ResumableLoader(
            lambda epoch: [BatchPlan(BUCKET, (), None, (epoch, i)) for i in range(EPOCH)],
            lambda plan: draw(*plan.seed),
            num_workers=0,
        )
        if self.stored is not None:
            self.loader.resume(**self.stored)
        return self.loader

    def state_dict(self) -> dict[str, int]:
        assert self.loader is not None
        return {"epoch": self.loader.epoch, "num_done": self.loader.num_done}

    def load_state_dict(self, state_dict: dict[str, int]) -> None:
        self.stored = state_dict


def draw(epoch: int, index: int) -> Batch:
    return make_batch(4, 5, 8, seed=10 * epoch + index)


class OfClips(TwoNetworks):
    def begin(self, networks: object, batch: Batch, draws: Draws) -> Numbers:
        return Numbers(batch.motion[:, 0, :3])


class Learner(Engine[Numbers]):
    """A student, alone (Lightning updates it) or beside a fake score (it updates both itself)."""

    network: nn.Linear
    fake: nn.Linear

    def __init__(self, *, alone: bool) -> None:
        updates = Updates() if alone else Updates(EVERY)
        super().__init__(OfClips(), OPTIM, updates=updates)
        self.alone = alone
        self.losses: dict[int, float] = {}

    def roles(self) -> Mapping[str, Role]:
        fake = Role(("fake",), None if self.alone else constant(0.05, (0.5, 0.9)))
        return {STUDENT: Role(("network",), OPTIM, ema=True, export=True), "fake": fake}

    def loss(self, batch: Numbers) -> tuple[Tensor, Logs]:
        return (self.fake(self.network(batch.x)) - 1).square().mean(), {}

    def iterate(self, batch: Numbers) -> tuple[Tensor, Logs]:
        loss, _ = self.loss(batch)
        if not self.alone:
            x = batch.x
            self.update("fake", (self.fake(self.network(x)) - x[:, :2]).square().mean())
            self.update(STUDENT, self.loss(batch)[0])
        self.losses[self.trainer.fit_loop.total_batch_idx] = float(loss)
        return loss, {}


class Save(L.Callback):
    """Keeps a checkpoint of every batch, from the hook ``when``, by the number of batches."""

    def __init__(self, folder: Path, when: str) -> None:
        self.folder = folder
        setattr(self, when, self.save)

    def save(self, trainer: L.Trainer, *_) -> None:
        done = trainer.fit_loop.total_batch_idx + 1
        trainer.save_checkpoint(self.folder / f"{done}.ckpt")


def fit(
    learner: Learner,
    folder: Path,
    data: L.LightningDataModule,
    *callbacks: L.Callback,
    ckpt: Path | None = None,
) -> EMA:
    ema = EMA(0.9)
    more = {"accumulate_grad_batches": EVERY} if learner.alone else {}
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=STEPS, max_epochs=-1, logger=False,
        callbacks=[WholeSteps(), ema, *callbacks], enable_checkpointing=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=folder,
        val_check_interval=1, check_val_every_n_epoch=None, num_sanity_val_steps=0, **more,
    )  # fmt: skip
    trainer.fit(learner, datamodule=data, ckpt_path=ckpt, weights_only=True)
    return ema


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("when", "alone", "data"),
    [
        *itertools.product(
            ["on_train_batch_end", "on_validation_end", "on_train_epoch_end"], [True, False], [Data]
        ),
        ("on_train_batch_end", True, InMemory),
    ],
)
def test_a_run_goes_on_exactly_from_a_checkpoint_of_any_batch(
    when: str, alone: bool, data: type[L.LightningDataModule], tmp_path: Path
) -> None:
    straight = Learner(alone=alone)
    average = fit(straight, tmp_path, data(), Save(tmp_path, when))
    saved = {int(path.stem): path for path in tmp_path.glob("*.ckpt")}
    assert len(saved) >= (1 if when == "on_train_epoch_end" else 7)
    assert average.num_updates == STEPS
    for num_done, path in saved.items():
        resumed = Learner(alone=alone)
        again = fit(resumed, tmp_path, data(), ckpt=path)
        first = min(resumed.losses, default=num_done)
        assert num_done - EVERY < first <= num_done, f"behind batch {num_done}"
        rest = {at: loss for at, loss in straight.losses.items() if at >= first}
        assert resumed.losses == rest, f"behind batch {num_done}"
        assert again.num_updates == STEPS
        assert all(torch.equal(average.average[n], x) for n, x in again.average.items())
        assert all(
            torch.equal(straight.state_dict()[n], x) for n, x in resumed.state_dict().items()
        )
