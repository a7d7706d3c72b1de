"""device.py: what a processor is asked for follows the instructions that torch uses on it."""

import pytest
import torch

from avatar_v.base.device import chosen_precision, emulates_bf16

CPU = torch.device("cpu")


@pytest.mark.parametrize(
    ("used", "has_bf16", "emulated", "precision"),
    [
        ("AVX512", True, False, "bf16"),
        ("AVX512", False, False, "fp32"),
        ("AVX2", True, True, "fp32"),  # ATEN_CPU_CAPABILITY=avx2 on a processor with more
        ("AVX2", False, True, "fp32"),
        ("DEFAULT", False, True, "fp32"),
    ],
)
def test_bf16_is_where_torch_uses_the_instructions_for_it(
    used: str, has_bf16: bool, emulated: bool, precision: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(torch.backends.cpu, "get_cpu_capability", lambda: used)
    monkeypatch.setattr(torch.cpu, "_is_avx512_bf16_supported", lambda: has_bf16)
    assert emulates_bf16(CPU) is emulated
    assert chosen_precision("auto", CPU) == precision
    assert chosen_precision("bf16", CPU) == "bf16"
