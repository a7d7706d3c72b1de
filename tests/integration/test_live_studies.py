"""The studies `latency` and `hearing`, at a size at which they say nothing of quality."""

import dataclasses
import json
from pathlib import Path

import pytest
import torch

from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.models.causal import as_causal
from avatar_v.request.request import Request
from avatar_v.request.resolve import live_delay
from avatar_v.weights.weights import load_pipeline
from avatar_v_eval.cases import make_cases
from avatar_v_eval.generated import generate
from avatar_v_eval.rollout import Rollout
from avatar_v_eval.studies.latency import latency_numbers, of_block
from eval_cases import measured


def test_a_latency_is_what_is_waited_for_and_what_a_chunk_takes(
    pipe: AvatarPipeline, weights: Path
) -> None:
    """Of the same weights in blocks of another length, which see as much of the past."""
    dit, conditioner = load_pipeline(weights)
    can = dataclasses.replace(pipe.card.can, motion=True, causal_block=3, window_latents=8)
    causal = AvatarPipeline(
        as_causal(dit, block=3, window=2), conditioner, dataclasses.replace(pipe.card, can=can),
        device="cpu", precision="fp32",
    )  # fmt: skip
    request = Request.of(reference="", audio="", num_steps=1, gain_db=0.0)
    (case,) = make_cases(
        "validation", 1, first=30, num_frames=25, reference_frames=201, size=32,
        target_video=False, reference_video=True,
    )  # fmt: skip
    way = of_block(Rollout(causal, request), 1)
    assert (way.pipeline.dit.config.causal_block, way.pipeline.dit.config.causal_window) == (1, 6)
    assert causal.dit.config.causal_block == 3
    way = dataclasses.replace(way, request=way.request.changed(look_ahead=1))
    numbers = latency_numbers("k", "words", way, case)
    wait = live_delay(way.request, way.pipeline.card).later_s
    assert numbers["latency_k"].value == pytest.approx(wait + numbers["made_k"].value)
    assert numbers["made_k"].n == 2
    parts = [numbers[f"made_{part}_k"].value for part in ("motion", "video", "other")]
    assert min(parts) > 0
    assert sum(parts) <= (numbers["made_k"].high or 0)
    whole = generate(of_block(Rollout(causal, request), 3), case, 201).video
    assert not torch.equal(generate(way, case, 201).video, whole)


def test_windows_come_near_to_the_whole_recording(tmp_path: Path) -> None:
    words = ["--persons", "2", "--seconds", "1", "--windows", "1", "7", "--look-aheads", "0", "6"]
    measured("study", "hearing", *words, "--out", str(tmp_path))
    found = json.loads((tmp_path / "hearing.json").read_text())["numbers"]
    assert found["error_w1_a0"]["value"] > found["error_w1_a6"]["value"] > 0.01
    assert found["error_w7_a6"]["value"] < 1e-4, "it holds the whole recording"
