"""cli.py, recipe/cli.py: a light front end, merged recipes, one-line errors."""

import subprocess
import sys
from pathlib import Path

import pytest
import yaml

from avatar_v.cli import COMMANDS, main
from avatar_v.recipe.cli import merge, merge_recipes, split_configs, split_recipes
from avatar_v.recipe.lightning_cli import readable

HEAVY = ("torch", "lightning", "numpy", "diffusers", "transformers", "av", "jsonargparse")
OF_A_RECIPE = ("run", "fit", "validate")
"""Their options are those of the recipe's classes, so their help loads these."""


def write(path: Path, content: object) -> str:
    path.write_text(yaml.safe_dump(content), encoding="utf-8")
    return str(path)


@pytest.mark.parametrize("command", [None, *(c for c in COMMANDS if c not in OF_A_RECIPE)])
def test_help_imports_nothing_heavy(command: str | None) -> None:
    words = ["--help"] if command is None else [command, "--help"]
    program = (
        "import sys\nfrom avatar_v.cli import main\n"
        f"try:\n    main({words!r})\nexcept SystemExit as end:\n    assert end.code == 0\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "usage: avatar-v" in done.stdout


def test_weights_are_loaded_without_compiler_and_peers() -> None:
    """Each is seconds of every command; loading builds networks for their shapes, too."""
    slow = ("torch._dynamo", "diffusers", "peft", "torch.distributed.fsdp", "lightning")
    program = (
        "import sys\nfrom avatar_v.generate.pipeline import AvatarPipeline\n"
        "AvatarPipeline.from_pretrained()\n"
        f"slow = [name for name in {slow!r} if name in sys.modules]\nassert not slow, slow\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


def test_help_names_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as end:
        main(["--help"])
    assert end.value.code == 0
    text = capsys.readouterr().out
    for command in COMMANDS:
        assert f"\n    {command} " in text


def test_a_user_error_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "no/such/recipe.yaml"]) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert "no/such/recipe.yaml" in err
    with pytest.raises(ValueError, match="no such file"):
        main(["run", "no/such/recipe.yaml", "--debug"])


def test_a_file_that_is_missing_is_named(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "recipes/none.yaml"]) == 2
    said = "avatar-v: error: recipes/none.yaml: no such file; expected a recipe  (--debug "
    assert capsys.readouterr().err == said + "shows where)\n"


@pytest.mark.parametrize("command", ["world", "import"])
def test_a_wrong_number_of_frames_is_said_before_anything_heavy_loads(command: str) -> None:
    words = {
        "world": ["world", "--clips", "1", "--frames", "24", "--out", "x"],
        "import": ["import", "folder", "--frames", "24", "--out", "x"],
    }[command]
    program = (
        "import sys\nfrom avatar_v_data.cli import main\n"
        f"assert main({words!r}) == 2\n"
        f"heavy = [name for name in {HEAVY!r} if name in sys.modules]\n"
        "assert not heavy, heavy\n"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert "--frames 24: a clip has 4k + 1 frames" in done.stderr


@pytest.mark.parametrize(
    ("words", "text"),
    [(["run"], "needs a recipe"), (["run", "--x", "1"], "needs a recipe"), (["fit", "-c"], "-c")],
)
def test_incomplete_commands(
    words: list[str], text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(words) == 2
    assert text in capsys.readouterr().err


def test_run_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["run", "--help"]) == 0
    shown = capsys.readouterr().out
    assert "avatar-v run recipes/2_a2v.yaml recipes/small.yaml" in shown
    assert "avatar-v fit --help" in shown
    assert "recipes/4a_distill_cfg.yaml" in shown.partition("overlays:")[0]
    assert "recipes/tiny.yaml" in shown.partition("overlays:")[2]
    assert "``" not in shown


def test_recipes_stand_before_options() -> None:
    assert split_recipes(["a.yaml", "b.yaml", "--x", "1"]) == (["a.yaml", "b.yaml"], ["--x", "1"])
    words = ["-c", "a.yaml", "--x", "1", "--config=b.yaml", "--print_config"]
    assert split_configs(words) == (["a.yaml", "b.yaml"], ["--x", "1", "--print_config"])


def test_mappings_merge_and_lists_replace() -> None:
    old = {"a": {"x": 1, "y": 2}, "b": [1, 2], "c": 3}
    assert merge(old, {"a": {"y": 5}, "b": [9], "d": None}) == {
        "a": {"x": 1, "y": 5}, "b": [9], "c": 3, "d": None,
    }  # fmt: skip
    assert merge({"a": 1}, {"a": None}) == {"a": None}
    assert old == {"a": {"x": 1, "y": 2}, "b": [1, 2], "c": 3}


def test_a_schedule_replaces_the_one_before() -> None:
    assert merge({"window": {0: 1, 2000: 9}}, {"window": {0: 13}}) == {"window": {0: 13}}


def test_another_class_brings_its_own_arguments() -> None:
    old = {"class_path": "a.A", "init_args": {"x": 1}}
    assert merge(old, {"init_args": {"y": 2}})["init_args"] == {"x": 1, "y": 2}
    assert merge(old, {"class_path": "a.B"}) == {"class_path": "a.B"}


def test_callbacks_merge_by_class() -> None:
    old = [{"class_path": "A", "init_args": {"x": 1, "y": 2}}, {"class_path": "B"}]
    new = [{"class_path": "A", "init_args": {"x": 7}}, {"class_path": "C"}]
    merged = {"class_path": "A", "init_args": {"x": 7, "y": 2}}
    assert merge(old, new) == [merged, {"class_path": "B"}, {"class_path": "C"}]


def test_an_overlay_has_a_part_for_the_stage(tmp_path: Path) -> None:
    stage = write(tmp_path / "1_a.yaml", {"trainer": {"max_steps": 9, "precision": "bf16"}})
    other = write(tmp_path / "2_b.yaml", {"trainer": {}})
    overlay = write(
        tmp_path / "tiny.yaml",
        {"trainer": {"precision": 32}, "stages": {"1_a": {"trainer": {"max_steps": 2}}}},
    )
    assert merge_recipes([stage, overlay]) == {"trainer": {"max_steps": 2, "precision": 32}}
    with pytest.raises(ValueError, match="no part for 2_b, only for 1_a"):
        merge_recipes([other, overlay])


@pytest.mark.parametrize(("text", "match"), [("a: [", "not YAML"), ("- 1", "expected a mapping")])
def test_broken_recipes(tmp_path: Path, text: str, match: str) -> None:
    path = tmp_path / "x.yaml"
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=match):
        merge_recipes([str(path)])


def test_readable_keeps_the_cause() -> None:
    message = (
        'Parser key "model":\n  Does not validate against any of the Union subtypes\n'
        "  Subtypes: [<class 'A'>, <class 'NoneType'>]\n  Errors:\n"
        "    - Problem with given class_path 'a.A':\n        Option 'zz' is not accepted\n"
        "    - Expected a <class 'NoneType'>\n  Given value type: <class 'dict'>\n  Given value: {}"
    )
    assert (
        readable(message)
        == "model: Problem with given class_path 'a.A': Option 'zz' is not accepted"
    )
    assert readable("plain") == "plain"
