"""Hostile and careless command lines: each ends in one clear line, or is carried out.

A sample of the table runs here; ``PYTHONPATH=tests python -m bad_inputs`` runs all of it.
"""

import random
from pathlib import Path

import pytest

from bad_inputs.case import Case
from bad_inputs.cases import all_cases
from bad_inputs.files import make_files
from bad_inputs.judge import judged

NUM_SAMPLED = 60


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad_inputs") / "files"
    make_files(folder)
    return folder


def test_the_table_is_large_and_names_each_case_once() -> None:
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names)) >= 300


@pytest.mark.parametrize(
    "case", random.Random(0).sample(all_cases(), NUM_SAMPLED), ids=lambda case: case.name
)
def test_the_end_is_the_one_of_the_table(case: Case, files: Path) -> None:
    verdict = judged(case, files)
    assert verdict.fault is None, f"{case.command}: {verdict.error}"
