"""callbacks/: averages, throughput, the record of a run, pictures."""

from pathlib import Path
from types import SimpleNamespace

import lightning as L
import pytest
import torch

from avatar_v.callbacks import throughput
from avatar_v.callbacks.ema import EMA
from avatar_v.callbacks.record import LossCurve, read_losses
from avatar_v.callbacks.samples import sheet
from avatar_v.callbacks.throughput import Throughput


class Toy(L.LightningModule):
    def __init__(self, value: float = 0.0) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 1, bias=False)
        self.frozen = torch.nn.Linear(2, 1).requires_grad_(False)
        self.optimizer = torch.optim.SGD(self.layer.parameters(), lr=0.0)
        self.set(value)
        self.logged: dict[str, float] = {}

    def set(self, value: float) -> None:
        with torch.no_grad():
            self.layer.weight.fill_(value)

    @property
    def value(self) -> float:
        return float(self.layer.weight.detach()[0, 0])

    def log(self, name, value, **_) -> None:
        self.logged[name] = value


class FakeTrainer(L.Trainer):
    """Only what the callbacks ask of a trainer."""

    is_global_zero = True
    optimizers = ()
    global_step = 0
    default_root_dir = ""

    def __init__(self, step: int, root: str) -> None:
        self.global_step = step
        self.default_root_dir = root


def trainer(step: int = 0, root: str = "") -> FakeTrainer:
    return FakeTrainer(step, root)


def begin(ema: EMA, toy: Toy) -> None:
    """As a run begins: with an optimiser of the weights, and one of others."""
    made = trainer()
    other = torch.optim.SGD(toy.frozen.parameters(), lr=0.0)
    made.optimizers = [other, toy.optimizer]
    ema.on_train_start(made, toy)
    other.step()


def steps(toy: Toy, values: list[float]) -> None:
    for value in values:
        toy.set(value)
        toy.optimizer.step()


def test_the_average_follows_its_formula() -> None:
    toy, ema = Toy(1.0), EMA(decay=0.5)
    begin(ema, toy)
    steps(toy, [2.0, 3.0])
    # decays: min(0.5, 1/10) = 0.1, then min(0.5, 2/11)
    first = 0.1 * 1.0 + 0.9 * 2.0
    assert ema.average["layer.weight"][0, 0].item() == pytest.approx(
        2 / 11 * first + 9 / 11 * 3.0, rel=1e-6
    )
    assert set(ema.average) == {"layer.weight"}
    assert ema.num_updates == 2, "steps of other optimisers do not count"
    ema.teardown(trainer(), toy, "fit")
    steps(toy, [4.0])
    assert ema.num_updates == 2


def test_validation_sees_the_average_and_training_goes_on_with_the_weights() -> None:
    toy, ema = Toy(1.0), EMA(decay=0.5)
    begin(ema, toy)
    steps(toy, [2.0])
    ema.on_validation_start(trainer(), toy)
    inside = toy.value
    with ema.applied(toy):  # Samples inside validation: one use, not two
        assert toy.value == inside
    assert toy.value == inside != 2.0
    ema.on_validation_end(trainer(), toy)
    assert toy.value == 2.0
    with pytest.raises(RuntimeError, match="stop"), ema.applied(toy):
        raise RuntimeError("stop")
    assert toy.value == 2.0


def test_the_average_continues_from_a_checkpoint() -> None:
    straight, ema = Toy(1.0), EMA(decay=0.9)
    begin(ema, straight)
    steps(straight, [2.0, 3.0])
    again, resumed = Toy(3.0), EMA(decay=0.9)
    resumed.load_state_dict(ema.state_dict())
    begin(resumed, again)
    for toy in (straight, again):
        steps(toy, [5.0, 7.0])
    assert torch.equal(ema.average["layer.weight"], resumed.average["layer.weight"])
    other = EMA(decay=0.9)
    other.load_state_dict({"num_updates": 1, "average": {"nonsense": torch.zeros(1)}})
    with pytest.raises(ValueError, match="does not fit"):
        begin(other, Toy())


@pytest.mark.parametrize("decay", [-0.1, 1.0])
def test_a_decay_out_of_range(decay: float) -> None:
    with pytest.raises(ValueError, match="below 1"):
        EMA(decay)


def test_throughput_counts_wait_and_leaves_interruptions_out(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    clock = iter(
        [
            0.0,  # training starts
            1.0, 3.0,  # batch 0: not measured, nothing came before it
            4.0, 7.0,  # batch 1: waited 1 s, worked 3 s
            9.0, 10.0,  # batch 2: a checkpoint came before it
            10.5, 12.0,  # batch 3: waited 0.5 s, worked 1.5 s
        ]
    )  # fmt: skip
    monkeypatch.setattr(throughput, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    toy, callback = Toy(), Throughput(every_num_steps=2, num_warmup_steps=0)
    callback.on_train_start(trainer(), toy)
    for i in range(4):
        if i == 2:
            callback.on_save_checkpoint(trainer(), toy, {})
        callback.on_train_batch_start(trainer(), toy, None, i)
        callback.on_train_batch_end(trainer(), toy, {"num_tokens": 60}, None, i)
    assert callback.totals.num_steps == 2
    assert toy.logged["speed/tokens_per_s"] == pytest.approx(120 / 6.0)
    assert toy.logged["speed/loader_share"] == pytest.approx(1.5 / 6.0)
    assert toy.logged["speed/step_s"] == pytest.approx(3.0)
    with pytest.raises(ValueError, match="no step"):
        throughput.Totals().rates()


def test_a_resumed_loss_curve_reads_as_one(tmp_path: Path) -> None:
    def run(first: int, last: int) -> None:
        curve, toy = LossCurve(flush_every_num_steps=2), Toy()
        root = str(tmp_path)
        curve.on_train_start(trainer(first, root), toy)
        for step in range(first + 1, last + 1):
            outputs = {"loss": torch.tensor(float(step) + first / 10)}
            curve.on_train_batch_end(trainer(step, root), toy, outputs, None, 0)
        curve.on_train_end(trainer(last, root), toy)

    run(0, 5)  # killed at step 5; its last checkpoint is that of step 3
    run(3, 6)
    assert read_losses(tmp_path / "loss.csv") == [
        (1, 1.0), (2, 2.0), (3, 3.0), (4, pytest.approx(4.3)), (5, pytest.approx(5.3)),
        (6, pytest.approx(6.3)),
    ]  # fmt: skip


def test_the_sheet_puts_true_frames_over_generated_ones() -> None:
    pairs = torch.zeros(2, 2, 9, 3, 4, 4, dtype=torch.uint8)
    pairs[:, 1] = 200
    pairs[:, :, 8] += 5
    picture = sheet(pairs, num_columns=3)
    assert picture.shape == (2 * 2 * 4, 3 * 4, 3)
    assert picture[0, 0, 0] == 0
    assert picture[4, 0, 0] == 200
    assert picture[4, 11, 0] == 205
