"""A plan: the memory of each GPU, part by part, and the work of a step.

What stays is counted from the stage's own networks and roles: weights in fp32, gradients, the
states of its optimisers, averages, sharded or whole as parallel/apply.py does it. What a stage
keeps in main memory (objectives/motion_prior.py) is left out. What comes and goes is measured by
running the stage's own step on tensors that have no memory (planning/step.py).
Gathered shards are computed: FSDP2 holds the weights of two blocks and the gradient of one, and
what is no block stays gathered between passes; the encoders are put back into shards before the
DiT runs.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from avatar_v.base.video_format import VideoFormat
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.parallel.apply import shard_units, sharded_parts
from avatar_v.parallel.mesh import Layout
from avatar_v.planning.batches import Clips
from avatar_v.planning.measure import Number, as_on_gpus
from avatar_v.planning.networks import build_networks
from avatar_v.planning.recipe import Recipe, Spread
from avatar_v.planning.step import step_cost
from avatar_v.training.engine import Engine, subject_of, trains_clips
from avatar_v.training.optim import hidden_matrices
from avatar_v.training.subject import token_side
from avatar_v.types import num_frames

GIB = 2**30
FULL, HALF = 4, 2  # bytes of a number


@dataclass(frozen=True)
class Plan:
    """Of one recipe on so many ranks."""

    parts: Mapping[str, Number]  # bytes of each GPU, by what they hold
    num_trained: int
    num_parameters: int
    num_tokens: Number  # of the generated stream in a step of all ranks
    flops: Number  # of one GPU in a step
    clips_per_step: int
    window: int
    video: VideoFormat | None  # None where no picture is made

    @property
    def total(self) -> Number:
        return sum(self.parts.values())


def plan_of(
    recipe: Recipe,
    clips: Clips,
    spread: Spread,
    *,
    checkpoints: bool | None = None,
    lora: bool = False,
    with_time: bool = True,
) -> Plan:
    """The plan of a recipe that trains a DiT or a motion network. Without ``with_time`` its
    operations are left out, which takes half the time."""
    stage = recipe.fresh_stage(checkpoints=checkpoints, lora=lora)
    build_networks(stage)
    on_cpu = recipe.trainer["accelerator"] == "cpu"
    with contextlib.nullcontext() if on_cpu else as_on_gpus():
        return _plan(stage, recipe, clips, spread, with_time=with_time)


def _plan(stage: Engine, recipe: Recipe, clips: Clips, spread: Spread, *, with_time: bool) -> Plan:
    clips = replace(clips, video=_largest(stage, recipe, clips))
    makes_video = any(isinstance(module, AvatarDiT) for module in stage.modules())
    if makes_video:
        clips.video.require_multiples(token_side(stage))
    parts = dict(_staying(stage, recipe, spread))
    num_trained = sum(p.numel() for p in stage.parameters() if p.requires_grad)
    num_parameters = _num_parameters(stage)
    cost = step_cost(stage, recipe, clips, spread, with_time=with_time)
    groups = spread.layout.num_data_ranks * cost.batches_per_step
    return Plan(
        parts={**parts, "activations": cost.peak, "batch": cost.batch_bytes},
        num_trained=num_trained,
        num_parameters=num_parameters,
        num_tokens=groups * cost.num_tokens,
        flops=cost.flops * cost.batches_per_step,
        clips_per_step=round(groups * clips.batch_size),
        window=longest_window(recipe),
        video=clips.video if makes_video else None,
    )


def _staying(stage: Engine, recipe: Recipe, spread: Spread) -> Iterator[tuple[str, float]]:
    """What each rank holds from step to step, in bytes."""
    sharded = _sharded(stage, spread)
    names = {id(p): name for name, p in stage.named_parameters()}
    hidden = hidden_matrices(stage)
    roles = stage.roles()
    whose = {
        id(parameter): role
        for name, role in roles.items()
        if role.trainable
        for parameter in stage.role_parameters(name)
    }
    weights = dict.fromkeys(("trained weights", "frozen weights", "frozen encoders and VAE"), 0.0)
    gradients = states = averages = 0.0
    averaged = set(stage.averaged_names()) if recipe.averages else set()
    for parameter in stage.parameters():
        name = names[id(parameter)]
        size = FULL * parameter.numel() / (spread.shards if id(parameter) in sharded else 1)
        if not parameter.requires_grad:
            kind = (
                "frozen encoders and VAE" if name.startswith("conditioner.") else "frozen weights"
            )
            weights[kind] += size
            continue
        weights["trained weights"] += size
        gradients += size
        optim = whose[id(parameter)].optim
        is_muon = name in hidden and optim is not None and optim.hidden == "muon"
        states += size if is_muon else 2 * size
        averages += size if name in averaged else 0
    yield from weights.items()
    yield "gradients", gradients
    yield "optimiser states", states
    yield "averages", averages
    if spread.kind == "ddp":
        yield "buckets of DDP", gradients
    if spread.kind != "fsdp" and recipe.bf16:
        yield "copies in bf16", _copied(stage)
    if spread.kind == "fsdp":
        yield "gathered weights and gradients", _gathered(stage, bf16=recipe.bf16)


def _copied(stage: Engine) -> int:
    """Autocast keeps a copy of every weight of a network that is trained, until a step ends."""
    names = {name for role in stage.roles().values() if role.trainable for name in role.modules}
    networks = [stage.get_submodule(name) for name in sorted(names)]
    parts = [p for n in networks for p in (n.children() if isinstance(n, Conditioner) else [n])]
    trained = [part for part in parts if any(p.requires_grad for p in part.parameters())]
    return HALF * sum(p.numel() for p in {p: None for part in trained for p in part.parameters()})


def _sharded(stage: Engine, spread: Spread) -> set[int]:
    """Ids of the parameters that parallel/apply.shard shards."""
    if spread.kind != "fsdp":
        return set()
    found: set[int] = set()
    for module in _sharded_modules(stage):
        found |= {id(p) for p in module.parameters()}
    return found


def _sharded_modules(stage: Engine) -> list[nn.Module]:
    names = {name for role in stage.roles().values() if role.shard for name in role.modules}
    found = []
    for name in sorted(names):
        if name == "conditioner":
            found += sharded_parts(stage.conditioner)
        else:
            found.append(stage.get_submodule(name))
    return found


def _gathered(stage: Engine, *, bf16: bool) -> Number:
    """The most bytes that FSDP2 has gathered at once.

    Of what is trained that is everything around the blocks, which stays, the weights of two blocks,
    and the gradient of one with its sum in fp32. Encoders run before that, without gradients.
    """
    size = HALF if bf16 else FULL
    largest = around = passing = 0.0
    encoders = set(stage.conditioner.children()) - {stage.conditioner.motion_net}
    for module in _sharded_modules(stage):
        *blocks, _ = ([p.numel() for p in unit.parameters()] for unit in shard_units(module))
        sizes = [sum(block) for block in blocks]
        rest, most = sum(p.numel() for p in module.parameters()) - sum(sizes), max(sizes, default=0)
        if module in encoders:  # they are read before the others, and gathered no longer than that
            passing = max(passing, size * (rest + 2 * most))
            continue
        largest, around = max(largest, most), around + size * rest  # stays once it was read
    return max(passing, around + largest * (3 * size + FULL))


def longest_window(recipe: Recipe) -> int:
    """Latents of the longest window that the run draws."""
    assert trains_clips(recipe.model)
    return max(_reached(recipe, subject_of(recipe.model).objective.window_latents))


def left_bytes(recipe: Recipe) -> tuple[Number, Number]:
    """Of one checkpoint: what is trained, the states of its optimisers and its average. And of the
    weights that a run leaves, at most: encoders may be stored in fewer than 32 bits, and one that
    training leaves out is stored too."""
    stage = recipe.fresh_stage()
    subject = subject_of(stage)
    subject.models = replace(subject.models, stored_text=False)
    build_networks(stage)
    staying = dict(_staying(stage, recipe, Spread("alone", Layout())))
    kept = ("trained weights", "optimiser states", "averages")
    return sum(staying[name] for name in kept), FULL * _num_parameters(stage)


def _num_parameters(stage: Engine) -> int:
    """Of all networks, also of those that a stage keeps in main memory."""
    made = stage.conditioner
    networks = (stage, stage.dit, made.vae, made.text_encoder)
    return sum(p.numel() for p in {p: None for net in networks for p in net.parameters()})


def _reached(recipe: Recipe, schedule: Mapping[int, Any]) -> list[Any]:
    """The values of a schedule that the run comes to."""
    steps = recipe.trainer["max_steps"]
    return [value for at, value in schedule.items() if at < steps or steps < 0]


def _largest(stage: Engine, recipe: Recipe, clips: Clips) -> VideoFormat:
    """The largest pictures of the run."""
    return clips.video.scaled(max(_reached(recipe, subject_of(stage).objective.resolution)))


def frames_of(recipe: Recipe) -> int:
    """Frames of the shortest clips that a recipe takes."""
    assert trains_clips(recipe.model)
    return num_frames(subject_of(recipe.model).longest_window(recipe.trainer["max_steps"]))
