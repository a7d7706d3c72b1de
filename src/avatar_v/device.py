"""Where networks run and in which precision: what a user's words mean on this machine."""

import torch

PRECISIONS = ("auto", "fp32", "bf16")


def chosen_device(name: str) -> torch.device:
    """The device of a name, "auto" being a GPU where there is one; ValueError if it is not here."""
    if name == "auto":
        return torch.device("cuda" if torch.cuda.is_available() else "cpu")
    try:
        device = torch.device(name)
    except RuntimeError as error:
        raise ValueError(f"--device {name}: no such kind of device; try cpu or cuda") from error
    if device.type == "cuda" and not torch.cuda.is_available():
        raise ValueError(
            f"--device {name}: this torch ({torch.__version__}) finds no CUDA device; use cpu"
        )
    return device


def check_threads(num: int | None) -> None:
    """ValueError unless ``num`` threads can be asked for; None leaves torch its own number."""
    if num is not None and num < 1:
        raise ValueError(f"--threads is at least 1, got {num}")


def chosen_precision(name: str, device: torch.device) -> str:
    """fp32 or bf16; "auto" is bf16 where the hardware has it. ValueError for another name."""
    if name not in PRECISIONS:
        raise ValueError(f"precision is one of {', '.join(PRECISIONS)}, got {name!r}")
    if name != "auto":
        return name
    return "bf16" if _has_bf16(device) else "fp32"


def _has_bf16(device: torch.device) -> bool:
    """Native bf16 arithmetic; emulated, it would be slower than fp32."""
    if device.type == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    return device.type == "cpu" and torch.cpu._is_avx512_bf16_supported()
