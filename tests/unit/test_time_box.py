"""callbacks/time_box.py: what a fit by time measures of itself."""

import json
import time
from collections.abc import Mapping
from pathlib import Path

import lightning as L
import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader
from two_networks import Numbers, TwoNetworks

from avatar_v.base.flops import FlopCount
from avatar_v.callbacks.time_box import TIME_BOX, TimeBox
from avatar_v.training.batch import Logs
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim
from avatar_v.training.roles import STUDENT, Role, Updates, constant

OPTIM = Optim(lr=0.1, num_warmup_steps=1)
EVERY, VALIDATION_S = 5, 1.0


class Turns(Engine[Numbers]):
    """A student that is trained on one batch in five, beside a fake score."""

    network: nn.Linear
    fake: nn.Linear

    def __init__(self) -> None:
        super().__init__(TwoNetworks(), OPTIM, updates=Updates())

    def roles(self) -> Mapping[str, Role]:
        fake = Role(("fake",), constant(0.05, (0.5, 0.9)), updates_per_step=EVERY)
        return {STUDENT: Role(("network",), OPTIM, export=True), "fake": fake}

    def loss(self, batch: Numbers) -> tuple[Tensor, Logs]:
        return self.fake(self.network(batch.x)).square().mean(), {}

    def iterate(self, batch: Numbers) -> tuple[Tensor, Logs]:
        if self.num_backward["fake"] % EVERY == EVERY - 1:
            self.update(STUDENT, self.loss(batch)[0])
        self.update("fake", self.fake(batch.x[:, :2]).square().mean())
        return batch.x.sum(), {}

    def validation_step(self, batch: Tensor, batch_idx: int) -> None:
        time.sleep(VALIDATION_S)


class Begins(L.Callback):
    at_s = 0.0

    def on_validation_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.at_s = time.monotonic()


def fit(folder: Path, seconds: float, num_steps: int) -> tuple[TimeBox, Begins]:
    box, begins = TimeBox(seconds), Begins()
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=num_steps, max_epochs=-1, logger=False,
        callbacks=[box, begins], enable_checkpointing=False, enable_progress_bar=False,
        enable_model_summary=False, default_root_dir=folder, num_sanity_val_steps=0,
        val_check_interval=1000, check_val_every_n_epoch=None,
    )  # fmt: skip
    batches = DataLoader([torch.ones(4, 3)] * 1000, batch_size=None)
    some = DataLoader([torch.ones(4, 3)], batch_size=None)
    trainer.fit(Turns(), batches, some)
    return box, begins


@pytest.mark.filterwarnings("ignore")
def test_operations_are_those_of_whole_turns(tmp_path: Path) -> None:
    with FlopCount() as of_all:
        box, _ = fit(tmp_path, 1000.0, 4)
    assert box._num_batches == 4 * EVERY
    assert box._flops / box._counted_tokens == of_all.num / box._num_tokens > 0


@pytest.mark.filterwarnings("ignore")
def test_the_time_of_a_fit_is_without_its_validation(tmp_path: Path) -> None:
    box, begins = fit(tmp_path, 0.2, 1_000_000)
    row = json.loads((tmp_path / TIME_BOX).read_text())
    assert 0.2 <= row["fit_s"] <= begins.at_s - box._begin_s + 0.05  # it is rounded to 0.1


def test_attention_is_counted_on_every_device() -> None:
    """Two products forward; five backward, with the one that is computed again."""
    query, key = torch.randn(1, 2, 8, 16, requires_grad=True), torch.randn(1, 2, 12, 16)
    product = 2 * 2 * 8 * 12 * 16
    with FlopCount() as count:
        out = F.scaled_dot_product_attention(query, key, key)
        forward = count.num
        out.sum().backward()
    assert (forward, count.num) == (2 * product, 7 * product)


def test_several_ranks_are_refused(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(L.Trainer, "world_size", 2)
    with pytest.raises(ValueError, match="one rank, got 2"):
        fit(tmp_path, 1.0, 1)
