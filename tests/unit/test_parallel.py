"""parallel/apply.py on a mesh of one process: sharding moves the weights, not the training;
parallel/numa.py; and the signs of life of generate/ranks.py."""

import os
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from datetime import timedelta
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch._C._distributed_c10d import TCPStore
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor
from torch.numa import binding

from avatar_v.callbacks.ema import EMA
from avatar_v.generate import launching, ranks
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.parallel.apply import checkpoint_blocks, shard, whole_state
from avatar_v.parallel.numa import stay_near
from avatar_v.request.request import Weights
from avatar_v.training import engine
from avatar_v.training.engine import Engine
from avatar_v.training.optim import Optim, build_optimizer
from avatar_v.types import Cond
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats

OPTIM = Optim(lr=1e-2, num_warmup_steps=0)


@pytest.fixture
def mesh() -> Iterator[DeviceMesh]:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1,))
    torch.distributed.destroy_process_group()


class Models(torch.nn.Module):
    """What a stage trains, without Lightning."""

    def __init__(self) -> None:
        super().__init__()
        self.dit: AvatarDiT
        self.conditioner: Conditioner
        self.dit, self.conditioner = build("tiny", seed=0, motion_stats=motion_stats())
        torch.nn.init.normal_(
            self.dit.head.out.weight, std=0.1, generator=torch.Generator().manual_seed(0)
        )

    def loss(self, seed: int) -> torch.Tensor:
        generator = torch.Generator().manual_seed(seed)
        x = torch.randn(2, 3, 16, 4, 4, generator=generator)
        t = torch.rand(2, 3, generator=generator)
        audio = 0.1 * torch.randn(2, 9 * 640, generator=generator)
        cond = Cond(
            text=self.conditioner.encode_text(["a", "b"]),
            audio=self.conditioner.encode_audio(audio),
        )
        return (self.dit(x, t, cond) - x).square().mean()


def train(models: Models, num_steps: int) -> list[float]:
    optimizer, losses = build_optimizer(models, OPTIM), []
    for seed in range(num_steps):
        loss = models.loss(seed)
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(models.parameters(), 1.0)
        optimizer.step()
        losses.append(float(loss.detach()))
    return losses


def test_sharded_training_equals_plain_training(mesh: DeviceMesh) -> None:
    plain, sharded = Models(), Models()
    for part in (sharded.dit, sharded.conditioner):
        shard(part, mesh, compute_dtype=torch.float32)
    trainable = [p for p in sharded.parameters() if p.requires_grad]
    assert all(isinstance(p, DTensor) for p in trainable)
    for models in (plain, sharded):
        models.loss(0).backward()
    grads = {n: p.grad for n, p in plain.named_parameters() if p.grad is not None}
    for name, parameter in sharded.named_parameters():
        if name in grads:
            assert isinstance(parameter.grad, DTensor)
            # the same fp32 kernels; what differs is the order of a few sums
            torch.testing.assert_close(parameter.grad.full_tensor(), grads[name], msg=name)
    for models in (plain, sharded):
        models.zero_grad()
    # Muon gives a vanishing gradient, which is the order of a few sums, full size: the losses of
    # later steps differ by that noise; a rank that missed a gradient differs by far more
    assert train(sharded, 3) == pytest.approx(train(plain, 3), rel=1e-3)
    with whole_state(sharded):
        state = sharded.state_dict()
    assert not any(isinstance(x, DTensor) for x in state.values())
    assert state.keys() == plain.state_dict().keys()
    weight = state["dit.head.out.weight"]
    torch.testing.assert_close(weight, plain.state_dict()["dit.head.out.weight"], rtol=0, atol=1e-3)


def test_time_is_embedded_in_fp32_where_weights_are_gathered_in_bf16(mesh: DeviceMesh) -> None:
    plain, sharded = Models(), Models()
    t = torch.tensor([[0.1, 0.5037, 0.9]])
    expected = plain.dit.time_embed(t)
    shard(sharded.dit, mesh, compute_dtype=torch.bfloat16)
    assert isinstance(sharded.dit.time_embed.up.weight, DTensor)
    found = sharded.dit.time_embed(t)
    assert all(torch.equal(a, b) for a, b in zip(found, expected, strict=True))


