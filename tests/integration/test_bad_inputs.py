"""Hostile and careless command lines: each ends in one clear line, or is carried out.

A sample of the table runs with every test, all of it with the slow ones; ``PYTHONPATH=tests python
-m bad_inputs`` writes the counts.
"""

import random
from pathlib import Path

import pytest
from _pytest.mark import ParameterSet

from bad_inputs.case import Case
from bad_inputs.cases import all_cases
from bad_inputs.files import make_files
from bad_inputs.judge import judged

NUM_SAMPLED = 30


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad_inputs") / "files"
    make_files(folder)
    return folder


def test_the_table_is_large_and_names_each_case_once() -> None:
    names = [case.name for case in all_cases()]
    assert len(names) == len(set(names)) >= 300


def every_case() -> list[ParameterSet]:
    cases = all_cases()
    quick = {case.name for case in random.Random(0).sample(cases, NUM_SAMPLED)}
    return [
        pytest.param(case, id=case.name, marks=() if case.name in quick else pytest.mark.slow)
        for case in cases
    ]


@pytest.mark.parametrize("case", every_case())
def test_the_end_is_the_one_of_the_table(case: Case, files: Path) -> None:
    verdict = judged(case, files)
    assert verdict.fault is None, f"{case.command}: {verdict.error}"
