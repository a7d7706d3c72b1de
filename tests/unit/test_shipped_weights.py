"""The weights that ship are restored to the bit on every processor, and as near as was measured."""

import json
from pathlib import Path

import pytest

from avatar_v.critics.frozen import weights_hash
from avatar_v.models.base import hash_folder, part_folder
from avatar_v.weights.card import ASSETS, read_card
from avatar_v.weights.weights import load_dit, read_state

RESULTS = Path(__file__).resolve().parents[2] / "eval" / "results"
SHARED = {"vae": "25ab06db27b4", "text": "8e7b8984b51a", "audio": "6fa90ed79fab"}
MOTION = {"motion": "f76559416e96"}
RESTORED = {
    "small": {"dit": "c14fd127592d", **SHARED, **MOTION},  # of the whole weights, before
    "small_student": {"dit": "ce41bf7689a9", **SHARED, **MOTION},
    "small_causal": {"dit": "5fbacdafb994", **SHARED, **MOTION},
    "small_refiner": {
        "dit": "3e372ae06ec9",
        "vae": "378733b2f095",
        "text": "f6a4242aee65",
        "audio": "545fc8611be8",
    },
}
"""Hashes of tensors, not of files: they would differ if a processor rounded otherwise."""


@pytest.mark.parametrize("name", RESTORED)
def test_the_tensors_are_those_that_were_measured(name: str) -> None:
    found = {"dit": weights_hash(load_dit(ASSETS / name / "dit").state_dict())}
    for part in RESTORED[name].keys() - {"dit"}:
        found[part] = weights_hash(read_state(ASSETS / name / part))
    assert found == RESTORED[name]
    assert part_folder(ASSETS / name / "motion").is_dir() == ("motion" in found)


@pytest.mark.parametrize(("name", "largest"), [("student", 1), ("causal", 1), ("refiner", 2)])
def test_frames_were_as_near_those_before_as_the_docs_say(name: str, largest: int) -> None:
    result = json.loads((RESULTS / f"same_{name}.json").read_text())
    folder = ASSETS / f"small_{name}"
    whole = read_card(folder).whole
    assert whole is not None
    assert result["weights"] == {
        "pipeline_weights": hash_folder(folder),
        "pipeline_before": whole.weights,
    }
    assert result["numbers"]["largest"]["value"] <= largest
    assert result["numbers"]["beyond"]["value"] < 1e-6  # of values more than 1 apart
    assert result["numbers"]["largest"]["n"] >= 8
