"""RoleModule: the updates of several sets of weights in one LightningModule, and its steps.

With one trained role Lightning makes the updates. With several `update` does, one role at a time:
backward, accumulation, clipping, optimiser and learning rate. ``step`` counts the student's updates
and is in every checkpoint. Schedules, averages, records and pictures go by it. Lightning's own
``global_step`` agrees, since `update` shows the trainer the student's updates alone.
"""

import contextlib
from abc import abstractmethod
from collections.abc import Iterator, Mapping
from typing import Any, TypeVar

import lightning as L
import torch
from lightning.pytorch.core.optimizer import LightningOptimizer
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh

from avatar_v.parallel.apply import shard
from avatar_v.parallel.mesh import Layout
from avatar_v.parallel.trainer import check_replicas, layout_of
from avatar_v.stages.optim import build_optimizer, warmup_cosine
from avatar_v.stages.roles import (
    STUDENT,
    Role,
    Updates,
    average_gradients,
    begun_as,
    check_roles,
    freeze_readers,
    gradients_kept,
    only_trained,
    trained_names,
)

Network = TypeVar("Network", bound=nn.Module)
COUNTERS = "stage"
"""Where a checkpoint holds the counters of a stage."""


class RoleModule(L.LightningModule):
    """A LightningModule of named roles. Whoever builds the networks calls `settle_roles` when they
    are there, then `shard_roles` where the strategy shards."""

    def __init__(self) -> None:
        super().__init__()
        self.updates = Updates()  # a stage of several roles brings its own
        self.step = 0
        self.num_backward: dict[str, int] = {}  # passes of `update`, by role
        self._names: dict[str, tuple[str, ...]] = {}

    @abstractmethod
    def roles(self) -> Mapping[str, Role]:
        """The sets of weights that are trained or read, by name."""

    @property
    def automatic_optimization(self) -> bool:
        """Whether Lightning makes the updates: those of a stage that trains one role."""
        return sum(role.trainable for role in self.roles().values()) == 1

    def network_for(self, role: str, start: Network) -> Network:
        """A network of ``role`` with the weights of ``start``. Where the role is sharded next, it
        takes no memory of its own before: no rank holds the same weights twice."""
        return begun_as(start, shared=self.device_mesh is not None and self.roles()[role].shard)

    def settle_roles(self) -> None:
        """Freeze what is only read, and note whose each trained weight is.

        ValueError for a strategy that cannot train these roles.
        """
        roles = self.roles()
        check_roles(roles)
        if not self.automatic_optimization:
            check_replicas(self._trainer)
        freeze_readers(self, roles)
        self._names = trained_names(self, roles)
        self.num_backward = dict.fromkeys(self._names, 0)

    def shard_roles(self, mesh: DeviceMesh) -> None:
        """Shard the modules of the roles that want it over ``mesh``."""
        # gathered weights must be of the type that the trainer computes in
        dtype = torch.bfloat16 if "bf16" in self.trainer.precision else torch.float32
        names = {name for role in self.roles().values() if role.shard for name in role.modules}
        for name in sorted(names):
            shard(self.get_submodule(name), mesh, compute_dtype=dtype)

    @contextlib.contextmanager
    def only(self, role: str) -> Iterator[None]:
        """Within the block the weights of ``role`` alone require gradients: what another role
        computes in there costs no gradient of its weights. `update` is right without it."""
        own, others = self._split(role)
        with only_trained(own, others):
            yield

    def update(self, role: str, loss: Tensor) -> bool:
        """Backward from ``loss`` into the weights of ``role`` alone; at the last of
        ``updates.accumulate_grad_batches`` passes clip, step, and move the learning rate on.
        Returns whether the weights were updated.

        For stages of several trained roles. The gradients that other roles accumulate stay.
        """
        own, others = self._split(role)
        with gradients_kept(others):
            self.manual_backward(loss / self.updates.accumulate_grad_batches)
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

    @property
    def gradients_wait(self) -> bool:
        """Whether some role has made passes whose update is still to come."""
        return any(num % self.updates.accumulate_grad_batches for num in self.num_backward.values())

    def num_updates(self, role: str) -> int:
        """How often the weights of ``role`` were updated, in this run and those it goes on from."""
        return self.num_backward[role] // self.updates.accumulate_grad_batches

    def optimizer_step(self, *args: Any, **kwargs: Any) -> None:
        """Lightning calls this for the update of a stage with one trained role."""
        super().optimizer_step(*args, **kwargs)
        self.step += 1

    def parameters_of(self, role: str) -> list[nn.Parameter]:
        """The trained weights of ``role``."""
        return [self.get_parameter(name) for name in self._names[role]]

    def averaged_names(self) -> tuple[str, ...]:
        """Names of the weights of which callbacks/ema.py keeps an average, alike on all ranks."""
        roles = self.roles()
        return tuple(n for role, ns in self._names.items() if roles[role].ema for n in ns)

    def exported_modules(self) -> tuple[str, ...]:
        """Names of the modules that callbacks/record.py writes at the end."""
        return next(role.modules for role in self.roles().values() if role.export)

    def role_optimizers(self) -> dict[str, LightningOptimizer]:
        """The optimiser of every trained role."""
        found = self.optimizers()
        found = found if isinstance(found, list) else [found]
        return dict(zip(self._names, found, strict=True))  # pyright: ignore[reportReturnType]

    def on_save_checkpoint(self, checkpoint: dict[str, Any]) -> None:
        every = self.updates.accumulate_grad_batches  # a checkpoint holds no gradients
        whole = {role: num - num % every for role, num in self.num_backward.items()}
        checkpoint[COUNTERS] = {"step": self.step, "num_backward": whole}

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

    @property
    def layout(self) -> Layout:
        """The place of this rank among all."""
        return layout_of(self._trainer)

    def configure_optimizers(self):
        """One optimiser with its schedule for every trained role, in the order of ``roles``."""
        num_steps, configured = int(self.trainer.estimated_stepping_batches), []
        for name, role in self.roles().items():
            if role.optim is None:
                continue
            optimizer = build_optimizer(self, role.optim, self._names[name])
            schedule = warmup_cosine(optimizer, role.optim, num_steps * role.updates_per_step)
            configured.append(
                {
                    "optimizer": optimizer,
                    "lr_scheduler": {"scheduler": schedule, "interval": "step"},
                }
            )
        return configured[0] if len(configured) == 1 else configured

    def _split(self, role: str) -> tuple[list[nn.Parameter], list[nn.Parameter]]:
        """The trained weights of ``role``, and those of all other roles."""
        others = [p for other in self._names if other != role for p in self.parameters_of(other)]
        return self.parameters_of(role), others


def step_of(trainer: L.Trainer, module: L.LightningModule) -> int:
    """Steps that a run has made: a stage counts them itself, and the trainer those of modules of
    one optimiser."""
    return module.step if isinstance(module, RoleModule) else trainer.global_step


def set_aside(module: nn.Module, *names: str) -> None:
    """Make these parts plain attributes: they are still there by their names, and nothing moves,
    shards, averages or stores them with ``module``."""
    for name in names:
        part = module.get_submodule(name)
        delattr(module, name)
        module.__dict__[name] = part


def keep_frozen_out_of_checkpoints(module: nn.Module) -> None:
    """Checkpoints hold what is trained. Frozen weights (VAE, full-size encoders) come from their
    folders; every other missing or unexpected key stays an error."""
    frozen = {name for name, p in module.named_parameters() if not p.requires_grad}

    def drop(_module, state_dict, prefix, _metadata) -> None:
        for name in frozen:
            state_dict.pop(prefix + name, None)

    def allow(_module, incompatible) -> None:
        missing = [key for key in incompatible.missing_keys if key not in frozen]
        incompatible.missing_keys[:] = missing

    module.register_state_dict_post_hook(drop)
    module.register_load_state_dict_post_hook(allow)
