"""parallel/sequence.py and strips.py on 8 gloo processes: groups of 1, 2, 4 and 8 ranks equal one
rank."""

import contextlib
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh

from avatar_v.kernels.partial import _bias, attend_part, merge, part_gradients
from avatar_v.parallel import exchange, symmetric
from avatar_v.parallel.sequence import SequenceGroup, degrees
from naive_attention import attend_dense
from sequence_ranks import CASES, DEEP, OVERLAPPED, WAYS, case_name, main

NAMES = [case_name(*case[:3]) for case in CASES]
SPREAD = [case_name(*c[:3]) for c in CASES if (c[0], c[1], bool(c[2])) in OVERLAPPED]
PLAIN = [case for case in CASES if not case[2]]


def attention_elements(num_heads: int, num_ranks: int, elements: int) -> tuple[int, int]:
    """Elements that one rank sends in the forward pass of a self-attention: in the two exchanges of
    Ulysses, and round the ring.

    ``elements`` is the size of the whole video's queries, b · s · heads · width, with padding. With
    a Ulysses degree of U and a ring of R on P ranks they are 4 (U - 1) / (U P) and 2 (R - 1) / P of
    it: 4 (P - 1) / P² where there is no ring. Keys of a reference are not sent.
    """
    ulysses, ring = degrees(num_heads, num_ranks)
    exchanged = 4 * (ulysses - 1) * elements // (ulysses * num_ranks)
    return exchanged, 2 * (ring - 1) * elements // num_ranks


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    return main(Path(tmp_path_factory.mktemp("ranks")), 8)


@pytest.mark.multi
@pytest.mark.parametrize("name", NAMES)
def test_ranks_give_the_velocity_and_gradients_of_one(name: str, found) -> None:
    # fp32: a matrix of fewer rows is multiplied in another order
    assert found[name]["velocity"] < 1e-6
    assert found[name]["gradient"] < 1e-6
    assert found[name]["worst gradient"] < 2e-5  # of one parameter, where most of it cancels


@pytest.mark.multi
@pytest.mark.parametrize(("num_heads", "size", "_changes", "_keep"), PLAIN)
def test_what_is_sent_is_counted(num_heads: int, size: int, _changes, _keep, found) -> None:
    ulysses, ring = degrees(num_heads, size)
    elements = 2 * 48 * num_heads * 6  # b s h d
    exchange, turns = attention_elements(num_heads, size, elements)
    part = elements // size  # keys of a rank's heads in its part of the ring
    case = found[case_name(num_heads, size, {})]
    back = turns + (2 * ring * part if ring > 1 else 0)
    assert case["without"] == (exchange + turns, exchange + back)
    assert case["with"] == case["without"]  # reference keys do not travel
    assert case["reference sent"] == 0
    assert case["heads kept"] == num_heads // ulysses
    if ring == 1 and size < num_heads:  # each head's attention is the same computation
        assert case["error"] == 0
    assert case["error"] < 1e-6  # a ring adds its parts in another order, one head alone too


@pytest.mark.multi
@pytest.mark.parametrize(("num_heads", "size"), DEEP)
def test_guidance_streams_and_bf16_are_right(num_heads: int, size: int, found) -> None:
    case = found[case_name(num_heads, size, {})]
    assert case["guided"] < 3e-6  # passes weighed by up to 3
    assert case["bf16"] < 2**-6  # a ring rounds its parts, 2^-8 each
    assert case.get("stream", 0) < 1e-6


@pytest.mark.multi
@pytest.mark.parametrize("name", SPREAD)
def test_exchanges_that_overlap_give_the_same_bits(name: str, found) -> None:
    assert {way: found[name][way] for way in WAYS} == dict.fromkeys(WAYS, True)


def of_the_video(calls: list[str]) -> list[str]:
    """Those of the first block behind the reference, which exchanges nothing."""
    begin = calls.index("begin")
    start = max(i for i in range(begin) if calls[i] == "query")
    return calls[start : calls.index("out", begin) + 1]


@pytest.mark.multi
def test_exchanges_begin_as_soon_as_they_can_and_are_waited_for_late(found) -> None:
    case = found[case_name(8, 2, {})]
    calls = {way: case[f"calls {way}"] for way in ("blocking", *WAYS)}
    first = {way: of_the_video(forward) for way, (forward, _) in calls.items()}
    projected, sent = ["query", "key", "value"], ["begin", "wait 0"]
    assert first["blocking"] == [*projected, *sent, "attend", "begin", "wait 1", "out"]
    each = [x for name in projected for x in (name, "begin")] + [f"wait {i}" for i in range(3)]
    assert first["asynchronous"] == [*each, "attend", "begin", "wait 3", "out"]
    tile = ["attend", "begin"]
    assert first["tiled:3"] == [*each, *tile, *tile, "wait 3", "wait 4", "out"]
    assert first["tiled:1"] == [*each, *(4 * tile), *(f"wait {i}" for i in range(3, 7)), "out"]
    back = {way: [x.split()[0] for x in backward] for way, (_, backward) in calls.items()}
    assert back["blocking"] == 2 * (2 * ["begin", "wait"])  # two blocks
    three, four = (num * ["begin"] + num * ["wait"] for num in (3, 4))
    assert back["asynchronous"] == 2 * ["begin", "wait", *three]
    assert back["tiled:1"] == 2 * [*four, *three]  # tiles, then queries, keys and values


