"""A plan: the memory of each GPU, part by part, and the work of a step.

What stays is counted from the stage's own networks and roles: weights in fp32, gradients, the
states of its optimisers, averages, sharded or whole as parallel/apply.py does it. What a stage
keeps in main memory (objectives/motion_prior.py) is left out. What comes and goes is measured by
running the networks on tensors of the true shapes that have no memory (planning/measure.py).
Gathered shards are computed: FSDP2 holds the weights of two blocks and the gradient of one, and
what is no block stays gathered between passes; the encoders are put back into shards before the
DiT runs.
"""

import contextlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from torch import nn

from avatar_v.models.dit import AvatarDiT
from avatar_v.models.motion_net import MotionNet
from avatar_v.objectives.align_grpo import AlignGRPO
from avatar_v.objectives.align_video_dpo import AlignVideoDPO
from avatar_v.objectives.distill_dmd import DistillDMD
from avatar_v.objectives.distill_motion import DistillMotion
from avatar_v.objectives.self_forcing import SelfForcing
from avatar_v.parallel.apply import shard_units, sharded_parts
from avatar_v.parallel.mesh import Layout
from avatar_v.planning.encoders import audio_flops, encoders_cost, text_flops, video_cost
from avatar_v.planning.measure import Cost, Number, as_on_gpus
from avatar_v.planning.networks import build_networks
from avatar_v.planning.passes import MotionPass, Pass, num_tokens, pass_cost, reference_bytes
from avatar_v.planning.recipe import Recipe, Spread
from avatar_v.planning.steps import Clips, Repeated, passes_of
from avatar_v.training.engine import Engine, subject_of, trains_clips
from avatar_v.training.motion import MotionSubject
from avatar_v.training.optim import hidden_matrices
from avatar_v.training.subject import token_side
from avatar_v.types import FRAME_RATE_HZ, num_frames

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
    size: int  # pixels; 0 where no picture is made

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
    window, size = _largest(stage, recipe, clips)
    if size % token_side(stage) and not isinstance(stage.subject, MotionSubject):
        raise ValueError(
            f"the side of the pictures is a multiple of {token_side(stage)}, got {size}"
        )
    clips = Clips(clips.batch_size, clips.num_frames, size)
    meter = _Meter(stage, recipe, spread)
    judged = isinstance(stage, AlignVideoDPO)  # it encodes the beginnings of two videos
    twice = judged or recipe.data.pairs
    encoded = replace(clips, num_frames=num_frames(window)) if judged else clips
    video = judged or (recipe.data.decode_video and not isinstance(stage.subject, MotionSubject))
    seen = video_cost(stage.conditioner.vae, encoded, bf16=recipe.bf16) if video else None
    parts = dict(_staying(stage, recipe, spread))
    longest = passes_of(stage, clips, window, longest=True)
    beside = encoders_cost(stage, clips, window, bf16=recipe.bf16)
    parts["activations"] = max(
        *(meter.peak(found) + beside.saved for found in longest),
        0 if seen is None else seen.peak,
        beside.peak,
    )
    parts["batch"] = _batch_bytes(stage, clips, video=video, pairs=twice)
    shared = own = 0.0  # of a sequence group together; of each rank, which encodes for itself
    if with_time:
        usual = passes_of(stage, clips, window, longest=False)
        shared = sum(found.times * meter.cost(found).flops for found in usual)
        own = beside.flops + (text_flops(stage) + audio_flops(stage, clips)) * clips.batch_size
        own += 0 if seen is None else seen.flops * (2 if twice else 1)
    batches = _batches(stage, recipe)
    groups = spread.layout.num_data_ranks * batches
    return Plan(
        parts=parts,
        num_trained=sum(p.numel() for p in stage.parameters() if p.requires_grad),
        num_parameters=_num_parameters(stage),
        num_tokens=groups * _tokens(stage, longest[-1]),
        flops=(shared / spread.layout.sequence_size + own) * batches,
        clips_per_step=groups * clips.batch_size,
        window=window,
        size=0 if isinstance(longest[-1].of, MotionPass) else size,
    )


