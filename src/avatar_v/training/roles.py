"""Roles: the sets of weights that a stage trains or only reads, and what is done with each.

A stage of one trained role leaves its update to Lightning. A stage of several (student and
discriminator, student and fake score) makes each update itself with `Engine.update`, because the
trainer then neither clips nor accumulates gradients. A step of the stage is an update of the
student, however many updates the other roles make.
"""

import contextlib
import copy
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import TypeVar

import torch
from torch import Tensor, nn

from avatar_v.base import checks
from avatar_v.training.optim import MAX_LR, Optim

Network = TypeVar("Network", bound=nn.Module)
STUDENT = "student"
"""The role whose updates are the steps of a stage. Every stage has it."""


@dataclass(frozen=True)
class Role:
    """One set of weights of a stage.

    A trained role owns what requires a gradient in its modules once `Engine.select_trainable` ran;
    with an ``adapter`` only the LoRA factors of that name, so that several roles share one base.
    """

    modules: tuple[str, ...]  # names of attributes of the stage
    optim: Optim | None = None  # None: the weights are only read, and stay frozen
    ema: bool = False  # its weights are averaged (callbacks/ema.py)
    export: bool = False  # it is what the stage writes at the end (callbacks/record.py)
    shard: bool = True  # sharded under FSDP2; False: whole on every rank, its gradients averaged
    adapter: str | None = None
    gradient_clip: float | None = None  # largest norm of its gradient, in stages of several roles
    updates_per_step: int = 1  # how many updates its learning rate's schedule expects of a step

    def __post_init__(self) -> None:
        if not self.modules:
            raise ValueError("a role has modules")
        if self.optim is None and self.ema:
            raise ValueError(f"{self.modules} are frozen: an average of them changes nothing")
        if self.gradient_clip is not None:
            checks.positive("gradient_clip", self.gradient_clip)
        checks.count("updates_per_step", self.updates_per_step)

    @property
    def trainable(self) -> bool:
        return self.optim is not None


@dataclass(frozen=True)
class Updates:
    """How a stage of several roles updates them, in place of the trainer's options."""

    accumulate_grad_batches: int = 1  # backward passes of a role before each of its updates
    gradient_clip_val: float | None = None  # largest norm of the student's gradient

    def __post_init__(self) -> None:
        checks.count("accumulate_grad_batches", self.accumulate_grad_batches)
        if self.gradient_clip_val is not None:
            checks.positive("gradient_clip_val", self.gradient_clip_val)


def copy_network(network: Network, *, shared: bool) -> Network:
    """Another network with the weights of ``network``. With ``shared`` they lie in the same memory,
    so it is for networks that FSDP2 shards before anything is trained: shards are copies."""
    memo: dict[int, Tensor] = {}
    if shared:
        for p in network.parameters():
            memo[id(p)] = nn.Parameter(p.detach(), requires_grad=p.requires_grad)
        memo |= {id(buffer): buffer for buffer in network.buffers()}
    return copy.deepcopy(network, memo)


def check_roles(roles: Mapping[str, Role]) -> None:
    """ValueError unless there is a trained student, one role is written at the end, and none but
    the student is averaged: callbacks/ema.py goes by its updates."""
    if STUDENT not in roles or not roles[STUDENT].trainable:
        raise ValueError(f"a stage trains a role {STUDENT!r}, got {sorted(roles)}")
    exported = [name for name, role in roles.items() if role.export]
    if len(exported) != 1:
        raise ValueError(f"a stage exports one role, got {exported}")
    others = [name for name, role in roles.items() if role.ema and name != STUDENT]
    if others:
        raise ValueError(f"averages are of the student alone, got {others}")


def freeze_readers(stage: nn.Module, roles: Mapping[str, Role]) -> None:
    """Weights of roles that are only read need no gradient."""
    for role in roles.values():
        if not role.trainable and role.adapter is None:
            for module in role.modules:
                stage.get_submodule(module).requires_grad_(False)


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


def trained_names(stage: nn.Module, roles: Mapping[str, Role]) -> dict[str, tuple[str, ...]]:
    """Names of the parameters of every trained role. ValueError for a parameter that requires a
    gradient and belongs to no role or to two, and for a role without parameters."""
    owners: dict[str, list[str]] = {
        name: [] for name, p in stage.named_parameters() if p.requires_grad
    }
    for role_name, role in roles.items():
        for name in owners:
            if role.trainable and _owns(role, name):
                owners[name].append(role_name)
    wrong = {name: found for name, found in owners.items() if len(found) != 1}
    if wrong:
        name, found = next(iter(wrong.items()))
        raise ValueError(f"{name} and {len(wrong) - 1} more belong to the roles {found or 'none'}")
    names: dict[str, tuple[str, ...]] = {}
    for role_name, role in roles.items():
        if role.trainable:
            names[role_name] = tuple(n for n, (owner,) in owners.items() if owner == role_name)
            if not names[role_name]:
                raise ValueError(f"nothing to optimise: the role {role_name} has no parameter")
    return names


def _owns(role: Role, name: str) -> bool:
    inside = any(name.startswith(f"{module}.") for module in role.modules)
    return inside and (role.adapter is None or f".{role.adapter}." in name)


@contextlib.contextmanager
def only_trained(own: Iterable[nn.Parameter], others: Iterable[nn.Parameter]) -> Iterator[None]:
    """Within the block ``own`` parameters require gradients and ``others`` do not."""
    own, others = list(own), list(others)
    before = [(p, p.requires_grad) for p in (*own, *others)]
    for parameter in own:
        parameter.requires_grad_(True)
    for parameter in others:
        parameter.requires_grad_(False)
    try:
        yield
    finally:
        for parameter, required in before:
            parameter.requires_grad_(required)


@contextlib.contextmanager
def gradients_kept(others: Iterable[nn.Parameter]) -> Iterator[None]:
    """A backward pass within the block leaves the gradients of ``others`` as they were."""
    kept: list[tuple[nn.Parameter, Tensor | None]] = [(p, p.grad) for p in others]
    for parameter, _ in kept:
        parameter.grad = None
    try:
        yield
    finally:
        for parameter, gradient in kept:
            parameter.grad = gradient


def average_gradients(parameters: Iterable[nn.Parameter]) -> None:
    """The mean over all ranks, for weights that are whole on every rank."""
    num_ranks = torch.distributed.get_world_size()
    for parameter in parameters:
        if parameter.grad is not None:
            torch.distributed.all_reduce(parameter.grad)
            parameter.grad /= num_ranks


def constant(lr: float, betas: tuple[float, float]) -> Optim:
    """Adam at one learning rate, as adversaries are trained: without warm-up, cosine and decay."""
    checks.positive("lr", lr, most=MAX_LR)
    return Optim(lr, num_warmup_steps=0, final_lr_share=1.0, weight_decay=0.0, betas=betas)


def whole_pipeline(optim: Optim) -> dict[str, Role]:
    """The DiT and its conditioner as the student alone."""
    return {STUDENT: Role(("dit", "conditioner"), optim, ema=True, export=True)}
