"""The work of the ranks in numerics/test_sequence.py: one set of processes measures everything.

Rank 0 computes each case alone, too, and keeps the largest difference by name.
"""

import contextlib
import copy
import dataclasses
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

from avatar_v.models.attention import attend_self
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.vae import VideoVAE
from avatar_v.models.vae_config import VAEConfig
from avatar_v.models.vae_network import VAENetwork
from avatar_v.parallel import exchange, sequence
from avatar_v.parallel.mesh import Layout
from avatar_v.parallel.sequence import SequenceGroup, sequence_mesh, spread
from avatar_v.parallel.strips import StripDecoder, Strips
from avatar_v.parallel.traffic import sent_elements
from avatar_v.sampling.guidance import guided
from avatar_v.types import Cond
from avatar_v_eval.speed.exchange import Links, SimulatedLinks
from forked import spawn
from random_models import make_cond, make_dit, make_reference

NUM_FRAMES, HEIGHT, WIDTH = 3, 6, 10
"""15 tokens a frame, 45 in all: no number of ranks divides them."""


def config(num_heads: int, **changes: Any) -> DiTConfig:
    sizes = DiTConfig(
        dim=6 * num_heads, num_heads=num_heads, num_layers=2, ffn_dim=32, latent_channels=4,
        text_dim=8, audio_dim=8, freq_dim=16, motion_dim=64,
    )  # fmt: skip
    return dataclasses.replace(sizes, **changes)


def inputs(dit: AvatarDiT, *, seed: int, keep: bool = True) -> tuple[Tensor, Tensor, Cond]:
    """Two samples with text, audio, motion, references of unequal length and a face; the second
    may be without."""
    generator = torch.Generator().manual_seed(seed)
    c = dit.config
    valid = torch.ones(2, 3, dtype=torch.bool)
    valid[1, 2] = False
    reference = make_reference(
        c, valid, size=4, seed=seed, has_motion=True, faces_valid=torch.ones(2, 1, dtype=torch.bool)
    )
    cond = make_cond(c, 2, NUM_FRAMES, seed=seed, reference=reference)
    x = torch.randn(2, NUM_FRAMES, c.latent_channels, HEIGHT, WIDTH, generator=generator)
    changes: dict[str, Any] = {
        "motion": torch.randn(2, NUM_FRAMES, c.motion_dim, generator=generator),
        "reference_keep": torch.tensor([True, keep]),
    }
    if c.reads_low:
        changes["low"] = torch.randn(x.shape, generator=generator)
    t = torch.rand(2, NUM_FRAMES, generator=generator)
    return x, t, dataclasses.replace(cond, **changes)