class _Meter:
    """Costs of passes; those of equal networks are measured once."""

    def __init__(self, stage: Engine, recipe: Recipe, spread: Spread) -> None:
        self.stage, self.bf16, self.spread = stage, recipe.bf16, spread
        self._known: dict[object, Cost] = {}

    def cost(self, found: Repeated) -> Cost:
        network = self.network(found.network)
        names = (name for name, p in network.named_parameters() if p.requires_grad)
        trained = tuple(names) if found.of.trains else ()
        key = (network.config, found.of, trained)
        if key not in self._known:
            self._known[key] = pass_cost(
                network,
                found.of,
                bf16=self.bf16,
                checkpoints=subject_of(self.stage).models.checkpoint_activations,
                cast=self.spread.kind == "fsdp",
            )
        return self._known[key]

    def peak(self, found: Repeated) -> Number:
        """Bytes of a rank of a sequence group, with the keys of a reference that take no gradient:
        those of its heads."""
        peak, network = self.cost(found).peak, self.network(found.network)
        if isinstance(found.of, Pass) and not (found.of.encodes and found.of.through):
            assert isinstance(network, AvatarDiT)
            peak += reference_bytes(network, found.of, bf16=self.bf16)
        return peak / self.spread.layout.sequence_size

    def network(self, name: str) -> AvatarDiT | MotionNet:
        network = self.stage.get_submodule(name)
        assert isinstance(network, AvatarDiT | MotionNet)
        return network


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
    if spread.kind == "fsdp":
        yield "gathered weights and gradients", _gathered(stage, bf16=recipe.bf16)


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
    weights that a run leaves, at most: encoders may be stored in fewer than 32 bits."""
    stage = recipe.fresh_stage()
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


def _largest(stage: Engine, recipe: Recipe, clips: Clips) -> tuple[int, int]:
    """The longest window and the largest picture of the run."""
    shares = _reached(recipe, subject_of(stage).objective.resolution)
    return longest_window(recipe), round(clips.size * max(shares))


def _batches(stage: Engine, recipe: Recipe) -> int:
    """Batches of a step of the student."""
    if stage.automatic_optimization:
        return int(recipe.trainer["accumulate_grad_batches"])
    batches = stage.updates.accumulate_grad_batches
    if isinstance(stage, DistillDMD | SelfForcing):
        return batches * stage.matching.numbers.fake_updates
    if isinstance(stage, DistillMotion):
        return batches * stage.matching.fake_updates
    if isinstance(stage, AlignGRPO):  # it counts each noisy step of a rollout
        return batches // stage.exploration.window
    return batches


def _tokens(stage: Engine, found: Repeated) -> int:
    if isinstance(found.of, MotionPass):
        return found.of.samples * found.of.latents
    network = stage.get_submodule(found.network)
    assert isinstance(network, AvatarDiT)
    return num_tokens(network, found.of)


def _batch_bytes(stage: Engine, clips: Clips, *, video: bool, pairs: bool) -> Number:
    """Pictures or latents of a batch, and its sound, in fp32; twice with references."""
    if isinstance(stage.subject, MotionSubject):
        pictures = 0.0
    elif video:
        pictures = clips.num_frames * 3 * clips.size**2
    else:
        vae = stage.conditioner.vae
        pictures = clips.latents * vae.latent_channels * (clips.size // vae.spatial_factor) ** 2
    sound = 16_000 * clips.num_frames / FRAME_RATE_HZ
    return FULL * clips.batch_size * (pictures + sound) * (2 if pairs else 1)


def frames_of(stage: Engine, window: int) -> int:
    """Frames of the shortest clips that a stage takes."""
    window = subject_of(stage).windows.longest(window)
    return num_frames(window)
