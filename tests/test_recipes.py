"""Every recipe is parsed, merged with its overlays and built; wrong keys are one clear error."""

from pathlib import Path

import lightning as L
import pytest
import yaml

from avatar_v.cli import main
from avatar_v.recipe import cli as stages_cli
from avatar_v.recipe import lightning_cli as recipe_cli
from avatar_v.recipe.cli import merge_recipes, run_words
from avatar_v.recipe.lightning_cli import RecipeCLI
from avatar_v.training.engine import Engine, subject_of
from avatar_v.weights.presets import preset
from tiny_run import RECIPES, STAGES, make_shards

CRITICS = [
    f"critic_{kind}{held_out}"
    for kind in ("face", "motion", "sync")
    for held_out in ("", "_held_out")
]
CRITICS.append("critic_preference")
VAE_STAGES = ("0_vae", "0_vae_decoder", "own_face_vae", "refiner_decoder")
DIT_STAGES = [
    stage
    for stage in STAGES
    if stage not in (*VAE_STAGES, "3_motion", "3_listening", "4c_distill_motion")
]
OWN_FACE = [stage for stage in STAGES if stage.startswith("own_face")]


def recipe(stage: str, overlay: str | None = None) -> list[str]:
    paths = [str(RECIPES / f"{stage}.yaml")]
    return paths if overlay is None else [*paths, str(RECIPES / f"{overlay}.yaml")]


@pytest.fixture
def parsed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path):
    """Parse and build everything of a recipe, but train nothing."""
    monkeypatch.chdir(tmp_path)
    seen: list[RecipeCLI] = []
    monkeypatch.setattr(RecipeCLI, "_run_subcommand", lambda self, _: seen.append(self))
    monkeypatch.setattr(stages_cli, "check_weights", lambda *_: None)  # no stage has run here

    def parse(paths: list[str], *options: str) -> RecipeCLI:
        assert run_words("run", [*paths, *options]) == 0
        return seen[-1]

    return parse


@pytest.mark.parametrize("stage", [stage for stage in STAGES if stage not in OWN_FACE])
def test_every_stage_is_built_at_the_small_size(stage: str, parsed) -> None:
    """At the tiny size golden/test_golden_losses.py trains each; the own face has one size."""
    cli = parsed(recipe(stage, "small"))
    assert isinstance(cli.model, L.LightningModule)
    assert cli.trainer.max_steps > 0
    assert cli.trainer.num_devices == 1


@pytest.mark.parametrize("overlay", ["wan_14b", "wan22_5b"])
def test_larger_networks_are_a_size_of_every_stage_of_the_dit(overlay: str) -> None:
    larger = str(RECIPES / f"{overlay}.yaml")
    for stage in (s for s in STAGES if s[0] in "12345"):
        merged = merge_recipes([str(RECIPES / f"{stage}.yaml"), larger])
        assert merged["model"]["init_args"]["models"]["preset"] == overlay
    for stage in ("0_vae", "critic_face"):
        with pytest.raises(ValueError, match=rf"{overlay}\.yaml is no size of {stage}"):
            merge_recipes([str(RECIPES / f"{stage}.yaml"), larger])


def test_a_size_fits_a_recipe_that_it_does_not_know(tmp_path: Path) -> None:
    """It changes the keys and callbacks that are there, adds none, and moves the runs."""
    text = (RECIPES / "2_a2v.yaml").read_text(encoding="utf-8")
    (tmp_path / "new.yaml").write_text(text.replace("runs/2_a2v", "runs/new"), encoding="utf-8")
    paths = [str(tmp_path / "new.yaml"), str(RECIPES / "tiny.yaml")]
    plain, merged = merge_recipes(paths[:1]), merge_recipes(paths)
    arguments = merged["model"]["init_args"]
    assert arguments.keys() == plain["model"]["init_args"].keys()
    assert arguments["models"]["init_from"] == "runs/tiny/1_t2v/weights"
    assert arguments["objective"]["window_latents"] == {0: 5}
    assert merged["trainer"]["default_root_dir"] == "runs/tiny/new"
    kinds = [
        [one["class_path"] for one in found["trainer"]["callbacks"]] for found in (plain, merged)
    ]
    assert kinds[0] == kinds[1]
    export = next(c for c in merged["trainer"]["callbacks"] if c["class_path"].endswith("Export"))
    assert export["init_args"]["recipe"] == " ".join(paths)
    with pytest.raises(ValueError, match=r"small\.yaml is no size of own_face"):
        merge_recipes([str(RECIPES / f"{name}.yaml") for name in ("own_face", "small")])


@pytest.mark.parametrize("stage", [*VAE_STAGES, "own_face"])
def test_recipes_of_the_small_size_are_built_alone(stage: str, parsed) -> None:
    assert parsed(recipe(stage)).trainer.max_steps > 0


@pytest.mark.parametrize("name", CRITICS)
def test_recipes_of_critics_are_built_alone(name: str, parsed) -> None:
    cli = parsed(recipe(name))
    assert cli.trainer.max_steps % cli.datamodule.batches_per_epoch == 0
    cli.model.configure_model()
    assert cli.model.export.name == cli.model.model.name


