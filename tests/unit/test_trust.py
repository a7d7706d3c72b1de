"""A recipe of a stranger runs nothing that it brings or names, and writes only into its run.

Each payload makes the folder ``mark``: by the import of a module beside it, by a program, or by a
function that is called. The folder may not be there afterwards.
"""

import os
import pickle
import sys
import zipfile
from pathlib import Path

import pytest
import yaml

from avatar_v.base import trust
from avatar_v.cli import main
from avatar_v.planning.recipe import read_recipe
from avatar_v.recipe.checkpoint_file import INDEX, REST, check_checkpoint, check_left
from avatar_v.recipe.cli import merge_recipes, run_words, split_recipes
from avatar_v.recipe.keys import unknown_key
from avatar_v.rewards.raters import read_panel

RECIPES = Path(__file__).resolve().parents[2] / "recipes"
LIGHTNING = "lightning.pytorch"
CHECKPOINT = f"{LIGHTNING}.callbacks.ModelCheckpoint"
CSV = f"{LIGHTNING}.loggers.CSVLogger"
REWARD = {"path": "subprocess.Popen", "options": {"args": ["mkdir", "mark"]}}
SCORED = {"path": "avatar_v.rewards.scored.Scored", "options": {"scorer": "hostile.scorers"}}
Part = dict[str, object]


def _of(class_path: str, **arguments: object) -> Part:
    return {"class_path": class_path, "init_args": arguments}


def _trainer(**settings: object) -> str:
    return yaml.safe_dump({"trainer": settings})


def _callback(part: object) -> str:
    return _trainer(callbacks=[part])


def _watch(rewards: object) -> str:
    return _callback(
        _of("avatar_v.callbacks.watch_rewards.WatchRewards", every_num_steps=1, num_batches=1,
            metrics=[], rewards=rewards)
    )  # fmt: skip


def _checkpoint(key: str, value: str) -> str:
    return _callback(_of(CHECKPOINT, **{key: value}))


def _mlflow(key: str, value: str) -> str:
    return _trainer(logger={"init_args": {key: value}})


