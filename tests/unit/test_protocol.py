"""The protocol of measurements: cases in processes, readings to numbers, a module to a result."""

import argparse
import dataclasses
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from avatar_v.request.request import Request
from avatar_v.weights.card import Capabilities, Card
from avatar_v_eval.generated import GeneratedClip
from avatar_v_eval.intervals import r_squared
from avatar_v_eval.processes import in_a_process, mapped
from avatar_v_eval.protocol import (
    Findings,
    Readings,
    gains,
    means,
    read_cases,
    resumable,
    run_measurement,
)
from avatar_v_eval.records import Number
from avatar_v_eval.rollout import Rollout
from eval_cases import case_of


@pytest.mark.parametrize("num_workers", [1, 2])
def test_results_come_in_order(num_workers: int) -> None:
    assert mapped(lambda i: i * i, 5, "squares", num_workers) == [0, 1, 4, 9, 16]


@pytest.mark.parametrize("num_workers", [1, 2])
def test_a_stopped_measurement_goes_on_with_the_cases_that_are_left(
    tmp_path: Path, num_workers: int
) -> None:
    made = tmp_path / "made"
    made.mkdir()

    def fn(index: int, last: int) -> int:
        if index > last:
            raise KeyboardInterrupt
        (made / f"{index}-{last}").touch()
        return 10 * index

    with pytest.raises(KeyboardInterrupt):
        mapped(lambda i: fn(i, 2), 6, "cases", num_workers, tmp_path / "kept")
    first = {path.name for path in made.iterdir()}
    assert first <= {"0-2", "1-2", "2-2"}
    assert first
    results = mapped(lambda i: fn(i, 5), 6, "cases", num_workers, tmp_path / "kept")
    assert results == [0, 10, 20, 30, 40, 50]
    again = {path.name for path in made.iterdir()} - first
    assert {name.split("-")[0] for name in first}.isdisjoint(n.split("-")[0] for n in again)


def test_kept_cases_belong_to_a_commit_its_options_and_weights(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    def folder(commit: str, dirty: bool = False, dit: str = "1", **more: object) -> Path | None:
        options = argparse.Namespace(
            out=tmp_path, name="m", state=(commit, dirty), kept=None, workers=len(more), **more
        )
        return resumable(options, {"dit": dit})

    one = folder("a", steps=4)
    assert one == folder("a", steps=4)
    others = [folder("b", steps=4), folder("a", steps=5), folder("a", dit="2", steps=4)]
    assert len({one, *others}) == 4
    assert folder("a", dirty=True, steps=4) is None
    assert "would begin anew" in capsys.readouterr().out


def test_kept_cases_belong_to_the_sampling_that_a_card_asks_for(tmp_path: Path) -> None:
    def folder(card: Card, **asked: object) -> Path | None:
        options = argparse.Namespace(out=tmp_path, name="m", state=("a", False), kept=None)
        pipeline: Any = SimpleNamespace(card=card, bf16=False)
        request = Request.of(reference="", audio="", guidance_audio=card.guidance_audio, **asked)
        return resumable(options, {"dit": "1"}, Rollout(pipeline, request).sampling())

    card = Card("tiny", guidance_audio=1.0)
    one = folder(card)
    assert one == folder(card)
    others = [
        folder(dataclasses.replace(card, guidance_audio=3.0)),
        folder(dataclasses.replace(card, can=Capabilities(reference=True))),
        folder(card, num_steps=8),
    ]
    assert len({one, *others}) == 4


def test_a_process_of_its_own_gives_the_result() -> None:
    assert in_a_process(os.getpid) != os.getpid()
    assert in_a_process(max, 3, 7) == 7


def test_every_case_is_read_under_every_condition() -> None:
    cases = [case_of(i, torch.full((2, 3, 4, 4), i, dtype=torch.uint8)) for i in range(3)]
    conditions = {
        "same": lambda case: GeneratedClip(case.video),
        "brighter": lambda case: GeneratedClip(case.video + 10),
    }
    readings = read_cases(
        cases,
        conditions,
        lambda case, clip: {"level": float(clip.video.max()), "row": np.arange(case.person_id, 4)},
    )
    assert readings.values("same", "level").tolist() == [0, 1, 2]
    assert readings.values("brighter", "level").tolist() == [10, 11, 12]


def test_gains_are_paired_over_persons() -> None:
    rows = {name: [{"r": x + more} for x in (0.0, 5.0, 9.0)] for name, more in (("a", 1), ("b", 0))}
    readings, words = Readings(rows), {"a": "ours", "b": "theirs", "c": "not made"}
    found = means(readings, {"r": "mouth r"}, words, {"r": "dB"})
    assert set(found) == {"r_a", "r_b"}
    assert found["r_a"].value == pytest.approx(17 / 3)
    assert (found["r_a"].label, found["r_a"].unit) == ("mouth r: ours", "dB")
    paired = gains(readings, {"r": "mouth r"}, words, [("a", "b"), ("a", "c"), ("b", "b")])
    assert set(paired) == {"r_a_over_b"}
    gain = paired["r_a_over_b"]
    assert (gain.value, gain.low, gain.high) == (1.0, 1.0, 1.0)
    assert gain.label == "mouth r: ours over theirs"


def test_r_squared_of_the_truth_is_one_and_of_its_mean_zero() -> None:
    truth = np.random.default_rng(0).normal(size=(8, 20))
    assert r_squared(truth, truth).value == 1.0
    mean = np.full_like(truth, truth.mean())
    assert r_squared(mean, truth).value == pytest.approx(0.0, abs=1e-12)


def module_of(findings: Findings | None):
    """A measurement with one option."""

    def add_options(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--steps", type=int, default=3)

    return SimpleNamespace(
        __doc__="One measurement.", add_options=add_options, measure=lambda options: findings
    )


def test_a_measurement_writes_its_result_and_figures(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    number = Number(0.5, 4, 0.4, 0.6).described("mouth r")
    findings = Findings("A title", {"r": number}, figures={"": Figure(), "_frames": Figure()})
    words = ["--steps", "5", "--out", str(tmp_path / "out")]
    assert run_measurement("speed", "live", module_of(findings), words) == 0  # pyright: ignore
    result = json.loads((tmp_path / "out" / "speed_live.json").read_text())
    assert (result["title"], result["command"]) == ("A title", "avatar-v-eval speed live --steps 5")
    names = {path.name for path in (tmp_path / "out").iterdir()}
    assert names == {"speed_live.json", "speed_live.webp", "speed_live_frames.webp"}
    assert "mouth r" in capsys.readouterr().out


def test_a_measurement_that_measured_nothing_writes_nothing(tmp_path: Path) -> None:
    out = ["--out", str(tmp_path / "out")]
    assert run_measurement("study", "demo", module_of(None), out) == 0  # pyright: ignore
    assert not (tmp_path / "out").exists()