@pytest.mark.parametrize("stage", ["1_t2v", "2_a2v", "3_pictures", "3_sft"])
def test_full_size_recipes_fit_their_preset(stage: str, parsed) -> None:
    """Built for one CPU; the devices are the only thing that differs from the recipe."""
    cli = parsed(
        recipe(stage), "--trainer.accelerator=cpu", "--trainer.devices=1", "--trainer.strategy=auto"
    )
    assert isinstance(cli.model, Engine)
    subject = subject_of(cli.model)
    assert preset(subject.models.preset).dit.dim == 1536
    longest = 1 if stage == "3_pictures" else 41
    assert max(subject.objective.window_latents.values()) == longest
    strategy = merge_recipes(recipe(stage))["trainer"]["strategy"]
    assert strategy["class_path"].endswith("ShardedStrategy")
    assert strategy["init_args"]["data_parallel_size"] == "auto"  # any number of nodes


@pytest.mark.parametrize("name", [*STAGES, *CRITICS, "small", "tiny"])
def test_a_recipe_starts_with_how_to_run_it(name: str) -> None:
    text = (RECIPES / f"{name}.yaml").read_text(encoding="utf-8")
    header = [line for line in text.splitlines() if line.startswith("#")]
    assert "avatar-v run" in "\n".join(header)


def test_checkpoints_lie_in_the_folder_of_the_run(parsed) -> None:
    cli = parsed(recipe("1_t2v", "tiny"), "--trainer.default_root_dir", "here")
    assert [c.dirpath for c in cli.trainer.checkpoint_callbacks] == ["here/checkpoints"]


def test_an_option_overrides_the_recipes(parsed) -> None:
    subject = parsed(recipe("2_a2v", "tiny"), "--model.init_args.mouth_boost", "7").model.subject
    assert subject.regions.mouth_boost == 7
    assert subject.objective.image_share == 0.9  # of 2_a2v.yaml
    assert subject.objective.window_latents == {0: 5}  # of tiny.yaml, instead of {0: 21, …}


@pytest.mark.parametrize(("emulated", "taken"), [(False, "bf16-mixed"), (True, "32-true")])
def test_bf16_is_fp32_where_the_processor_emulates_it(
    emulated: bool, taken: str, parsed, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(recipe_cli, "emulates_bf16", lambda device: emulated)
    cli = parsed(recipe("1_t2v", "tiny"), "--trainer.precision", "bf16-mixed")
    assert cli.trainer.precision == taken
    assert cli.config["fit"]["trainer"]["precision"] == taken  # which recipe.yaml says
    assert ("no AVX-512" in capsys.readouterr().err) == emulated


def test_printed_config_parses_to_itself(
    tmp_path: Path, parsed, capsys: pytest.CaptureFixture[str]
) -> None:
    words = [*recipe("2_a2v", "tiny"), "--print_config"]
    with pytest.raises(SystemExit) as end:
        run_words("run", words)
    assert end.value.code == 0
    printed = capsys.readouterr().out
    path = tmp_path / "printed.yaml"
    path.write_text(printed, encoding="utf-8")
    again, first = parsed([str(path)]).model, parsed(recipe("2_a2v", "tiny")).model
    assert again.subject.objective == first.subject.objective
    assert again.optim == first.optim
    assert again.subject.models == first.subject.models
    assert yaml.safe_load(printed)["trainer"]["max_steps"] == 8


WRONG = {"model": {"class_path": "avatar_v.objectives.a2v.A3V"}}


@pytest.mark.parametrize(
    ("words", "names"),
    [
        (["--data.init_args.batch_size", "0"], ["batch_size"]),
        (["--model.init_args.objective.image_share", "2"], ["image_share", "2"]),
        (["--model.init_args.objective", '{"window_latents": {"4": 5}}'], ["step 0"]),
        (["wrong.yaml"], ["A3V"]),
    ],
)
def test_wrong_values_are_one_clear_error(
    words: list[str],
    names: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Misspelt keys and settings of the trainer are in integration/test_bad_recipes.py."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(stages_cli, "check_weights", lambda *_: None)  # stage 1 has not run here
    Path("wrong.yaml").write_text(yaml.safe_dump(WRONG), encoding="utf-8")
    assert main(["run", *recipe("2_a2v", "tiny"), *words]) == 2
    (error,) = [line for line in capsys.readouterr().err.splitlines() if "error" in line]
    assert error.startswith("avatar-v: error: ")
    assert all(name in error for name in names)


@pytest.fixture(scope="module")
def shards(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("shards")
    make_shards(folder)
    return folder


@pytest.mark.parametrize("stage", DIT_STAGES)
def test_missing_weights_are_named(
    stage: str, shards: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(shards)
    assert main(["run", *recipe(stage, "tiny")]) == 2
    assert "runs/tiny/" in capsys.readouterr().err
