"""training/roles, training/engine: whose weights an update moves, and how steps are counted."""

from collections.abc import Mapping
from pathlib import Path

import lightning as L
import pytest
import torch
from lightning.pytorch.callbacks import ModelCheckpoint
from peft import LoraConfig, inject_adapter_in_model
from torch import Tensor, nn
from torch.utils.data import DataLoader
from two_networks import Numbers, TwoNetworks

from avatar_v.objectives.t2v import T2V
from avatar_v.training.batch import Logs
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim, build_optimizer, warmup_cosine
from avatar_v.training.roles import STUDENT, Role, Updates, check_roles, constant, trained_names
from avatar_v.training.settings import Models, Objective

OPTIM = Optim(lr=0.1, num_warmup_steps=1, final_lr_share=0.1)
FAKE = constant(0.05, (0.5, 0.9))
RATIO = 5


class Pair(Engine[Numbers]):
    """A student that follows a fake score, which is updated five times as often: the losses of
    both depend on both."""

    network: nn.Linear
    fake: nn.Linear

    def __init__(self, updates: Updates) -> None:
        super().__init__(TwoNetworks(), OPTIM, updates=updates)
        self.losses: list[float] = []
        self.moved: list[set[str]] = []

    def roles(self) -> Mapping[str, Role]:
        clip = self.updates.gradient_clip_val
        return {
            STUDENT: Role(("network",), OPTIM, ema=True, export=True, gradient_clip=clip),
            "fake": Role(("fake",), FAKE, updates_per_step=RATIO),
        }

    def fake_loss(self, x: Tensor) -> Tensor:
        return (self.fake(self.network(x)) - x[:, :2]).square().mean()

    def loss(self, batch: Numbers) -> tuple[Tensor, Logs]:
        return (self.fake(self.network(batch.x)) - 1).square().mean(), {}

    def iterate(self, batch: Numbers) -> tuple[Tensor, Logs]:
        before = {n: p.detach().clone() for n, p in self.named_parameters()}
        loss = self.fake_loss(batch.x)
        self.update("fake", loss)
        self.note(loss, before)
        if self.num_updates("fake") % RATIO == 0:
            before = {n: p.detach().clone() for n, p in self.named_parameters()}
            with self.only(STUDENT):
                loss, _ = self.loss(batch)
            self.update(STUDENT, loss)
            self.note(loss, before)
        return loss, {}

    def note(self, loss: Tensor, before: dict[str, Tensor]) -> None:
        self.losses.append(float(loss.detach()))
        changed = {n for n, p in self.named_parameters() if not torch.equal(p, before[n])}
        self.moved.append({name.partition(".")[0] for name in changed})


def batches(num: int) -> list[Tensor]:
    generator = torch.Generator().manual_seed(1)
    return [torch.randn(4, 3, generator=generator) for _ in range(num)]


def fit(pair: Pair, data: list[Tensor], max_steps: int, root: Path, **more) -> L.Trainer:
    path = more.pop("ckpt_path", None)
    trainer = L.Trainer(
        accelerator="cpu", devices=1, max_steps=max_steps, max_epochs=-1, logger=False,
        enable_progress_bar=False, enable_model_summary=False, default_root_dir=root, **more,
    )  # fmt: skip
    trainer.fit(pair, DataLoader(data, batch_size=None), ckpt_path=path)
    return trainer


def by_hand(updates: Updates, data: list[Tensor], num_steps: int) -> list[float]:
    """The same training without Lightning, one optimiser at a time."""
    pair, losses = Pair(updates), []
    pair.configure_model()
    every = updates.accumulate_grad_batches
    both = {
        STUDENT: build_optimizer(pair, OPTIM, ("network.weight", "network.bias")),
        "fake": build_optimizer(pair, FAKE, ("fake.weight", "fake.bias")),
    }
    schedules = {
        STUDENT: warmup_cosine(both[STUDENT], OPTIM, num_steps),
        "fake": warmup_cosine(both["fake"], FAKE, num_steps * RATIO),
    }
    counted = {STUDENT: 0, "fake": 0}

    def update(role: str, module: nn.Module, loss: Tensor) -> None:
        losses.append(float(loss.detach()))
        own = list(module.parameters())
        for p, g in zip(own, torch.autograd.grad(loss / every, own), strict=True):
            p.grad = g if p.grad is None else p.grad + g
        counted[role] += 1
        if counted[role] % every:
            return
        if role == STUDENT and updates.gradient_clip_val is not None:
            nn.utils.clip_grad_norm_(own, updates.gradient_clip_val)
        both[role].step()
        schedules[role].step()
        both[role].zero_grad()

    for x in data:
        update("fake", pair.fake, pair.fake_loss(x))
        if counted["fake"] // every % RATIO == 0:
            update(STUDENT, pair.network, pair.loss(Numbers(x))[0])
        if counted[STUDENT] == num_steps * every:
            break
    return losses


