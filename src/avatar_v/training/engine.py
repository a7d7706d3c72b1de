"""Engine: one LightningModule for every objective. It owns the roles of the networks, their
optimisers and updates, the draws of every step, counters, logging, export and resume.

A subclass is what a recipe names: it composes a subject (training/subject.py: what is loaded and
what a batch gives) with a loss, and says which weights have which role. ``loss`` is all that a
stage of one trained role writes; one of several writes ``iterate``, with a call of `update` for
each role that is due.

Every draw comes from CPU generators seeded by (seed, data rank, batch index), so a resumed run
repeats the next loss exactly, on any device. ``step`` counts the student's updates and is in every
checkpoint: schedules, averages, records and pictures go by it. Lightning's own ``global_step``
agrees, since `update` shows the trainer the student's updates alone.
"""

import contextlib
from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeGuard, TypeVar

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.optim.lr_scheduler import LRScheduler

from avatar_v.base import checks
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.text import StoredText
from avatar_v.parallel.apply import checkpoint_blocks, shard
from avatar_v.parallel.compiling import compile_blocks
from avatar_v.parallel.mesh import Layout, common_generator, own_generator, shard_mesh
from avatar_v.parallel.numa import stay_near
from avatar_v.parallel.sequence import sequence_mesh, spread
from avatar_v.parallel.trainer import check_replicas, check_steps, trainer_layout
from avatar_v.training.batch import Draws, Logs
from avatar_v.training.optim import Optim, build_optimizer, warmup_cosine
from avatar_v.training.roles import (
    STUDENT,
    Role,
    Updates,
    average_gradients,
    check_roles,
    copy_network,
    freeze_readers,
    gradients_kept,
    keep_frozen_out_of_checkpoints,
    only_trained,
    trained_names,
    whole_pipeline,
)
from avatar_v.training.subject import ClipSubject, Step, Subject
from avatar_v.training.trainable import Trainable

if TYPE_CHECKING:
    from avatar_v.sampling.settings import Settings

Network = TypeVar("Network", bound=nn.Module)
COUNTERS, SUBJECT = "engine", "subject"
"""Where a checkpoint holds the counters, and what the subject adds."""