def velocity(dit: AvatarDiT, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
    assert cond.reference is not None
    past = dit.encode_reference(cond.reference)
    assert past is not None
    return dit(x, t, cond, past=past.rotated())


class Sent(TorchDispatchMode):
    """Counts the elements that this rank gives to others."""

    def __init__(self) -> None:
        super().__init__()
        self.num = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        self.num += sent_elements(func, args)
        return func(*args, **(kwargs or {}))


def difference(a: Tensor, b: Tensor) -> float:
    """The largest difference beside the largest value."""
    return float((a - b).abs().max() / b.abs().max())


def tells(layout: Layout) -> bool:
    """Whether this rank says how far it is from the network alone, and so computes that."""
    return layout.rank == 0


def compare(dit: AvatarDiT, alone: AvatarDiT, layout: Layout, *, keep: bool) -> dict[str, Any]:
    """Velocity and gradients of a spread DiT against the same DiT on one rank. Each data rank has
    its own batch; gradients are averaged over its sequence group as data parallelism does."""
    x, t, cond = inputs(dit, seed=layout.data_rank, keep=keep)
    models = (dit, alone)[: 1 + tells(layout)]
    videos = [velocity(model, x, t, cond) for model in models]
    weight = torch.randn(videos[0].shape, generator=torch.Generator().manual_seed(1))
    for model, v in zip(models, videos, strict=True):
        model.zero_grad()
        (v * weight).sum().backward()
    worst, parts = 0.0, []
    for (name, p), q in zip(alone.named_parameters(), dit.parameters(), strict=True):
        grads = [torch.zeros_like(p) for _ in range(layout.world_size)]
        dist.all_gather(grads, torch.zeros_like(p) if q.grad is None else q.grad)
        if not tells(layout):
            continue
        if p.grad is None:
            assert not any(grad.any() for grad in grads), name
            continue
        mine = torch.stack([grads[rank] for rank in layout.sequence_group]).mean(0)
        off, size = float((mine - p.grad).norm()), float(p.grad.norm())
        parts.append((off, size))
        worst = max(worst, off / size if size > 1e-4 else off)
    if not tells(layout):
        return {}
    off, size = torch.tensor(parts).norm(dim=0).tolist()
    return {
        "velocity": difference(videos[0].detach(), videos[1].detach()),
        "gradient": off / size,
        "worst gradient": worst,
    }


def attention(group: SequenceGroup) -> dict[str, Any]:
    """One self-attention of 2 samples of 3 x 16 tokens: the elements sent, forward and backward,
    without and with extra keys; and how far its outputs are from those of one rank."""
    heads, width = group.num_heads, 6
    shares, generator = group.of(3, 16, keep_keys=False), torch.Generator().manual_seed(0)
    whole = torch.randn(3, 2, 3, 16, heads * width, generator=generator)
    rotary = torch.nn.functional.normalize(torch.randn(48, 1, 3, 2, generator=generator), dim=-1)
    extra = torch.randn(2, 2, 7, heads, width, generator=generator).unbind(0)

    def split(x: Tensor) -> Tensor:
        return x.flatten(1, 2).unflatten(-1, (heads, width)).requires_grad_()

    query, key, value = (split(shares.own(x)) for x in whole)
    results: dict[str, Any] = {}
    own_extra = (group.own_heads(extra[0]), group.own_heads(extra[1]))
    for name, others in (("without", None), ("with", own_extra)):
        with Sent() as forward:
            y, _ = shares.attend_video(query, key, value, rotary, extra=others)
        with Sent() as backward:
            y.sum().backward()
        results[name] = (forward.num, backward.num)
    query, key, value = (split(x) for x in whole)
    want, _ = attend_self(query, key, value, rotary, extra=(extra[0], extra[1]))
    want = shares.own(want.detach().unflatten(1, (3, 16)).flatten(3)).flatten(1, 2)
    results["error"] = float((y.detach().flatten(2) - want).abs().max())
    return results


CASES: tuple[tuple[int, int, dict[str, Any], bool], ...] = (
    (8, 1, {}, True),
    (8, 2, {}, False),
    (8, 4, {}, True),
    (8, 8, {}, True),
    (12, 8, {}, False),  # Ulysses 4 x ring 2
    (2, 8, {}, True),  # 2 x 4
    (3, 4, {}, True),  # 1 x 4
    (8, 4, {"temporal_window": 1, "refines_from": 0.6}, True),
    (12, 8, {"temporal_window": 1, "refines_from": 0.6}, False),
)
"""Heads, ranks, changes of the config (a refiner with its local window), and whether all samples
keep their reference."""


DEEP = ((8, 8), (12, 8), (3, 4))
"""Heads and ranks of those that are computed with guidance, in bf16 and as a stream: Ulysses, a
ring, and both."""
WAYS = ("asynchronous", "tiled:1", "tiled:3")
"""Exchanges that have to give what blocking ones give; tiles of 3 are of 4 heads or of all of 2."""
OVERLAPPED = ((8, 2, False), (8, 4, True), (12, 8, True))
"""Of `CASES` those that are computed with each of them: heads, ranks, and whether by a refiner."""


def same_bits(dit: AvatarDiT, layout: Layout) -> dict[str, Any]:
    """By way of exchanging: whether velocity and gradients are those of blocking exchanges, bit for
    bit, over links of some speed, with latency and jitter; and the calls of each. (Heads that are
    not of whole registers are rounded in another order where they do not begin at one.)"""
    group = dit.spread
    assert isinstance(group, SequenceGroup)
    x, t, cond = inputs(dit, seed=layout.data_rank)
    inner, wanted, found = group.transport, list[Tensor](), dict[str, Any]()
    for way in ("blocking", *WAYS):
        links = SimulatedLinks(
            inner, group.ulysses.get_group(), Links(1e7, 1e-4, 1e-3), layout.rank
        )
        group.transport = links
        dit.zero_grad()
        with exchange.using(way), calls_of(dit, links.calls):
            v = velocity(dit, x, t, cond)
            forward = len(links.calls)
            v.square().sum().backward()
        got = [v.detach(), *(p.grad for p in dit.parameters() if p.grad is not None)]
        wanted = wanted or got
        found[way] = len(got) > 50 and all(map(torch.equal, got, wanted))
        found[f"calls {way}"] = links.calls[:forward], links.calls[forward:]
    group.transport = inner
    return found


@contextlib.contextmanager
def calls_of(dit: AvatarDiT, calls: list[str]) -> Iterator[None]:
    """Within the block the projections of the video in the first block are noted in ``calls``, and
    the attention of each tile."""
    attention = dit.blocks[0].get_submodule("self_attention")
    attend, hooks = sequence.attend_rotated, []
    for name in ("query", "key", "value", "out"):
        module = attention.get_submodule(name)
        hooks.append(module.register_forward_hook(lambda *_, name=name: calls.append(name)))

    def noted(*args: Any) -> Any:
        calls.append("attend")
        return attend(*args)

    sequence.attend_rotated = noted
    try:
        yield
    finally:
        sequence.attend_rotated = attend
        for hook in hooks:
            hook.remove()


def case_name(num_heads: int, size: int, changes: dict[str, Any]) -> str:
    return f"{num_heads} heads on {size}" + (", refiner" if changes else "")


def work(rank: int, world_size: int, folder: Path) -> None:
    torch.set_num_threads(1)
    place = (folder / "store").as_uri()
    dist.init_process_group("gloo", init_method=place, rank=rank, world_size=world_size)
    found: dict[str, Any] = {}
    for num_heads, size, changes, keep in CASES:
        layout = Layout(world_size, rank, size)
        dit, alone = (make_dit(config(num_heads, **changes)) for _ in range(2))
        spread(dit, sequence_mesh(layout, num_heads, "cpu"))
        assert isinstance(dit.spread, SequenceGroup)
        name = case_name(num_heads, size, changes)
        found[name] = compare(dit, alone, layout, keep=keep)
        if not changes:
            found[name] |= attention(dit.spread) | more(dit, alone, layout)
        if (num_heads, size, bool(changes)) in OVERLAPPED:
            wide = make_dit(config(num_heads, dim=16 * num_heads, **changes))
            spread(wide, sequence_mesh(layout, num_heads, "cpu"))
            found[name] |= same_bits(wide, layout)
        if (num_heads, size, changes) == (8, 4, {}):
            found[name]["chosen"] = chosen(dit.spread)
    found["strips"] = strips()
    if rank == 0:
        torch.save(found, folder / "found.pt")
    dist.barrier()
    dist.destroy_process_group()


@torch.inference_mode()
def more(dit: AvatarDiT, alone: AvatarDiT, layout: Layout) -> dict[str, Any]:
    """Guidance's batched passes, bf16, a stream with its own keys, and the reference's traffic."""
    x, t, cond = inputs(dit, seed=layout.data_rank)
    cond = dataclasses.replace(cond, reference_keep=None)
    assert cond.reference is not None
    results: dict[str, list[Tensor]] = {"guided": [], "bf16": [], "stream": []}
    with Sent() as sent:
        cache = dit.encode_reference(cond.reference)
    assert cache is not None
    counted = {"reference sent": sent.num, "heads kept": cache.layers[0][0].shape[2]}
    assert isinstance(dit.spread, SequenceGroup)
    if (dit.config.num_heads, layout.sequence_size) not in DEEP:
        return counted
    for model in (dit, alone)[: 1 + tells(layout)]:
        past = model.encode_reference(cond.reference)
        fn = guided(
            model, cond, text=2.0, audio=3.0, reference=1.5,
            no_text=torch.zeros_like(cond.text), past=past,
        )  # fmt: skip
        results["guided"].append(fn(x, t))
        with torch.inference_mode(False), torch.no_grad():
            anew = fn(x, t)
        assert torch.equal(fn(x, t), anew), "what steps share is computed once"
        with torch.autocast("cpu", dtype=torch.bfloat16):
            results["bf16"].append(velocity(model, x, t, cond).float())
        if dit.spread.num_ring == 1:
            results["stream"].append(streamed(model, x, t, cond))
    return counted | {k: difference(*v) for k, v in results.items() if len(v) == 2}


def chosen(group: SequenceGroup) -> list[str]:
    """The fastest way to exchange, as each rank of the world finds it with its group."""
    shares = group.of(3, 16, keep_keys=False)
    ways: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(ways, str(group.fastest_way(shares, torch.device("cpu"))))
    return ways


@torch.inference_mode()
def strips() -> dict[str, float]:
    """What two sorts of VAE decode by strips against one rank, as shares of the largest value: rows
    that the ranks do not divide, and fewer rows than ranks. On rank 0."""
    torch.manual_seed(0)
    plain = VAENetwork(VAEConfig(base_dim=4, dim_mult=(1, 1, 2, 2), num_res_blocks=1))
    found = {}
    for name, vae in (("residual", VideoVAE.tiny()), ("plain", VideoVAE(plain))):
        vae.eval()
        split = Strips()
        for num_rows in (11, 5):
            latents = torch.randn(1, 4, vae.latent_channels, num_rows, 3)
            whole = vae.decode(latents, clamp=False)
            spread_over = copy.deepcopy(vae)
            split.spread(spread_over)
            decoder = StripDecoder(spread_over, split, clamp=False)
            made = torch.cat([decoder.push(latents[:, :3]), decoder.push(latents[:, 3:])], dim=1)
            if split.rank == 0:
                found[f"{name}, {num_rows} rows"] = difference(made, whole)
            # outside of a video the decoder is that of one rank
            assert torch.equal(spread_over.decode(latents, clamp=False), whole)
    return found


def streamed(dit: AvatarDiT, x: Tensor, t: Tensor, cond: Cond) -> Tensor:
    """Frame by frame: each sees those before it through the cache of their keys."""
    assert cond.audio is not None
    assert cond.motion is not None
    past, parts = None, []
    for i in range(NUM_FRAMES):
        now = slice(i, i + 1)
        heard = Cond(cond.text, cond.audio[:, now], moments=None, motion=cond.motion[:, now])
        v, keys = dit(x[:, now], t[:, now], heard, past=past, start=i, return_keys=True)
        past = keys if past is None else past.append(keys)
        parts.append(v)
    return torch.cat(parts, dim=1)


def main(folder: Path, world_size: int) -> dict[str, Any]:
    os.environ["OMP_NUM_THREADS"] = "1"
    spawn(work, (world_size, folder), world_size)
    return torch.load(folder / "found.pt")
