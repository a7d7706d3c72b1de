"""The weights that ship are restored to the bit on every processor, and as near as was measured."""

import json
import re
from pathlib import Path

import pytest

from avatar_v.critics.frozen import weights_hash
from avatar_v.models.base import part_folder
from avatar_v.weights.card import ASSETS
from avatar_v.weights.weights import load_dit, read_state

RESULTS = Path(__file__).resolve().parents[2] / "eval" / "results"
VAE = {"vae": "25ab06db27b4"}
SHARED = {**VAE, "text": "cafc99bd14e5", "audio": "f36a7c391df7", "motion": "eececede9574"}
RESTORED = {
    "small": {"dit": "a95f899242b6", **SHARED},
    "small_student": {"dit": "da4ef1385b35", **SHARED},
    "small_causal": {"dit": "4894ac8b5ec2", **SHARED},
    "small_refiner": {
        "dit": "44ff08066721",
        "vae": "6d076e3f0cc7",
        "text": "2fbccd03a1cb",
        "audio": "74503b383d23",
    },
}
"""Hashes of tensors, not of files: they would differ if a processor rounded otherwise."""
BEFORE_IT_LISTENED = "d61cd0af2abf"
"""Of the motion network: where nobody else is heard, older results are its own."""


@pytest.mark.parametrize("name", RESTORED)
def test_the_tensors_are_those_that_were_measured(name: str) -> None:
    found = {"dit": weights_hash(load_dit(ASSETS / name / "dit").state_dict())}
    for part in RESTORED[name].keys() - {"dit"}:
        found[part] = weights_hash(read_state(ASSETS / name / part))
    assert found == RESTORED[name]
    assert part_folder(ASSETS / name / "motion").is_dir() == ("motion" in found)


def test_listening_changed_no_other_tensor() -> None:
    state = read_state(part_folder(ASSETS / "small" / "motion"))
    kept = {key: value for key, value in state.items() if not key.startswith("listening.")}
    assert len(kept) < len(state)
    assert weights_hash(kept) == BEFORE_IT_LISTENED


@pytest.mark.parametrize("name", ["small", "student", "causal"])
def test_videos_are_as_good_as_those_before_as_the_docs_say(name: str) -> None:
    result = json.loads((RESULTS / f"same_{name}.json").read_text())
    weights = "small" if name == "small" else f"small_{name}"
    dits = {key.removeprefix("dit of "): value for key, value in result["weights"].items()}
    assert {value for key, value in dits.items() if key in ("now", "now_image", "now_prompt")} == {
        RESTORED[weights]["dit"]
    }
    differences = {
        key: number["value"]
        for key, number in result["numbers"].items()
        if re.match(r"(held_out_)?(mouth|identity|sync|sharpness|flicker|energy)_now.*_over_", key)
    }
    assert len(differences) >= 9
    assert max(map(abs, differences.values())) < 0.005


def test_the_refiner_was_measured_as_it_is_stored() -> None:
    result = json.loads((RESULTS / "refiner.json").read_text())
    assert result["weights"]["refined"] == RESTORED["small_refiner"]["dit"]
