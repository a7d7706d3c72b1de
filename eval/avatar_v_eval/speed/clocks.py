"""Clock, power, temperature and throttling of the GPUs around a measurement, for its record.

Read by NVML through the package nvidia-ml-py; where it lacks, the record says so. A clock that
changes with heat makes timings differ, and the slowest of several GPUs holds up the others, so it
can be locked: NVML allows that to root. The lock is undone afterwards, with any that was there
before. Nothing is said of a machine without a CUDA GPU.
"""

import contextlib
import importlib
import os
from collections.abc import Iterator
from typing import Any

import torch

REASONS = {
    0x1: "idle", 0x2: "clocks set by a user", 0x4: "power cap", 0x8: "hardware slowdown",
    0x10: "sync boost", 0x20: "heat, by software", 0x40: "heat, by hardware", 0x80: "power brake",
    0x100: "display",
}  # fmt: skip
"""Bits of nvmlClocksEventReason*, as NVIDIA's manual of NVML has them."""


@contextlib.contextmanager
def watched(lock_mhz: int | None = None) -> Iterator[list[str]]:
    """Within the block the clocks are locked to ``lock_mhz`` where that is asked for and allowed.
    The lines that it gives are those for the record; the last ones come when the block ends.
    ValueError for a lock where there is no GPU or no NVML, or for a clock that is no clock."""
    lines: list[str] = []
    if lock_mhz is not None and lock_mhz < 1:
        raise ValueError(f"--lock-clock is in MHz, from 1, got {lock_mhz}")
    nvml = _nvml()
    if isinstance(nvml, str):
        if lock_mhz is not None:
            raise ValueError(f"--lock-clock: {nvml}")
        yield [f"clocks: {nvml}"] if torch.cuda.is_available() else lines
        return
    cards, locked = _cards(nvml), []
    try:
        for name, card in cards.items() if lock_mhz is not None else ():
            try:
                nvml.nvmlDeviceSetGpuLockedClocks(card, lock_mhz, lock_mhz)
                locked.append(card)
                lines.append(f"{name}: clock locked to {lock_mhz} MHz")
            except nvml.NVMLError as error:
                lines.append(f"{name}: clock not locked: {error}")
        lines += [f"{name} at the start: {_reading(nvml, card)}" for name, card in cards.items()]
        yield lines
        lines += [f"{name} at the end: {_reading(nvml, card)}" for name, card in cards.items()]
    finally:
        for card in locked:
            nvml.nvmlDeviceResetGpuLockedClocks(card)
        nvml.nvmlShutdown()


def _nvml() -> Any:
    """The library, begun; or why there is none, in words."""
    if not torch.cuda.is_available():
        return "there is no CUDA GPU"
    try:
        nvml = importlib.import_module("pynvml")
    except ImportError:
        return "not read: pip install nvidia-ml-py"
    try:
        nvml.nvmlInit()
    except nvml.NVMLError as error:
        return f"not read: {error}"
    return nvml


def _cards(nvml: Any) -> dict[str, Any]:
    """Those that this process sees; torch is not asked, since that would begin CUDA here."""
    seen = os.environ.get("CUDA_VISIBLE_DEVICES")
    names = [str(i) for i in range(nvml.nvmlDeviceGetCount())] if seen is None else seen.split(",")
    return {
        f"GPU {name}": nvml.nvmlDeviceGetHandleByIndex(int(name))
        if name.isdecimal()
        else nvml.nvmlDeviceGetHandleByUUID(name)
        for name in map(str.strip, names)
        if name
    }


def _reading(nvml: Any, card: Any) -> str:
    """What a card says now; what it does not tell is named."""
    asked = {
        "clock": lambda: f"{nvml.nvmlDeviceGetClockInfo(card, nvml.NVML_CLOCK_SM)} MHz",
        "power": lambda: f"{nvml.nvmlDeviceGetPowerUsage(card) / 1000:.0f} W",
        "temperature": lambda: (
            f"{nvml.nvmlDeviceGetTemperature(card, nvml.NVML_TEMPERATURE_GPU)} °C"
        ),
        "throttling": lambda: _reasons(nvml.nvmlDeviceGetCurrentClocksEventReasons(card)),
    }
    said = []
    for name, ask in asked.items():
        try:
            said.append(ask())
        except nvml.NVMLError as error:
            said.append(f"no {name} ({error})")
    return ", ".join(said)


def _reasons(bits: int) -> str:
    found = [word for bit, word in REASONS.items() if bits & bit]
    rest = bits & ~sum(REASONS)
    found += [f"reason {rest:#x}"] if rest else []
    return f"held back by {' and '.join(found)}" if found else "not held back"