def test_the_average_keeps_the_sharding(mesh: DeviceMesh) -> None:
    models = Models()
    for part in (models.dit, models.conditioner):
        shard(part, mesh, compute_dtype=torch.float32)
    ema = EMA(0.5)
    ema.load_state_dict(
        {"num_updates": 0, "average": {
            n: torch.zeros(p.shape) for n, p in models.named_parameters() if p.requires_grad
        }}
    )  # fmt: skip
    name = "dit.head.out.weight"
    with ema.applied(models):
        weight = dict(models.named_parameters())[name]
        assert isinstance(weight, DTensor)
        assert not weight.full_tensor().any()
    weight = dict(models.named_parameters())[name]
    assert isinstance(weight, DTensor)
    assert weight.full_tensor().any()
    assert isinstance(ema.state_dict()["average"][name], DTensor)


def test_checkpointed_blocks_give_the_same_gradients() -> None:
    plain, saving = Models(), Models()
    checkpoint_blocks(saving.dit)
    for models in (plain, saving):
        models.loss(0).backward()
    pairs = zip(plain.named_parameters(), saving.parameters(), strict=True)
    for (name, a), b in pairs:
        if a.grad is not None:
            assert b.grad is not None, name
            assert torch.equal(a.grad, b.grad), name


@pytest.fixture
def affinity() -> Iterator[set[int]]:
    """The CPUs of this process; its threads get them back."""
    before = os.sched_getaffinity(0)
    yield before
    for thread in os.listdir("/proc/self/task"):
        os.sched_setaffinity(int(thread), before)


def test_a_rank_stays_on_the_cpus_of_its_gpus_node(
    affinity: set[int], monkeypatch: pytest.MonkeyPatch
) -> None:
    near, asked = {min(affinity)}, []

    def node_of(*, gpu_index: int) -> int:
        asked.append(gpu_index)
        if gpu_index == 7:
            raise FileNotFoundError("a virtual machine may hide where its GPUs are")
        if gpu_index == 8:
            raise RuntimeError("a kernel may know of no nodes")
        return 1

    monkeypatch.setattr(binding, "_get_numa_node_index_for_gpu_index", node_of)
    monkeypatch.setattr(
        binding, "_get_allowed_logical_cpu_indices_for_numa_node", lambda numa_node_index: near
    )
    for device in (torch.device("cpu"), torch.device("cuda", 7), torch.device("cuda", 8)):
        stay_near(device)
        assert os.sched_getaffinity(0) == affinity
    stay_near(torch.device("cuda", 3))
    assert os.sched_getaffinity(0) == near
    assert asked == [7, 8, 3]


def test_one_process_stays_near_its_one_gpu(monkeypatch: pytest.MonkeyPatch) -> None:
    """In generation and in training, where no rank starts another or joins a group."""
    near: list[torch.device] = []
    for module in (launching, engine):
        monkeypatch.setattr(module, "stay_near", near.append)
    for name in ("RANK", "WORLD_SIZE", "SLURM_PROCID"):
        monkeypatch.delenv(name, raising=False)
    gpu = torch.device("cuda", 1)

    def follow(weights: Weights, ranks: ranks.Ranks) -> None:
        raise AssertionError("there is one process")

    assert launching.leading(Weights(), gpu, follow) is None
    trainer = SimpleNamespace(strategy=SimpleNamespace(root_device=gpu))
    stage: Any = SimpleNamespace(trainer=trainer, automatic_optimization=True)
    Engine.setup(stage, "fit")
    assert near == [gpu, gpu]


def test_a_follower_that_waits_in_the_store_or_comes_back_lives(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """A rank that is early where a group is made waits in the store for the others."""
    monkeypatch.setattr(ranks, "BEAT_S", 0.05)
    stores = [TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)]
    stores.append(TCPStore("127.0.0.1", stores[0].port, wait_for_workers=False))
    dist.init_process_group("gloo", store=stores[0], rank=0, world_size=1)
    both: list[ranks.Ranks] = []
    with monkeypatch.context() as patch:
        for rank, store in enumerate(stores):
            patch.setattr(dist.distributed_c10d, "_get_default_store", lambda store=store: store)
            both.append(ranks.Ranks(rank, 2, torch.device("cpu"), {}))
            if rank == 0:
                wait_for(lambda: "rank 1 of 2 gave no sign of life" in both[0]._death())
    wait_for(lambda: both[0]._death() == "")

    def early() -> None:
        with suppress(RuntimeError):
            stores[1].wait(["the others"], timedelta(seconds=1))

    waiting = threading.Thread(target=early)
    waiting.start()
    while waiting.is_alive():
        assert both[0]._death() == ""
        time.sleep(0.01)
    both[0]._closed.set()
    both[0]._thread.join()
    both[1].close()
    assert not both[1]._thread.is_alive()  # one in the store would abort Python's end


def wait_for(is_so: Callable[[], bool]) -> None:
    end = time.monotonic() + 60
    while not is_so():
        assert time.monotonic() < end
        time.sleep(0.01)
