"""`avatar-v-eval speed distilled`: systems in turns, at tiny size; no time is judged."""

from pathlib import Path

import pytest

from avatar_v.generate import making
from avatar_v.inputs.inputs import read_inputs
from avatar_v_eval.records import read_result
from eval_cases import measured


def test_two_systems_are_compared(weights: Path, tmp_path: Path) -> None:
    systems = [f"slow={weights}?num_steps=6", f"quick={weights}?num_steps=1"]
    words = ["--frames", "9", "--repeats", "1", "--out", str(tmp_path), "--systems", *systems]
    assert measured("speed", "distilled", *words) == 0
    result = read_result(tmp_path / "speed_distilled.json")
    for part in ("made", "sampled"):
        seconds = [result.numbers[f"{part}_{name}"].value for name in ("slow", "quick")]
        over = result.numbers[f"{part}_slow_over_quick"].value
        assert over == pytest.approx(seconds[0] / seconds[1], rel=1e-4)  # rounded in the file
    with pytest.raises(ValueError, match="at least two"):
        measured("speed", "distilled", *words[:-1])


def test_latents_are_those_that_are_decoded(pipe, request_, monkeypatch) -> None:
    inputs, seen = read_inputs(request_, pipe.input_spec), []
    decode = making.decode_chunks

    def noting(conditioner, settings, chunks):
        return decode(conditioner, settings, (seen.append(c) or c for c in chunks))

    monkeypatch.setattr(making, "decode_chunks", noting)
    frames = list(pipe.stream(inputs, request_))
    chunks = list(pipe.latents(inputs, request_))
    assert frames
    assert len(chunks) == len(seen)
    assert all((a.latents == b.latents).all() for a, b in zip(chunks, seen, strict=True))
