"""The measurements of speed as far as a CPU goes: the ways do the same, the rows are right."""

import argparse
import sys
from collections.abc import Callable
from functools import partial
from types import ModuleType

import pytest
import torch

from avatar_v.models.guided import with_guidance_inside
from avatar_v_eval.speed import clocks, device, exchange, kernels, memory, peers, rating, serving
from avatar_v_eval.speed.device import Size
from avatar_v_eval.speed.peers import plain
from avatar_v_eval.turns import in_turns, ratio
from random_models import make_dit


def test_ways_take_turns_and_a_ratio_is_taken_within_each() -> None:
    calls: list[str] = []
    ways = {name: lambda name=name: calls.append(name) for name in "ab"}
    times = in_turns(ways, 3)
    assert calls == ["b", "a", "a", "b", "b", "a", "a", "b"]
    assert {name: len(each) for name, each in times.items()} == {"a": 3, "b": 3}
    found = ratio({"a": [2.0, 6.0, 4.0], "b": [1.0, 2.0, 4.0]}, "a", "b")
    assert (found.value, found.low, found.high, found.n) == (2.0, 1.0, 3.0, 3)


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
def test_peers_are_timed_on_weights_of_either_precision(
    monkeypatch: pytest.MonkeyPatch, dtype: torch.dtype
) -> None:
    """Generation narrows weights where the processor has bf16; what is trained is fp32."""
    monkeypatch.setattr(peers, "emulates_bf16", lambda device: dtype == torch.float32)
    monkeypatch.setattr(peers, "TRAINED_WINDOWS", 1)
    dit = make_dit().to(dtype)
    rows = peers.dit_numbers(dit, 1) | peers.muon_numbers(dit, 1)
    assert list(rows) == ["denoise_speedup", "train_speedup", "muon_speedup"]
    assert all(row.value > 0 for row in rows.values())


def test_a_block_and_fused_kernels_are_timed() -> None:
    size = Size("tiny", 4, 2, "cpu", 1, False)
    rows = kernels.block_numbers(size) | kernels.scope_numbers(size) | kernels.trained_numbers(size)
    assert {"tiny_block_theirs", "tiny_norm_rotate_rate", "tiny_norm_silu_rate"} <= rows.keys()
    assert all(row.value > 0 for row in rows.values())
    inductor, ours = {"inductor": [4.0], "ours": [2.0]}, {"ours_compiled": [1.0], "eager": [3.0]}
    found = kernels.ratios("block", "a block", inductor | ours)
    values = {"eager": 1.5, "inductor": 2.0, "ours_compiled": 0.5, "compiled": 4.0}
    assert {key: row.value for key, row in found.items()} == {
        f"block_{way}": value for way, value in values.items()
    }


class Card(ModuleType):
    """pynvml as nvidia-ml-py 13 has it, for two cards of which the second one tells less."""

    NVML_CLOCK_SM, NVML_TEMPERATURE_GPU = 1, 0

    class NVMLError(Exception):
        pass

    def __init__(self, *, root: bool = True) -> None:
        super().__init__("pynvml")
        self.root, self.calls = root, list[str]()
        self.clocks = {"0": 1980, "1": 1755, "GPU-b": 1755}

    def nvmlInit(self) -> None:
        self.calls.append("init")

    def nvmlShutdown(self) -> None:
        self.calls.append("shutdown")

    def nvmlDeviceGetCount(self) -> int:
        return 2

    def nvmlDeviceGetHandleByIndex(self, index: int) -> str:
        return str(index)

    def nvmlDeviceGetHandleByUUID(self, uuid: str) -> str:
        return uuid

    def nvmlDeviceSetGpuLockedClocks(self, handle: str, least: int, most: int) -> None:
        if not self.root:
            raise self.NVMLError("Insufficient Permissions")
        assert least == most
        self.calls.append(f"lock {handle}")
        self.clocks[handle] = most

    def nvmlDeviceResetGpuLockedClocks(self, handle: str) -> None:
        self.calls.append(f"reset {handle}")

    def nvmlDeviceGetClockInfo(self, handle: str, kind: int) -> int:
        assert kind == self.NVML_CLOCK_SM
        return self.clocks[handle]

    def nvmlDeviceGetPowerUsage(self, handle: str) -> int:
        if handle == "1":
            raise self.NVMLError("Not Supported")
        return 412_400  # milliwatts

    def nvmlDeviceGetTemperature(self, handle: str, sensor: int) -> int:
        assert sensor == self.NVML_TEMPERATURE_GPU
        return 61

    def nvmlDeviceGetCurrentClocksEventReasons(self, handle: str) -> int:
        return {"0": 0x4 | 0x20, "1": 0x1000}.get(handle, 0)