LAUNCH = _of("torch.distributed.launcher.api.elastic_launch", entrypoint="mkdir")
NAMES = {
    "a class in a class": _callback(_of(f"{LIGHTNING}.callbacks.LambdaCallback", setup=LAUNCH)),
    "a class by its last word": _callback("LambdaCallback"),
    "a module": _callback(_of("hostile.Class")),
    "a module as a word": _trainer(logger="hostile.Class"),
    "a module in a text": _trainer(logger="{class_path: hostile.Class}"),
    "a module in a list": _trainer(plugins=["hostile.Class"]),
    "a profiler": _trainer(profiler=_of("hostile.Class")),
    "a strategy": _trainer(strategy=_of("hostile.Class")),
    "a model": "model: {class_path: hostile.Class}",
    "a model in a merge key": "data: &a {class_path: hostile.Class}\nmodel: {<<: *a}",
    "a value of a stage": "model: {init_args: {seed: {class_path: hostile.Class}}}",
    "a value of data": "data: {init_args: {train: {class_path: os.system}}}",
    "a module of another": _callback(_of("avatar_v.base.paths.os.abort")),
    "a file for a class": _trainer(logger="other.yaml"),
    "a file for a model": "model: other.yaml",
    "a reward": _watch([REWARD]),
    "a scorer": _watch([SCORED]),
    "a scorer in a text": _watch(yaml.safe_dump([SCORED], default_flow_style=True)),
    "a reward in a text": _watch(yaml.safe_dump([REWARD], default_flow_style=True)),
    "a part of an overlay": "stages: {1_t2v: {trainer: {callbacks: [{class_path: hostile.A}]}}}",
    "a parser's own": _callback(_of("jsonargparse.ArgumentParser")),
}
"""What each recipe says, by where it hides the name."""
KINDS = {
    "own, but no callback": _callback(_of("avatar_v.media.writer.Mp4Writer")),
    "a hook": _trainer(
        strategy=_of(
            f"{LIGHTNING}.strategies.DDPStrategy", ddp_comm_hook="avatar_v.base.checks.count"
        )
    ),
    "what is passed on": _trainer(
        logger={"class_path": f"{LIGHTNING}.loggers.TensorBoardLogger", "dict_kwargs": {"a": "b"},
                "init_args": {"save_dir": "runs/1_t2v"}}
    ),
}  # fmt: skip
PLACES = {
    "root": _trainer(default_root_dir="/tmp/x"),
    "root above": _trainer(default_root_dir="../x"),
    "root at home": _trainer(default_root_dir="~/x"),
    "root by address": _trainer(default_root_dir="file:///tmp/x"),
    "checkpoints": _checkpoint("dirpath", "/tmp/x"),
    "checkpoints above": _checkpoint("dirpath", "runs/1_t2v/../../x"),
    "checkpoints beside": _checkpoint("dirpath", "runs/other"),
    "checkpoints by a link": _checkpoint("dirpath", "runs/1_t2v/link"),
    "checkpoints by address": _checkpoint("dirpath", "file:///tmp/x"),
    "names above": _checkpoint("filename", "../x"),
    "names from the root": _checkpoint("filename", "/tmp/x"),
    "names filled in": _checkpoint("filename", "{step!s:/>1.0}tmp/x"),
    "names of attributes": _checkpoint("filename", "{step].__class__}"),
    "csv": _trainer(logger=_of(CSV, save_dir="/tmp")),
    "csv in a text": _trainer(logger=f"{{class_path: {CSV}, init_args: {{save_dir: /tmp}}}}"),
    "version of csv": _trainer(logger=_of(CSV, save_dir="runs/1_t2v", version="../../x")),
    "profile": _trainer(profiler=_of(f"{LIGHTNING}.profilers.SimpleProfiler", dirpath="/tmp")),
    "store": _mlflow("tracking_uri", "sqlite:////proc/x.db"),
    "store above": _mlflow("tracking_uri", "sqlite:///../x.db"),
    "store elsewhere": _mlflow("tracking_uri", "http://127.0.0.1:9"),
    "store by options": _mlflow("tracking_uri", "sqlite:///file:x?uri=true"),
    "files of the store": _mlflow("artifact_location", "/tmp/x"),
    "files of the store by scheme": _mlflow("artifact_location", "file:/tmp/x"),
}