@pytest.mark.multi
def test_ranks_choose_one_way_to_exchange(found) -> None:
    ways = found[case_name(8, 4, {})]["chosen"]
    assert len(ways) == 8
    assert len(set(ways[:4])) == len(set(ways[4:])) == 1  # two groups of four
    assert set(ways) <= {"blocking", "asynchronous", "tiled:1"}


@pytest.mark.parametrize(
    ("num_heads", "num_ranks", "sent"),
    [
        (8, 1, (0, 0)),
        (8, 2, (960, 0)),  # q, k, v and the outputs: half of its half of each
        (8, 4, (720, 0)),
        (8, 8, (420, 0)),
        (12, 8, (360, 240)),  # Ulysses 4 x ring 2
        (3, 4, (0, 1440)),  # a ring of 4: k and v of its quarter, three times
    ],
)
def test_the_rule_of_what_is_sent_by_hand(
    num_heads: int, num_ranks: int, sent: tuple[int, int]
) -> None:
    assert attention_elements(num_heads, num_ranks, 960) == sent


@pytest.mark.multi
def test_strips_are_decoded_as_the_whole_picture(found) -> None:
    assert set(found["strips"]) == {
        f"{kind}, {rows} rows" for kind in ("residual", "plain") for rows in (11, 5)
    }
    assert max(found["strips"].values()) < 1e-5  # the same sums


def test_the_grid_divides_the_heads() -> None:
    assert degrees(12, 8) == (4, 2)
    assert degrees(40, 8) == (8, 1)
    assert degrees(24, 6) == (6, 1)
    assert degrees(3, 4) == (1, 4)


def test_a_stream_of_keys_is_refused_in_a_ring(mesh: DeviceMesh) -> None:
    group = SequenceGroup(mesh, 3)
    assert group.of(3, 4, keep_keys=True).cores.video is not None
    group.__class__ = type("Ring", (SequenceGroup,), {"num_ring": 2})
    with pytest.raises(ValueError, match="in a ring of 2 each rank has a part"):
        group.of(3, 4, keep_keys=True)


@pytest.fixture
def mesh():
    store = dist.HashStore()  # pyright: ignore[reportPrivateImportUsage]
    dist.init_process_group("gloo", store=store, rank=0, world_size=1)
    yield init_device_mesh("cpu", (1, 1, 1), mesh_dim_names=("data", "ring", "ulysses"))
    dist.destroy_process_group()


@pytest.mark.parametrize(
    ("named", "said"),
    [
        ("blocking", exchange.BLOCKING),
        ("asynchronous", exchange.ASYNCHRONOUS),
        ("tiled", exchange.Way(True, 1)),
        ("tiled:3", exchange.Way(True, 3)),
        ("symmetric:2", exchange.Way(True, 2)),
        ("auto", None),
        ("auto::16", None),
    ],
)
def test_exchanges_are_asked_for_by_name(named: str, said: exchange.Way | None) -> None:
    with exchange.using(named):
        assert exchange.asked().way == said
        assert exchange.asked().sms == (16 if named.endswith(":16") else 0)


@pytest.mark.parametrize("named", ["late", "tiled:x", "tiled:1:2:3", "blocking:2", "tiled:-1"])
def test_an_exchange_that_says_nothing_is_refused(named: str) -> None:
    with exchange.using(named), pytest.raises(ValueError, match="AVATAR_V_EXCHANGE"):
        exchange.check_named(torch.device("cpu"))


@pytest.mark.parametrize(("named", "what"), [("symmetric", "memory"), ("tiled:1:8", "multiproc")])
def test_what_an_exchange_needs_of_gpus_is_told(named: str, what: str, mesh: DeviceMesh) -> None:
    with exchange.using(named), pytest.raises(ValueError, match=f"{what}.* for CUDA GPUs"):
        exchange.check_named(torch.device("cpu"))
    with pytest.raises(ValueError, match="need CUDA GPUs"):
        symmetric.Symmetric(mesh["ulysses"].get_group())