def test_the_record_tells_clock_power_and_heat_of_each_gpu(monkeypatch) -> None:
    card = Card()
    monkeypatch.setitem(sys.modules, "pynvml", card)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.delenv("CUDA_VISIBLE_DEVICES", raising=False)
    with pytest.raises(KeyError), clocks.watched(1500) as lines:
        raise KeyError
    told = "1500 MHz, 412 W, 61 °C, held back by power cap and heat, by software"
    less = "1500 MHz, no power (Not Supported), 61 °C, held back by reason 0x1000"
    assert lines == [
        *(f"GPU {i}: clock locked to 1500 MHz" for i in range(2)),
        f"GPU 0 at the start: {told}",
        f"GPU 1 at the start: {less}",
    ]
    assert card.calls == ["init", "lock 0", "lock 1", "reset 0", "reset 1", "shutdown"]
    card = Card(root=False)
    monkeypatch.setitem(sys.modules, "pynvml", card)
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "GPU-b")
    with clocks.watched(1500) as lines:
        card.clocks["GPU-b"] = 990
    assert lines == [
        "GPU GPU-b: clock not locked: Insufficient Permissions",
        "GPU GPU-b at the start: 1755 MHz, 412 W, 61 °C, not held back",
        "GPU GPU-b at the end: 990 MHz, 412 W, 61 °C, not held back",
    ]
    assert card.calls == ["init", "shutdown"]


def test_clocks_that_cannot_be_read_are_told(monkeypatch) -> None:
    with clocks.watched() as lines:
        assert lines == []  # no GPU, nothing to say
    with pytest.raises(ValueError, match="--lock-clock: there is no CUDA GPU"), clocks.watched(900):
        pass
    with pytest.raises(ValueError, match="--lock-clock is in MHz"), clocks.watched(0):
        pass
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setitem(sys.modules, "pynvml", None)
    with clocks.watched() as lines:
        assert lines == ["clocks: not read: pip install nvidia-ml-py"]
    with pytest.raises(ValueError, match="pip install nvidia-ml-py"), clocks.watched(900):
        pass


def test_the_model_of_simulated_links_is_the_plan() -> None:
    left = {way: exchange.model_of(2, way, 0.06) for way in exchange.WAYS}
    assert left["blocking"] == pytest.approx(1, abs=1e-6)
    assert left["blocking"] > left["asynchronous"] > left["tiled:2"] > left["tiled:1"] > 0


def test_peers_get_the_backbone_without_guidance_inside() -> None:
    dit = make_dit()
    guided = with_guidance_inside(dit, ((1.0, 4.0),) * 3)
    state, copied = dit.state_dict(), plain(guided).state_dict()
    assert copied.keys() == state.keys()
    assert all(torch.equal(copied[key], state[key]) for key in state)


def test_a_step_reads_the_reference_as_generation_does(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its keys are rotated once, not in each step."""
    given: list[dict] = []

    def awaited(way: partial, size: Size) -> Callable[[], None]:
        given.append(way.keywords)
        return lambda: None

    monkeypatch.setattr(device, "RATIOS", (1, 2))
    monkeypatch.setattr(device, "awaited", awaited)
    device.reference_numbers(Size("tiny", 4, 2, "cpu", 1, False))
    assert [one["past"].is_rotated for one in given if "past" in one] == [True, True]


@pytest.mark.parametrize(
    ("study", "words", "said"),
    [
        (serving, ["--requests", "-1"], "--requests is a whole number from 0"),
        (serving, ["--clients", "0"], "--clients is a whole number from 1"),
        (serving, ["--requests", "0", "--sessions", "0"], "there is nothing to measure"),
        (memory, ["--seconds", "10", "0"], "--seconds is a whole number from 1"),
        (memory, ["--repeats", "0"], "--repeats is a whole number from 1"),
    ],
)
def test_numbers_that_measure_nothing_are_refused(
    study: ModuleType, words: list[str], said: str
) -> None:
    parser = argparse.ArgumentParser()
    study.add_options(parser)
    with pytest.raises(ValueError, match=said):
        study.measure(parser.parse_args(words))


@pytest.mark.parametrize(("requests", "clients"), [(1000, 16), (100, 16), (8, 16), (1, 1)])
def test_all_requests_are_sent(requests: int, clients: int) -> None:
    shares = serving.shares_of(requests, clients)
    assert (sum(shares), len(shares)) == (requests, clients)
    assert max(shares) - min(shares) <= 1


def test_a_run_of_few_requests_has_numbers() -> None:
    """Of one owner of four."""
    seen = serving.Seen(call_s=[0.1], ends={"a": "done"})
    next(iter(seen.video_s.values())).append(2.0)
    found = serving._numbers("SQLite", seen, 4.0, 0)
    assert (found["sqlite_rate"].value, found["sqlite_fair"].value) == (0.25, 1.0)


def test_the_load_is_measured_and_not_explained() -> None:
    """Raters may have the machine for themselves."""
    options = argparse.Namespace(places=[], raters=3, seconds=1.0, kills=0, seed=0)
    notes = " ".join(rating.measure(options).notes)
    assert "load at the end was" in notes
    assert "training" not in notes
