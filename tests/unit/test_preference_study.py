"""Pairs with known faults, and what the study makes of scores that are known."""

import argparse
import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch

from avatar_v.shards.loader import read_folder
from avatar_v.shards.pairs import WINNERS, read_pair
from avatar_v_eval.edited_pairs import (
    PANEL,
    TERMS,
    Faults,
    draw_faults,
    edited_pairs,
    margins,
    write_edited,
)
from avatar_v_eval.studies import preference
from avatar_v_eval.studies.preference import Answers, accuracies, recovered

NONE = Faults()


def test_raters_weigh_each_fault_as_they_say() -> None:
    faulty = [
        Faults(lag=-6),
        Faults(mouth=0.5),
        Faults(mouth=2.0),
        Faults(blur=1.0),
        Faults(stranger=True),
    ]
    found = margins(PANEL, [NONE] * 5, faulty)
    sizes = (1.0, np.log(2), np.log(2), 1.0, 1.0)
    weights = [[term.weight for term in rater.terms] for rater in PANEL.raters]
    for rater, row in enumerate(found):
        asked = [weights[rater][term] for term in (0, 1, 1, 2, 3)]
        assert row.tolist() == pytest.approx([a * s for a, s in zip(asked, sizes, strict=True)])
    drawn = [draw_faults(np.random.default_rng(i)) for i in range(50)]
    assert [Faults.read(of.words()) for of in drawn] == drawn
    for field in dataclasses.fields(Faults):
        assert len({getattr(of, field.name) for of in drawn}) > 1


def test_pairs_show_their_faults_and_repeat(tmp_path: Path) -> None:
    write_edited(tmp_path, "test", 1, first=5, num_frames=5, seed=1)
    pairs = [read_pair(entry, pictures=True) for entry in read_folder(tmp_path)]
    again = edited_pairs("test", 5, num_frames=5, seed=1)
    assert len(pairs) == len(again) == 6
    for pair, same in zip(pairs, again, strict=True):
        assert pair.judgment == same.judgment
        assert torch.equal(pair.first, same.first)
        assert pair.pictures is not None
        assert pair.pictures.first.shape == (5, 3, 64, 64)
        if Faults.read(pair.judgment.first) == Faults.read(pair.judgment.second):
            assert torch.equal(pair.pictures.first, pair.pictures.second)
        else:
            assert not torch.equal(pair.pictures.first, pair.pictures.second)
    with pytest.raises(ValueError, match="holds other pairs than test-5-1-5-2"):
        write_edited(tmp_path, "test", 1, first=5, num_frames=5, seed=2)


def answers(num: int = 600) -> Answers:
    """Pairs of 60 persons, judged as is wanted on average, one time in ten the other way round."""
    draw = np.random.default_rng(0)
    terms = draw.normal(size=(num, len(TERMS)))
    weights = np.mean([[term.weight for term in rater.terms] for rater in PANEL.raters], axis=0)
    wanted = terms @ weights
    first = (wanted > 0) ^ (draw.random(num) < 0.1)
    winner = np.where(first, WINNERS.index("first"), WINNERS.index("second"))
    winner[:60] = WINNERS.index("tie")
    return Answers(winner, np.arange(num) % 60, wanted, wanted, terms)


def test_who_scores_as_raters_want_is_right_as_often_as_they_are() -> None:
    of = answers()
    scores = {"model": 0.3 * of.wanted, "control": np.zeros(len(of.wanted))}
    numbers = accuracies(scores, of) | recovered(scores["model"], of)
    assert numbers["accuracy_model"].value == numbers["accuracy_panel"].value
    assert numbers["accuracy_model"].value == pytest.approx(0.9, abs=0.04)
    assert numbers["truth_model"].value == 1.0
    assert numbers["truth_control"].value == 0.5
    assert numbers["margin_r"].value == pytest.approx(1.0)
    assert numbers["accuracy_model"].n == 60
    for term in TERMS:
        wanted = numbers[f"wanted_{term.__name__}"].value
        assert numbers[f"share_{term.__name__}"].value == pytest.approx(wanted)
    blind = recovered(of.terms[:, 2], of)
    assert blind["share_sharp"].value == pytest.approx(1.0)
    assert blind["share_in_sync"].value == pytest.approx(0.0, abs=1e-9)


def test_a_part_of_one_person_is_refused() -> None:
    parser = argparse.ArgumentParser()
    preference.add_options(parser)
    with pytest.raises(ValueError, match="persons of test is a whole number from 2"):
        preference.measure(parser.parse_args(["--persons", "1"]))
