"""A stage that someone writes with the page of the docs alone: a module and a recipe, two files."""

import re
from pathlib import Path

import pytest

from avatar_v.recipe.cli import run_words
from avatar_v.weights.card import read_card
from tiny_run import RECIPES, losses, make_shards

PAGE = Path(__file__).resolve().parents[2] / "docs" / "training" / "new_objective.md"


def test_the_stage_of_the_docs_runs_at_a_size_that_does_not_know_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    code = re.search(r"```python\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)
    assert code
    (tmp_path / "mine_of_docs").mkdir()
    (tmp_path / "mine_of_docs" / "huber.py").write_text(code[1], encoding="utf-8")
    recipe = (RECIPES / "2_a2v.yaml").read_text(encoding="utf-8")
    for old, new in (
        ("avatar_v.objectives.a2v.A2V", "mine_of_docs.huber.Huber"),
        ("face_boost: 1.0", "delta: 0.5"),
        ("    mouth_boost: 4.0\n", ""),
        ("init_from: runs/1_t2v/weights", "init_from: null"),
        ("runs/2_a2v", "runs/huber"),
    ):
        assert old in recipe
        recipe = recipe.replace(old, new)
    recipe = re.sub(r"    trainable:.*\n", "", recipe)
    (tmp_path / "huber.yaml").write_text(recipe, encoding="utf-8")
    make_shards(tmp_path)
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    words = ["huber.yaml", str(RECIPES / "tiny.yaml"), "--model.init_args.models.vae", "null"]
    assert run_words("run", [*words, "--trust", "mine_of_docs", "--trainer.max_steps", "4"]) == 0
    assert len(losses(tmp_path / "runs" / "tiny" / "huber")) == 4
    assert read_card(tmp_path / "runs" / "tiny" / "huber" / "weights").preset == "tiny"
