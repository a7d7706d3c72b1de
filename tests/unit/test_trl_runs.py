"""voices/trl_runs: what trl's trainers are given."""

from dataclasses import dataclass
from pathlib import Path

import pytest

from avatar_v.voices.trl_runs import trl_config


@dataclass
class OnFourGPUs:
    """What transformers says on a machine with four."""

    output_dir: str
    seed: int
    report_to: str
    use_cpu: bool
    world_size: int = 1

    def __post_init__(self) -> None:
        self._n_gpu = 4

    @property
    def n_gpu(self) -> int:
        return self._n_gpu


def test_a_voice_is_trained_by_one_process_on_one_gpu() -> None:
    assert trl_config(OnFourGPUs, Path("x"), 0, {}).n_gpu == 1
    with pytest.raises(ValueError, match="one of 4: start it without torchrun"):
        trl_config(OnFourGPUs, Path("x"), 0, {"world_size": 4})
    with pytest.raises(ValueError, match=r"trainer: .*unexpected keyword argument 'steps'"):
        trl_config(OnFourGPUs, Path("x"), 0, {"steps": 4})
