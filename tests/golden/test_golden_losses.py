"""The loss of every step of every tiny recipe, against losses.json.

A difference means that some change moved training. If it was meant to, `make golden` writes the
file anew, and the diff shows by how much.
"""

import json
from pathlib import Path

import pytest
import torch

from avatar_v_eval.records import hardware
from tiny_run import STAGES, losses, make_shards, run_stage

FILE = Path(__file__).with_name("losses.json")


def machine() -> dict[str, str]:
    return {
        "torch": torch.__version__,
        "cpu": hardware()["cpu"],
        "instructions": torch.backends.cpu.get_cpu_capability(),
    }


def trained(folder: Path, *options: str) -> dict[str, list[float]]:
    """All stages in order: each starts from the weights of the one before."""
    make_shards(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(folder)
        for stage in STAGES:
            run_stage(stage, *options)
    return {stage: losses(folder / "runs" / "tiny" / stage) for stage in STAGES}


@pytest.fixture(scope="module")
def measured(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[float]]:
    threads = torch.get_num_threads()
    torch.set_num_threads(1)  # sums over threads have no fixed order
    result = trained(tmp_path_factory.mktemp("golden"))
    torch.set_num_threads(threads)
    return result


@pytest.fixture(scope="module")
def golden(
    request: pytest.FixtureRequest, measured: dict[str, list[float]]
) -> dict[str, dict[str, list[float]] | dict[str, str]]:
    if request.config.getoption("--write-golden"):
        content = {"machine": machine(), "losses": measured}
        FILE.write_text(json.dumps(content, indent=1) + "\n", encoding="utf-8")
    return json.loads(FILE.read_text(encoding="utf-8"))


@pytest.mark.parametrize("stage", STAGES)
def test_losses_are_the_golden_ones(stage: str, measured, golden) -> None:
    # 1e-5: the same fp32 kernels in the same order. Another torch or processor (measured: AMD and
    # Intel with AVX-512, AMD with AVX2) rounds the bf16 products inside Muon elsewhere, which moves
    # later losses, and those of stages that start from its weights, by up to 0.5 %.
    made_on = golden.get("made_elsewhere", {}).get(stage, golden["machine"])
    tolerance = 1e-5 if made_on == machine() else 1e-2
    assert measured[stage] == pytest.approx(golden["losses"][stage], rel=tolerance)
    assert len(measured[stage]) == 8


@pytest.mark.gpu
def test_a_gpu_trains_every_recipe(tmp_path: Path) -> None:
    """Noise is drawn on the CPU, weights where they are used: networks that begin at zero have
    the losses of a CPU, and all others finite ones."""
    found = trained(tmp_path, "--trainer.accelerator", "gpu")
    golden = json.loads(FILE.read_text(encoding="utf-8"))["losses"]
    for stage in STAGES:
        assert torch.tensor(found[stage]).isfinite().all(), stage
    for stage in ("3_motion", "5b_dpo", "5b_dpo_video"):
        assert found[stage] == pytest.approx(golden[stage], rel=0.02)
