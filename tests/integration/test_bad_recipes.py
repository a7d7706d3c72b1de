"""Recipes and options that do not fit: one line with where, what is expected and what was given,
exit status 2, and nothing is left behind."""

import os
import pickle
import sqlite3
from pathlib import Path

import pytest
import torch
import yaml

from avatar_v.base.outside import MAX_BYTES
from avatar_v.cli import main
from avatar_v.recipe.before import check_experiment_log
from tiny_run import RECIPES, make_shards

STAGE = "--model.init_args."
TRAINER = "--trainer."
LINE = "avatar-v: error: "


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("bad_recipes")
    make_shards(folder)
    fresh = {"model": {"init_args": {"models": {"vae": None, "init_from": None}}}}
    (folder / "fresh.yaml").write_text(yaml.safe_dump(fresh), encoding="utf-8")
    return folder


@pytest.fixture
def here(shards: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(shards)
    return shards


def words(stage: str, *options: str) -> list[str]:
    recipes = [str(RECIPES / f"{stage}.yaml"), str(RECIPES / "tiny.yaml"), "fresh.yaml"]
    return ["run", *recipes, *options]


def refused(command: list[str], capsys: pytest.CaptureFixture[str]) -> str:
    """The one line that ``command`` ends with; nothing is there that was not there before."""
    before = set(Path.cwd().rglob("*"))
    assert main(command) == 2
    line = capsys.readouterr().err
    assert line.count("\n") == 1, line
    assert line.startswith(LINE)
    assert len(line) < 330, line
    assert set(Path.cwd().rglob("*")) == before
    return line


TRAINERS = [
    ("devices", "0", "trainer.devices is a whole number from 1 to 1,024, got 0"),
    ("devices", "-7", "trainer.devices is a whole number from 1 to 1,024, got -7"),
    ("devices", "-1", "trainer.devices is a number of processes with accelerator cpu, got -1"),
    ("devices", "1000000", "trainer.devices is a whole number from 1 to 1,024, got 1000000"),
    ("max_steps", "-7", "trainer.max_steps is a whole number from 1"),
    ("max_steps", "0", "trainer.max_steps is a whole number from 1"),
    ("max_steps", "-1", "trainer.max_steps is a whole number above 0, got -1"),
    ("max_steps", "2", "pass --model.init_args.optim.num_warmup_steps 0, or train for longer"),
    ("max_steps", "many", "trainer.max_steps: expected int, got many"),
    ("gradient_clip_val", "-1", "trainer.gradient_clip_val is at least 0"),
    ("gradient_clip_val", ".nan", "trainer.gradient_clip_val is at least 0"),
    ("accumulate_grad_batches", "0", "trainer.accumulate_grad_batches is a whole number from 1"),
    ("num_nodes", "0", "trainer.num_nodes is a whole number from 1"),
    ("default_root_dir", "null", "trainer.default_root_dir is the folder of the run, such as"),
    ("default_root_dir", "fresh.yaml/x", "but fresh.yaml is a file, got fresh.yaml/x"),
    ("precision", "7-bit", "trainer.precision: expected int or"),
    ("strategy", "nonsense", "trainer.strategy is auto, ddp, another name that Lightning knows"),
    ("accelerator", "quantum", "trainer.accelerator is one of auto, gpu, "),
    ("limit_val_batches", "-3", "limit_val_batches"),
    ("callbacks", "[7]", "trainer.callbacks: Not a valid subclass of Callback, got 7"),
]


@pytest.mark.parametrize(("name", "value", "said"), TRAINERS)
def test_settings_of_the_trainer(
    name: str, value: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert said in refused(words("1_t2v", TRAINER + name, value), capsys)


VALUES = [
    ("1_t2v", "optim.lr", ".nan", "is above 0 and at most 10, got nan"),
    ("1_t2v", "optim.lr", "1.0e+12", "is above 0 and at most 10, got 1000000000000.0"),
    ("1_t2v", "optim.lr", "fast", ": expected float, got fast"),
    ("1_t2v", "optim.betas", "[1, 2, 3]", ": expected tuple with 2 elements, got [1, 2, 3]"),
    ("1_t2v", "objective.shift", "0", "is above 0 and at most 1000, got 0.0"),
    ("2_a2v", "mouth_boost", ".inf", "is at least 0 and at most 1e+06, got inf"),
    ("0_vae", "loss.kl_weight", ".nan", "is at least 0 and at most 1e+06, got nan"),
    ("refiner_adversarial", "adversarial.lr", "-1", "is above 0 and at most 10, got -1.0"),
]


@pytest.mark.parametrize(("stage", "name", "value", "said"), VALUES)
def test_values_of_a_stage_are_named_by_their_whole_path(
    stage: str, name: str, value: str, said: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    command = words(stage, STAGE + name, value)
    if stage == "0_vae":
        command.remove("fresh.yaml")
    line = refused(command, capsys)
    assert f"model.init_args.{name}" in line
    assert said in line


@pytest.mark.skipif(torch.cuda.is_available(), reason="this machine has what is asked for")
@pytest.mark.parametrize("command", ["fit", "validate"])
def test_a_gpu_that_is_not_there(
    command: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = [part for path in words("1_t2v")[1:] for part in ("-c", path)]
    line = refused([command, *recipes, TRAINER + "accelerator", "gpu"], capsys)
    assert "trainer.accelerator: this machine has no gpu; expected cpu or auto" in line


def test_the_recipe_that_comes_before_is_named(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipe, overlay = str(RECIPES / "2_a2v.yaml"), str(RECIPES / "tiny.yaml")
    line = refused(["run", recipe, overlay], capsys)
    assert "model.init_args.models.init_from: there are no weights in runs/tiny/1_t2v/wei" in line
    assert f"first run: avatar-v run {RECIPES / '1_t2v.yaml'} {overlay}  (" in line
    line = refused(["run", recipe, overlay, STAGE + "models.init_from", "no/such"], capsys)
    assert "there are no weights in no/such  (" in line


SHIPPED = {
    (
        "3_motion",
        "tiny",
        "small_student",
    ): "init_from: small_student holds weights of preset small, and models.preset is tiny: take",
    ("1_t2v", "small", "smal"): "init_from: there are no weights 'smal'; expected a folder, or one "
    "of small_student, small",
    ("4a_distill_cfg", "small", "small_student"): "small_student has guidance inside already; exp",
    ("5a_grpo", "small", "small_refiner"): "small_refiner is none of few steps",
    ("4c_distill_motion", "small", "small_refiner"): "small_refiner has no motion network: start ",
}


@pytest.mark.parametrize(("stage", "size", "name"), SHIPPED)
def test_shipped_weights_are_taken_by_name_and_do_not_fit_every_stage(
    stage: str, size: str, name: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    recipes = [str(RECIPES / f"{recipe}.yaml") for recipe in (stage, size)]
    options = [f"--data.init_args.{part}=shards/tiny/{part}" for part in ("train", "validation")]
    options += ["--data.init_args.decode_video=true"] if stage != "5a_grpo" else []
    more = [f"{STAGE}models.init_from={name}", "--trainer.logger=false", "--trainer.precision=32"]
    assert SHIPPED[stage, size, name] in refused(["run", *recipes, *options, *more], capsys)


# --- misspelt keys ---

MISSPELT = {
    "modl: {seed: 1}": "a recipe has no key modl; nearest: model",
    "trainer: {max_stepss: 3}": "trainer has no key max_stepss; nearest: max_steps, min_steps",
    "model: {init_arg: {seed: 1}}": "model has no key init_arg; nearest: init_args",
    "model: {init_args: {optim: {rate: 3}}}": "model.init_args.optim has no key rate; it has lr, n",
    "data: {init_args: {batchsize: 3}}": "data.init_args has no key batchsize; nearest: batch_size",
    "stages: {1_t2v: {model: {init_args: {sed: 3}}}}": "model.init_args has no key sed; nearest: s",
    "trainer: {callbacks: [{class_path: avatar_v.callbacks.record.Export, init_args: {rcipe: x}}]}":
    "trainer.callbacks.avatar_v.callbacks.record.Export.init_args has no key rcipe; nearest: rec",
}  # fmt: skip
OPTIONS = {
    "--trainer.max_step": "trainer has no key max_step; nearest: max_steps, max_time, min_steps",
    "--ckpt_pat": "a recipe has no key ckpt_pat; nearest: ckpt_path",
    "--model.init_args.optim.l": "model.init_args.optim has no key l; nearest: lr",
    "--model.sed": "model has no key sed; nearest: seed",
}


@pytest.mark.parametrize("content", MISSPELT)
def test_a_misspelt_key_is_named_with_its_file_and_the_keys_near_it(
    content: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (here / "wrong.yaml").write_text(content, encoding="utf-8")
    line = refused([*words("1_t2v"), "wrong.yaml", STAGE + "seed", "1"], capsys)
    assert f"{LINE}wrong.yaml: {MISSPELT[content]}" in line


@pytest.mark.parametrize("option", OPTIONS)
def test_an_abbreviated_option_is_none(
    option: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"{LINE}{option}: {OPTIONS[option]}" in refused(words("1_t2v", option, "2"), capsys)


# --- recipe files ---


def bomb(levels: int) -> str:
    lines = ["x0: &x0 [1, 1, 1, 1, 1, 1, 1, 1, 1, 1]"]
    for i in range(1, levels):
        lines.append(f"x{i}: &x{i} [{', '.join([f'*x{i - 1}'] * 10)}]")
    return "\n".join(lines)


def merges(levels: int) -> str:
    lines = ["x0: &x0 {a: 1, b: 2}"]
    for i in range(1, levels):
        lines.append(f"x{i}: &x{i} {{<<: [{', '.join([f'*x{i - 1}'] * 10)}]}}")
    return "\n".join(lines)


FILES = {
    "aliases": (bomb(9), "aliases (*name) make more than 20,000 values of it"),
    "merges": (merges(9), "aliases (*name) make more than 20,000 values of it"),
    "itself": ("x: &x [*x]", "aliases (*name) make more than 20,000 values of it"),
    "large": ("x: 1\n" * (MAX_BYTES // 4), "it has more than 1,000,000 bytes"),
    "deep": ("[" * 100_000, "its values are nested too deeply"),
    "bytes": (b"x: \xff\xfe", "it is not text in UTF-8"),
    "python": ("x: !!python/object/apply:os.system ['true']", "could not determine a constructor"),
    "list": ("trainer: [1, 2]", "trainer is a mapping, got list ([1, 2])"),
    "nothing": ("trainer:", "trainer is a mapping, got nothing"),
    "stages": ("stages: 7", "stages is a mapping, got int (7)"),
    "part": ("stages: {1_t2v: [1]}", "part 1_t2v is not a recipe: expected a mapping, got list"),
    "number": ("7: 1", "keys of a recipe are words, got 7"),
    "empty": ("", "is not a recipe: expected a mapping, got nothing"),
}


@pytest.mark.parametrize("name", FILES)
def test_files_that_are_no_recipe(
    name: str, tmp_path: Path, shards: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    content, said = FILES[name]
    path = tmp_path / "bad.yaml"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    monkeypatch.chdir(shards)
    line = refused([*words("1_t2v"), str(path)], capsys)
    assert str(path) in line
    assert said in line


def test_a_pipe_is_no_recipe_and_is_not_waited_for(
    here: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "pipe: a pipe; expected a recipe" in refused(
        [*words("1_t2v"), str(tmp_path / "pipe")], capsys
    )


def test_a_device_that_never_ends_is_no_recipe(
    here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert "/dev/zero: a device; expected a recipe" in refused(["run", "/dev/zero"], capsys)


# --- checkpoints ---


class Evil:
    """What a pickle of this runs when it is read."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __reduce__(self):
        return (Path.touch, (self.path,))


def checkpoint(**parts: object) -> dict[str, object]:
    return {"state_dict": {"a": torch.zeros(2000)}, "global_step": 1, "loops": {}, **parts}


def write_checkpoint(kind: str, path: Path) -> None:
    evil = Evil(path.with_name("was_run"))
    if kind in ("folder", "pickled index", "pickled value"):
        import torch.distributed.checkpoint as dcp

        value = evil if kind == "pickled value" else 1.0
        dcp.save({"o": {"x": torch.zeros(2), "y": value}}, checkpoint_id=path, no_dist=True)
        if kind != "folder":
            torch.save(checkpoint(), path / "meta.pt")
        if kind == "pickled index":
            (path / ".metadata").write_bytes(pickle.dumps(evil))
        return
    if kind == "plain pickle":
        path.write_bytes(pickle.dumps(evil))
    elif kind == "text":
        path.write_text("hello")
    else:
        contents = {
            "pickled": checkpoint(extra=evil),
            "state": {"a": torch.zeros(2)},
            "list": [1],
        }
        torch.save(contents.get(kind, checkpoint()), path)
    content = path.read_bytes()
    if kind == "cut":
        path.write_bytes(content[: len(content) // 2])
    elif kind == "flipped":
        half = len(content) // 2
        path.write_bytes(content[:half] + bytes([content[half] ^ 255]) + content[half + 1 :])


CHECKPOINTS = {
    "pickled": "it holds objects that could run code",
    "plain pickle": "it is damaged or of another kind",
    "pickled index": "which could run code",
    "pickled value": "it holds objects that could run code",
    "folder": "the folder lacks .metadata or meta.pt",
    "state": "has no state_dict, global_step, loops",
    "list": "it holds a list",
    "text": "it is damaged or of another kind",
    "cut": "it is damaged or of another kind",
    "flipped": "it is damaged at",
    "foreign": "does not fit the recipe (it trains the roles [], not ['student'])",
}


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("kind", CHECKPOINTS)
def test_checkpoints_that_no_run_left(
    kind: str, tmp_path: Path, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "x.ckpt"
    write_checkpoint(kind, path)
    if kind == "foreign":
        torch.save(checkpoint(**{"pytorch-lightning_version": "2.6.0"}), path)
    line = refused(words("1_t2v", "--ckpt_path", str(path)), capsys)
    assert f"ckpt_path: {path}" in line
    assert CHECKPOINTS[kind] in line
    assert not (tmp_path / "was_run").exists()


@pytest.mark.parametrize("path", ["none.ckpt", "http://localhost:9/x.ckpt"])
def test_a_checkpoint_that_is_not_there(
    path: str, here: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert f"there is no file or folder '{path}'" in refused(
        words("1_t2v", "--ckpt_path", path), capsys
    )


# --- MLflow ---


def mlflow(uri: str) -> dict[str, object]:
    return {
        "class_path": "avatar_v.callbacks.experiment_log.PatientMLFlowLogger",
        "init_args": {"tracking_uri": uri},
    }


def test_an_experiment_log_that_cannot_be_opened_is_said_at_once(tmp_path: Path) -> None:
    text, database, locked = (tmp_path / name for name in ("text", "new.db", "locked.db"))
    text.write_text("no database " * 100)
    for uri, said in (
        (f"sqlite:///{text}", "file is not a database"),
        (f"sqlite:///{text}/x.db", "is no folder that can be written"),
        (f"sqlite:///{tmp_path}", "unable to open database file"),
        ("http://localhost:9", "refused"),
    ):
        with pytest.raises(ValueError, match=rf"trainer.logger: .*{said}"):
            check_experiment_log([mlflow(uri)])
    for good in (mlflow(f"sqlite:///{database}"), {"class_path": "x.CSVLogger"}, False, None):
        check_experiment_log(good)
    assert not database.exists()
    sqlite3.connect(locked).execute("CREATE TABLE x (y)")
    check_experiment_log(mlflow(f"sqlite:///{locked}"))