class MainMemory:
    """torch's symmetric memory, for threads: signals are one bit each, put when it is 0, taken when
    it is 1, as torch has them."""

    def __init__(self) -> None:
        self.memories: dict[tuple[int, int], torch.Tensor] = {}  # by rank and place in its order
        self.signals: set[tuple[int, int, int, int]] = set()
        self.ends = time.monotonic() + 60

    def rendezvous(self, memory: torch.Tensor, group: dist.ProcessGroup) -> SimpleNamespace:
        rank = group.rank()
        place = sum(owner == rank for owner, _ in self.memories)
        self.memories[rank, place] = memory

        def there(other: int, shape: torch.Size, _dtype: torch.dtype) -> torch.Tensor:
            self.wait_for(lambda: (other, place) in self.memories)
            assert self.memories[other, place].shape == shape
            return self.memories[other, place]

        def put(to: int, channel: int) -> None:
            self.wait_for(lambda: (place, rank, to, channel) not in self.signals)
            self.signals.add((place, rank, to, channel))

        def take(source: int, channel: int) -> None:
            self.wait_for(lambda: (place, source, rank, channel) in self.signals)
            self.signals.remove((place, source, rank, channel))

        return SimpleNamespace(get_buffer=there, put_signal=put, wait_signal=take)

    def wait_for(self, there: Callable[[], bool]) -> None:
        while not there():
            assert time.monotonic() < self.ends, "nobody came"
            time.sleep(1e-4)


def test_parts_travel_through_symmetric_memory(monkeypatch: pytest.MonkeyPatch) -> None:
    size, world = 3, MainMemory()
    stream = SimpleNamespace(wait_stream=lambda _: None)
    monkeypatch.setattr(torch.cuda, "Stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "current_stream", lambda: stream)
    monkeypatch.setattr(torch.cuda, "stream", lambda _: contextlib.nullcontext())
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(symmetric, "lacking", lambda _: None)
    memory = symmetric.symmetric_memory
    monkeypatch.setattr(memory, "empty", lambda *shape, dtype, device: torch.empty(shape))
    monkeypatch.setattr(memory, "rendezvous", world.rendezvous)
    sent = torch.randn(4, 2, size, size, 5, generator=torch.Generator().manual_seed(0))

    def rank(own: int) -> list[torch.Tensor]:
        group = dist.ProcessGroup(own, size)  # pyright: ignore[reportCallIssue]  stubs have a store
        transport = symmetric.Symmetric(group)
        found = []
        for messages in sent[:, :, own]:  # two are on their way together, four times
            arrivals = [exchange.begun(x, transport) for x in messages]
            found += [arrived() for arrived in arrivals]
        return found

    with ThreadPoolExecutor(size) as pool:
        received = list(pool.map(rank, range(size)))
    for own, found in enumerate(received):
        assert torch.equal(torch.stack(found), sent[:, :, :, own].flatten(0, 1))
    assert len(world.memories) == 2 * size  # memory is used again when it has been read
    assert {channel for *_, channel in world.signals} == {symmetric.READ}


def test_parts_merge_to_the_whole_with_its_gradients() -> None:
    generator = torch.Generator().manual_seed(0)

    def some(*shape: int) -> torch.Tensor:
        return torch.randn(shape, generator=generator)

    query, key, value, grad = some(2, 5, 3, 8), some(2, 9, 3, 8), some(2, 9, 3, 8), some(2, 5, 3, 8)
    mask = torch.ones(2, 9, dtype=torch.bool)
    mask[0, 6:] = False  # all of the last part
    mask[1, 1] = False
    parts = [slice(0, 4), slice(4, 4), slice(4, 6), slice(6, 9)]  # one has no keys
    out, lse = attend_part(query, key[:, parts[0]], value[:, parts[0]], mask[:, parts[0]])
    for part in parts[1:]:
        out, lse = merge(out, lse, *attend_part(query, key[:, part], value[:, part], mask[:, part]))
    leaves = [x.clone().requires_grad_() for x in (query, key, value)]
    want = attend_dense(leaves[0], leaves[1], leaves[2], mask[:, None].expand(-1, 5, -1))
    torch.testing.assert_close(out, want.detach())
    wanted = torch.autograd.grad(want, leaves, grad)
    found = [
        part_gradients(grad, (query, key[:, p], value[:, p], mask[:, p]), out, lse) for p in parts
    ]
    torch.testing.assert_close(torch.stack([x[0] for x in found]).sum(0), wanted[0])
    for i in (1, 2):
        torch.testing.assert_close(torch.cat([x[i] for x in found], dim=1), wanted[i])


@pytest.mark.parametrize("num", [1, 8, 13])
def test_rows_of_a_mask_begin_where_cuda_takes_them(num: int) -> None:
    """At multiples of 8 elements, as SDPA pads what it hands on to the same operator."""
    query, mask = torch.zeros(2, 3, 2, 8, dtype=torch.bfloat16), torch.ones(2, num) > 0
    mask[1, 0] = num == 1
    bias, _ = _bias(query, torch.zeros(2, num, 2, 8), mask)
    assert bias is not None
    assert bias.shape == (2, 2, 3, num)
    assert all(stride % 8 == 0 for stride in bias.stride()[:3])
    assert torch.equal(bias[:, 0, 0] == 0, mask)