@pytest.mark.parametrize("updates", [Updates(), Updates(2, 0.05)])
def test_updates_are_those_of_a_plain_loop_and_steps_count_the_student(
    updates: Updates, tmp_path: Path
) -> None:
    pair, data = Pair(updates), batches(60)
    trainer = fit(pair, data, 3, tmp_path, enable_checkpointing=False)
    assert pair.losses == by_hand(updates, data, 3)
    assert pair.step == trainer.global_step == 3
    assert pair.num_updates(STUDENT) == 3
    assert pair.num_updates("fake") >= 3 * RATIO


def test_an_update_moves_the_weights_of_its_role_alone(tmp_path: Path) -> None:
    pair = Pair(Updates())
    fit(pair, batches(10), 2, tmp_path, enable_checkpointing=False)
    assert pair.moved == [*[{"fake"}] * 5, {"network"}, *[{"fake"}] * 5, {"network"}]
    assert all(p.requires_grad for p in pair.parameters())


def test_gradients_that_a_role_accumulates_survive_the_updates_of_another(tmp_path: Path) -> None:
    """The student's loss goes through the fake score, whose gradients wait for their update."""
    pair = Pair(Updates(accumulate_grad_batches=2))
    seen: list[Tensor | None] = []
    whole = pair.update

    def update(role: str, loss: Tensor) -> bool:
        before = None if pair.fake.weight.grad is None else pair.fake.weight.grad.clone()
        done = whole(role, loss)
        if role == STUDENT:
            seen.append(before)
            after = pair.fake.weight.grad
            assert (before is None) == (after is None)
            assert before is None or torch.equal(before, after)
        return done

    pair.update = update
    fit(pair, batches(24), 2, tmp_path, enable_checkpointing=False)
    assert seen


def test_a_run_resumed_within_a_cycle_goes_on_exactly(tmp_path: Path) -> None:
    """A checkpoint behind batch 8: the second student's update is two batches away."""
    data = batches(20)

    class Middle(ModelCheckpoint):
        def on_train_batch_end(self, trainer, pl_module, outputs, batch, batch_idx) -> None:
            if batch_idx == 7:
                trainer.save_checkpoint(tmp_path / "middle.ckpt")

    straight = Pair(Updates())
    fit(straight, data, 4, tmp_path, callbacks=[Middle()])
    resumed = Pair(Updates())
    # Lightning skips none of the batches that were seen; ShardData does
    fit(resumed, data[8:] + data[:8], 4, tmp_path, ckpt_path=tmp_path / "middle.ckpt",
        enable_checkpointing=False)  # fmt: skip
    assert resumed.losses == straight.losses[9:]
    assert (resumed.step, resumed.num_updates("fake")) == (4, 20)


def adapted() -> nn.Module:
    """One base with the factors of two roles."""
    base = nn.Sequential(nn.Linear(3, 3)).requires_grad_(False)
    for name in ("student", "fake"):
        inject_adapter_in_model(LoraConfig(r=2, target_modules=["0"]), base, adapter_name=name)
    for name, parameter in base.named_parameters():
        parameter.requires_grad_("lora_" in name)
    return nn.ModuleDict({"dit": base})


@pytest.fixture
def roles() -> dict[str, Role]:
    return {
        STUDENT: Role(("dit",), OPTIM, export=True, adapter="student"),
        "fake": Role(("dit",), FAKE, adapter="fake"),
    }


def test_two_adapters_share_one_base(roles: dict[str, Role]) -> None:
    names = trained_names(adapted(), roles)
    assert {len(found) for found in names.values()} == {2}
    assert all(f".{role}." in name for role, found in names.items() for name in found)


def test_every_trained_weight_has_one_role(roles: dict[str, Role]) -> None:
    with pytest.raises(ValueError, match=r"lora_A.fake.weight and 1 more belong to the roles none"):
        trained_names(adapted(), {STUDENT: roles[STUDENT]})
    with pytest.raises(ValueError, match="belong to the roles"):
        trained_names(adapted(), {**roles, "other": Role(("dit",), FAKE)})
    with pytest.raises(ValueError, match="other has no parameter"):
        trained_names(adapted(), {**roles, "other": Role(("dit",), FAKE, adapter="other")})
    with pytest.raises(ValueError, match="trains a role 'student'"):
        check_roles({"fake": roles["fake"]})
    with pytest.raises(ValueError, match="exports one role"):
        check_roles({STUDENT: Role(("dit",), OPTIM)})
    with pytest.raises(ValueError, match="averages are of the student alone"):
        check_roles({STUDENT: roles[STUDENT], "fake": Role(("dit",), FAKE, ema=True)})
    with pytest.raises(ValueError, match="are frozen"):
        Role(("real",), ema=True)


def test_replicas_must_look_for_weights_without_a_gradient(tmp_path: Path) -> None:
    """DDP without it never averages the gradients of one role of several, and ends at the second
    step of a stage that does not read motion."""
    trainer = L.Trainer(strategy="ddp", accelerator="cpu", devices=1, logger=False,
                        default_root_dir=tmp_path)  # fmt: skip
    for stage in (Pair(Updates()), T2V(Models("tiny"), OPTIM, Objective({0: 2}))):
        stage.trainer = trainer
        message = "use strategy ddp_find_unused_parameters_true, not ddp"
        with pytest.raises(ValueError, match=message):
            stage.configure_model()