class Payload:
    """Makes the folder ``mark`` for whoever unpickles it."""

    def __reduce__(self) -> tuple:
        return os.mkdir, ("mark",)


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A working folder with a module that leaves a mark where it is imported."""
    (tmp_path / "hostile.py").write_text("import os\nos.mkdir('mark')\nclass Class: ...\n")
    (tmp_path / "other.yaml").write_text("class_path: hostile.Class")
    (tmp_path / "runs/1_t2v").mkdir(parents=True)
    (tmp_path / "runs/1_t2v/link").symlink_to("/tmp")
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setattr(trust, "_trusted", set())
    return tmp_path


def _read(text: str, *options: str) -> None:
    Path("overlay.yaml").write_text(text)
    read_recipe([str(RECIPES / "1_t2v.yaml"), "overlay.yaml"], options)


@pytest.mark.parametrize("name", NAMES)
def test_a_recipe_imports_no_name_of_its_own(name: str, here: Path) -> None:
    with pytest.raises(ValueError, match="is not among what a recipe may name"):
        _read(NAMES[name])
    assert not (here / "mark").exists(), "code of the recipe was run"
    assert "hostile" not in sys.modules


@pytest.mark.parametrize("name", KINDS)
def test_a_recipe_builds_only_parts_of_a_run(name: str, here: Path) -> None:
    with pytest.raises(ValueError, match=r"subclass of Callback|is not for recipes"):
        _read(KINDS[name])


@pytest.mark.parametrize("name", PLACES)
def test_a_recipe_writes_into_its_run_alone(name: str, here: Path) -> None:
    with pytest.raises(ValueError, match=r"a recipe writes|name of a file"):
        _read(PLACES[name])


def test_names_and_places_that_are_fine(here: Path) -> None:
    part = _of(CHECKPOINT, dirpath="runs/1_t2v/more", filename="{epoch}-{val/loss:.2f}")
    _read(_callback(part))
    # What is typed is the user's own.
    store = "--trainer.logger.init_args.tracking_uri=sqlite:////tmp/x.db"
    _read("{}", "--trainer.default_root_dir", "/tmp/x", store)


def test_a_name_that_is_typed_needs_trust_as_well(here: Path) -> None:
    for option in ("--trainer.callbacks+=hostile.Class", "--model=hostile.Class"):
        with pytest.raises(ValueError, match="is not among what a recipe may name"):
            _read("{}", option)
    assert not (here / "mark").exists()


@pytest.mark.parametrize(
    "words", [["plan"], ["doctor"], ["run"], ["fit", "-c"], ["validate", "-c"]]
)
def test_every_command_that_reads_recipes_refuses(
    words: list[str], here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "bad.yaml").write_text("trainer: {callbacks: [{class_path: hostile.Class}]}")
    assert main([*words, "bad.yaml"]) in (1, 2)  # doctor lists it
    out = capsys.readouterr()
    assert "hostile.Class is not among what a recipe may name" in out.err + out.out
    assert not (here / "mark").exists()


def test_what_the_user_trusts_is_imported(here: Path) -> None:
    (here / "of_a_user.py").write_text(
        "import lightning as L\nclass Mine(L.Callback):\n    def __init__(self, folder: str): ...\n"
    )
    overlay = "trainer: {callbacks: [{class_path: of_a_user.Mine, init_args: {folder: /tmp}}]}"
    (here / "overlay.yaml").write_text(overlay)
    words = [
        str(RECIPES / "1_t2v.yaml"),
        "overlay.yaml",
        "--trust",
        "of_a_user",
        "--trust=other.part",
    ]
    assert split_recipes(trust.split_trust(words)) == (words[:2], [])
    assert trust.is_trusted("of_a_user.Mine")
    assert not trust.is_trusted("of_a_user_too.Mine")
    _read(overlay)
    for wrong in ("", "a-b", "mine.", "jsonargparse.typing"):
        with pytest.raises(ValueError, match="--trust"):
            run_words("run", ["--trust", wrong])


def test_looking_for_misspelt_keys_imports_nothing(here: Path) -> None:
    assert unknown_key({"class_path": "hostile.Class", "init_args": {"x": 1}}, None) is None
    assert not (here / "mark").exists()


def test_a_file_of_raters_names_terms_of_the_project_alone(here: Path) -> None:
    (here / "raters.json").write_text(
        '{"raters": [{"name": "a", "terms": [{"path": "hostile.x"}]}]}'
    )
    with pytest.raises(ValueError, match=r"terms\[0\]: hostile.x is not among what a recipe may"):
        read_panel("raters.json")
    assert not (here / "mark").exists()


def test_what_a_requeued_job_left_runs_nothing(here: Path) -> None:
    folder = here / "hpc_ckpt_1.ckpt"
    folder.mkdir()
    for name in (INDEX, REST):
        (folder / name).write_bytes(pickle.dumps(Payload()))
    with pytest.raises(ValueError, match=r"hpc_ckpt_1\.ckpt cannot be read"):
        check_left(str(here))
    assert not (here / "mark").exists()


def test_a_checkpoint_is_not_compressed(here: Path) -> None:
    with zipfile.ZipFile("a.ckpt", "w", zipfile.ZIP_DEFLATED) as file:
        file.writestr("archive/data/0", bytes(1 << 20))
    with pytest.raises(ValueError, match="it is compressed, as no checkpoint is"):
        check_checkpoint("a.ckpt")


def test_merging_recipes_looks_at_names_before_torch_is_there(here: Path) -> None:
    (here / "bad.yaml").write_text(NAMES["a class in a class"])
    with pytest.raises(ValueError, match="LambdaCallback is not among"):
        merge_recipes(["bad.yaml"])