class Engine(L.LightningModule, ABC, Generic[Step]):
    """Base of everything that is trained.

    Args:
        subject: what is loaded, and what a batch gives.
        optim: of the student.
        seed: of fresh weights and of the draws of every step.
        trainable: which parts of the network are trained (None: all).
        updates: accumulation and clipping, which the trainer leaves to a stage of several roles.
    """

    dit: AvatarDiT  # of subjects that load a pipeline, as is the conditioner
    conditioner: Conditioner

    def __init__(
        self,
        subject: Subject[Step],
        optim: Optim,
        seed: int = 0,
        trainable: Trainable | None = None,
        updates: Updates | None = None,
    ) -> None:
        super().__init__()
        checks.seed("seed", seed)
        self.subject, self.optim, self.seed = subject, optim, seed
        self.trainable = trainable or Trainable()
        self.updates = updates or Updates()
        self.step = 0
        self.num_backward: dict[str, int] = {}  # passes of `update`, by role
        self._names: dict[str, tuple[str, ...]] = {}
        self.is_built = False

    def roles(self) -> Mapping[str, Role]:
        """The sets of weights that are trained or read, by name: a DiT and its conditioner, unless
        a subclass says otherwise."""
        return whole_pipeline(self.optim)

    @abstractmethod
    def loss(self, batch: Step) -> tuple[Tensor, Logs]:
        """The loss of a batch, and further scalars to log."""

    def iterate(self, batch: Step) -> tuple[Tensor, Logs]:
        """One batch of training: the loss, from which Lightning makes the update, and further
        scalars to log. With several trained roles the updates are made in here."""
        return self.loss(batch)

    def build_roles(self) -> None:
        """Change the networks that were loaded into those that are trained, and add those of other
        roles."""

    def select_trainable(self) -> None:
        """Freeze what is not trained."""

    @property
    def automatic_optimization(self) -> bool:
        """Whether Lightning makes the updates: those of a stage that trains one role."""
        return sum(role.trainable for role in self.roles().values()) == 1

    def setup(self, stage: str) -> None:
        """The process stays near its GPU. Lightning calls this in each rank, before any network is
        loaded."""
        stay_near(self.trainer.strategy.root_device)
        if not self.automatic_optimization:
            check_steps(self.trainer)

    # Networks

    def configure_model(self) -> None:
        """Build or load the networks; Lightning calls this once the devices are known."""
        if self.is_built:
            return
        for name, network in self.subject.load(self.seed, self._trainer).items():
            setattr(self, name, network)
        self.settle()
        self.is_built = True
        keep_frozen_out_of_checkpoints(self)
        if self.subject.checkpoint_activations:
            for module in self.modules():
                if isinstance(module, AvatarDiT):
                    checkpoint_blocks(module)
        if self.subject.compiles:
            for module in self.modules():
                if isinstance(module, AvatarDiT):
                    compile_blocks(module)
        if self.device_mesh is not None:  # of ModelParallelStrategy
            self.shard_roles(shard_mesh(self.device_mesh))
        self._spread_videos()

    def settle(self) -> None:
        """Give every network that was loaded its role.

        ValueError for a strategy that cannot train these roles.
        """
        self.build_roles()
        self.train()
        self.subject.freeze(self)
        self.select_trainable()
        roles = self.roles()
        check_roles(roles)
        # a DiT has parts that a stage, or a step, passes by: sound, motion, marks of a reference
        if not self.automatic_optimization or "dit" in roles[STUDENT].modules:
            check_replicas(self._trainer)
        freeze_readers(self, roles)
        for module in self.modules():
            if isinstance(module, StoredText):
                module.require_frozen()
        self._names = trained_names(self, roles)
        self.num_backward = dict.fromkeys(self._names, 0)
        self.subject.set_aside(self)

    def network_for(self, role: str, start: Network) -> Network:
        """A network of ``role`` with the weights of ``start``. Where the role is sharded next, it
        takes no memory of its own before: no rank holds the same weights twice."""
        return copy_network(start, shared=self.device_mesh is not None and self.roles()[role].shard)

    def shard_roles(self, mesh: DeviceMesh) -> None:
        """Shard the modules of the roles that want it over ``mesh``."""
        # gathered weights must be of the type that the trainer computes in
        dtype = torch.bfloat16 if "bf16" in self.trainer.precision else torch.float32
        names = {name for role in self.roles().values() if role.shard for name in role.modules}
        for name in sorted(names):
            shard(self.get_submodule(name), mesh, compute_dtype=dtype)

    def _spread_videos(self) -> None:
        """Let the ranks of a sequence group compute each video together."""
        if self.layout.sequence_size == 1 or self.device_mesh is None:
            return
        meshes: dict[int, DeviceMesh] = {}
        for module in self.modules():
            if isinstance(module, AvatarDiT):
                heads = module.config.num_heads
                if heads not in meshes:
                    device = self.device_mesh.device_type
                    meshes[heads] = sequence_mesh(self.layout, heads, device)
                spread(module, meshes[heads])

    # Steps

    def on_fit_start(self) -> None:
        data = self.trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        self.subject.check_data(self, data, self.trainer.max_steps)

    def draws(self, index: int, *, validation: bool = False) -> Draws:
        """The generators of the ``index``-th batch."""
        return Draws(
            own_generator(self.seed, self.layout, index, validation=validation),
            common_generator(self.seed, index, validation=validation),
            self.step,
        )

    def begin(self, batch: Any, index: int, *, validation: bool = False) -> Step:
        """The train batch that the subject makes of the ``index``-th ``batch``."""
        return self.subject.begin(self, batch, self.draws(index, validation=validation))

    def loss_at(self, batch: Any, index: int, *, validation: bool = False) -> tuple[Tensor, Logs]:
        """The loss of ``batch`` as the ``index``-th one, and further scalars to log."""
        return self.loss(self.begin(batch, index, validation=validation))

    def training_step(self, batch: Any, batch_idx: int) -> dict[str, Tensor | int | Logs]:
        train_batch = self.begin(batch, self.trainer.fit_loop.total_batch_idx)
        rates = {name: o.param_groups[0]["lr"] for name, o in self.role_optimizers().items()}
        loss, logs = self.iterate(train_batch)
        logs = {name: value.detach() for name, value in logs.items()}
        self.log("train/loss", loss, prog_bar=True, batch_size=train_batch.size)
        self.log_dict({f"train/{k}": v for k, v in logs.items()}, batch_size=train_batch.size)
        for name, rate in rates.items():
            self.log("train/lr" if name == STUDENT else f"train/lr_{name}", rate)
        if not self.automatic_optimization:
            self.log("step", float(self.step))  # Lightning would count batches in its logs
        return {"loss": loss, "terms": logs, "num_tokens": train_batch.num_tokens}

    def validation_step(self, batch: Any, batch_idx: int) -> None:
        """The loss with draws that depend on the batch index alone."""
        train_batch = self.begin(batch, batch_idx, validation=True)
        loss, _ = self.loss(train_batch)
        self.log("val/loss", loss, prog_bar=True, batch_size=train_batch.size, sync_dist=True)

    @contextlib.contextmanager
    def only(self, role: str) -> Iterator[None]:
        """Within the block the weights of ``role`` alone require gradients: what another role
        computes in there costs no gradient of its weights. `update` is right without it."""
        own, others = self._split(role)
        with only_trained(own, others):
            yield

    def update(self, role: str, loss: Tensor | Iterator[Tensor]) -> bool:
        """Backward from ``loss``, or from its parts one after another as they are computed, into
        the weights of ``role`` alone; at the last of
        ``updates.accumulate_grad_batches`` passes clip, step, and move the learning rate on.
        Returns whether the weights were updated.

        For stages of several trained roles. The gradients that other roles accumulate stay.
        """
        own, others = self._split(role)
        with gradients_kept(others):
            for part in [loss] if isinstance(loss, Tensor) else loss:
                self.manual_backward(part / self.updates.accumulate_grad_batches)
        self.num_backward[role] += 1
        if self.num_backward[role] % self.updates.accumulate_grad_batches:
            return False
        if self.device_mesh is not None and not self.roles()[role].shard:
            average_gradients(own)
        optimizer = self.role_optimizers()[role]
        if role == STUDENT:
            optimizer.step()
            self.step += 1
        else:  # past Lightning's counter of steps
            self.trainer.strategy.optimizer_step(optimizer.optimizer, lambda: None)
        schedules = self.lr_schedulers()
        schedules = schedules if isinstance(schedules, list) else [schedules]
        schedules[list(self._names).index(role)].step()  # pyright: ignore
        optimizer.zero_grad()
        return True

    def on_before_optimizer_step(self, optimizer: torch.optim.Optimizer) -> None:
        """Clip the gradient of a role; by now it is unscaled in every precision."""
        if self.automatic_optimization:
            return
        optimizers = self.role_optimizers().items()
        role = next(name for name, found in optimizers if found.optimizer is optimizer)
        largest = self.roles()[role].gradient_clip
        if largest is not None:
            self.clip_gradients(optimizer, largest, "norm")

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Lightning calls this for the update of a stage with one trained role."""
        super().optimizer_step(*args, **kwargs)
        self.step += 1

    @property
    def gradients_wait(self) -> bool:
        """Whether some role has made passes whose update is still to come."""
        return any(num % self.updates.accumulate_grad_batches for num in self.num_backward.values())

    def num_updates(self, role: str) -> int:
        """How often the weights of ``role`` were updated, in this run and those it goes on from."""
        return self.num_backward[role] // self.updates.accumulate_grad_batches

    # Weights and optimisers by role

    def role_parameters(self, role: str) -> list[nn.Parameter]:
        """The trained weights of ``role``."""
        return [self.get_parameter(name) for name in self._names[role]]

    def _split(self, role: str) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """The trained weights of ``role``, and those of all other roles."""
        others = [p for other in self._names if other != role for p in self.role_parameters(other)]
        return self.role_parameters(role), others

    def averaged_names(self) -> tuple[str, ...]:
        """Names of the weights of which callbacks/ema.py keeps an average, alike on all ranks."""
        roles = self.roles()
        return tuple(n for role, ns in self._names.items() if roles[role].ema for n in ns)

    def role_optimizers(self) -> dict[str, LightningOptimizer]:
        """The optimiser of every trained role."""
        found = self.optimizers()
        found = found if isinstance(found, list) else [found]
        return dict(zip(self._names, found, strict=True))  # pyright: ignore[reportReturnType]

    def configure_optimizers(self):
        """One optimiser with its schedule for every trained role, in the order of ``roles``."""
        num_steps, configured = int(self.trainer.estimated_stepping_batches), []
        for name, role in self.roles().items():
            if role.optim is None:
                continue
            optimizer, schedule = self.optimizer_for(
                role.optim, self._names[name], num_steps * role.updates_per_step
            )
            scheduler = {"scheduler": schedule, "interval": "step"}
            configured.append({"optimizer": optimizer, "lr_scheduler": scheduler})
        return configured[0] if len(configured) == 1 else configured

    def optimizer_for(
        self, optim: Optim, names: tuple[str, ...], num_steps: int
    ) -> tuple[torch.optim.Optimizer, LRScheduler]:
        """The optimiser of a role's weights, and its learning rate over so many updates."""
        optimizer = build_optimizer(self, optim, names)
        return optimizer, warmup_cosine(optimizer, optim, num_steps)

    # Checkpoints, cards, generation

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        every = self.updates.accumulate_grad_batches  # a checkpoint holds no gradients
        whole = {role: num - num % every for role, num in self.num_backward.items()}
        checkpoint[COUNTERS] = {"step": self.step, "num_backward": whole}
        checkpoint[SUBJECT] = self.subject.state(self)

    def on_load_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        """RuntimeError, in torch's words for weights that do not fit, for the checkpoint of a stage
        with other roles, or of no stage."""
        counters = checkpoint.get(COUNTERS, {"num_backward": {}})
        if counters["num_backward"].keys() != self.num_backward.keys():
            trained, expected = sorted(counters["num_backward"]), sorted(self.num_backward)
            raise RuntimeError(
                f"Error(s) in loading state_dict: it trains the roles {trained}, not {expected}"
            )
        self.step, self.num_backward = counters["step"], dict(counters["num_backward"])
        self.subject.restore(self, checkpoint[SUBJECT])

    def card_entries(self) -> dict[str, Any]:
        """What the card of the weights says they can do (models.card.Capabilities)."""
        return self.subject.card_entries(self)

    def sampled_with(self, settings: "Settings") -> "Settings":
        """``settings`` as generation changes them for these weights."""
        return settings

    @property
    def layout(self) -> Layout:
        """The place of this rank among all."""
        return trainer_layout(self._trainer)


def steps_made(trainer: L.Trainer, module: L.LightningModule) -> int:
    """Steps that a run has made: an engine counts them itself, and the trainer those of any other
    module."""
    return module.step if isinstance(module, Engine) else trainer.global_step


def trains_clips(module: object) -> TypeGuard["Engine"]:
    """Whether a module trains a DiT or a motion network on clips."""
    return isinstance(module, Engine) and isinstance(module.subject, ClipSubject)


def subject_of(engine: "Engine") -> ClipSubject:
    """The subject of an engine that trains on clips."""
    assert isinstance(engine.subject, ClipSubject), "trains_clips says so"
    return engine.subject
