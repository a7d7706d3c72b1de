"""Where networks run and in which precision: what a user's words mean on this machine."""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch.overrides import TorchFunctionMode

from avatar_v.base import checks

PRECISIONS = ("auto", "fp32", "bf16")
KINDS = ("cpu", "cuda", "mps")
"""Kinds of devices that networks are run on here; torch knows more, some of which hold no data."""


def chosen_device(name: str) -> torch.device:
    """The device of a name, "auto" being a GPU where there is one; ValueError if it is not here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except (RuntimeError, TypeError) as error:
        raise ValueError(
            f"--device {name}: no such kind of device; expected auto or one of {', '.join(KINDS)}"
        ) from error
    if device.type not in KINDS:
        raise ValueError(
            f"--device {name}: networks run on {', '.join(KINDS)} alone, not on {device.type}"
        )
    num = {"cpu": 1, "cuda": torch.cuda.device_count(), "mps": int(_has_mps())}[device.type]
    if num == 0:
        raise ValueError(
            f"--device {name}: this torch ({torch.__version__}) finds no "
            f"{device.type.upper()} device; use cpu"
        )
    if (device.index or 0) >= num:
        raise ValueError(f"--device {name}: there are {num} of them, numbered from 0")
    return device


def check_threads(num: int | None) -> None:
    """ValueError unless ``num`` threads can be asked for; None leaves torch its own number."""
    if num is not None:
        checks.at_once("--threads", num)


def chosen_precision(name: str, device: torch.device) -> str:
    """fp32 or bf16; "auto" is bf16 where the hardware has it. ValueError for another name."""
    if name not in PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, got {name!r}")
    if name != "auto":
        return name
    return "bf16" if _has_bf16(device) else "fp32"


def processor_flags() -> str:
    """What of the processor decides how fast torch is on it and how it rounds."""
    has = {
        "avx2": torch.cpu._is_avx2_supported(),
        "avx512": torch.cpu._is_avx512_supported(),
        "avx512_bf16": torch.cpu._is_avx512_bf16_supported(),
        "amx": torch.cpu._is_amx_tile_supported(),
    }
    found = " ".join(name for name, there in has.items() if there) or "no AVX2"
    return f"{found}; torch uses {torch.backends.cpu.get_cpu_capability()}"


def emulates_bf16(device: torch.device) -> bool:
    """Whether bf16 products are far slower than those of fp32: on a processor without AVX-512.
    One with AVX-512 alone has no native bf16 either, but torch has fast kernels for it."""
    return device.type == "cpu" and not _has_avx512()


def _has_avx512() -> bool:
    """Whether torch uses it: with ATEN_CPU_CAPABILITY=avx2 all behaves as without."""
    return torch.backends.cpu.get_cpu_capability() == "AVX512"


def _has_mps() -> bool:
    return torch.backends.mps.is_available()


def _has_bf16(device: torch.device) -> bool:
    """Native bf16 arithmetic; emulated, it would be slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and _has_avx512() and torch.cpu._is_avx512_bf16_supported()


@contextmanager
def without_memory() -> Iterator[None]:
    """Networks that are built within the block have shapes and no memory (device "meta"). They are
    not initialised: for normal numbers there torch would import its compiler, which takes 2 s."""
    with torch.device("meta"), _Uninitialised():
        yield


class _Uninitialised(TorchFunctionMode):
    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        kwargs = kwargs or {}
        if getattr(func, "__module__", "") == "torch.nn.init":
            return args[0] if args else kwargs["tensor"]
        return func(*args, **kwargs)
