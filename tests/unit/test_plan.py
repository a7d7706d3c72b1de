"""planning: what is planned is what real networks and real steps on the CPU take."""

import dataclasses
from collections import defaultdict
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.utils.flop_counter import FlopCounterMode

from avatar_v.base.video_format import VideoFormat
from avatar_v.cli import main
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.guided import with_guidance_inside
from avatar_v.models.vae import VideoVAE
from avatar_v.parallel.mesh import Layout
from avatar_v.planning import doctor, memory, step
from avatar_v.planning.batches import Clips
from avatar_v.planning.gpus import GPU, RESERVE_GIB, gpu_of
from avatar_v.planning.memory import GIB, Plan, left_bytes, plan_of
from avatar_v.planning.networks import UMT5OfWan, build_networks
from avatar_v.planning.passes import Pass, context_bytes, context_flops, pass_cost
from avatar_v.planning.recipe import Recipe, Spread, read_recipe
from avatar_v.planning.replay import Replay
from avatar_v.planning.report import Machine, clips_of, recipe_report
from avatar_v.planning.step import BatchCost
from avatar_v.training.engine import trains_clips
from avatar_v.weights.card import Card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import save_pipeline
from tiny_run import RECIPES

FRESH = (
    *("--model.init_args.models.init_from", "null"),
    *("--model.init_args.models.vae", "null"),
)


def tiny(stage: str, *options: str) -> Recipe:
    return read_recipe([str(RECIPES / f"{stage}.yaml"), str(RECIPES / "tiny.yaml")], options)


@pytest.fixture(scope="module", autouse=True)
def _encoders_once() -> Iterator[None]:
    """What recipes share is run once for all of them: a call of UMT5 of one kind, and the VAE of
    one shape on videos of one size."""
    watch, encoded = Replay.watch, step._encoded
    texts: dict[Any, Any] = {}
    videos: dict[str, dict[Any, Any]] = defaultdict(dict)

    def watch_once(self: Replay, module: torch.nn.Module, *, trains: bool = True) -> None:
        if isinstance(module, UMT5OfWan):
            self = Replay(self.counter)
            self._known = texts
        watch(self, module, trains=trains)

    def encoded_once(vae: VideoVAE, encode: Any, counter: Any, known: dict, video: Any) -> Any:
        return encoded(vae, encode, counter, videos[str(vae.core.config)], video)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(Replay, "watch", watch_once)
        patch.setattr(step, "_encoded", encoded_once)
        yield


def staying(num_ranks: int) -> Plan:
    """What the motion network of full size keeps on so many GPUs; no step is run."""
    recipe = read_recipe([str(RECIPES / "3_motion.yaml")])
    spread = Spread("fsdp", Layout(num_ranks))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(memory, "step_cost", lambda *_, **__: BatchCost(0, 0, 0, 1, 0))
        return plan_of(recipe, Clips(1, 161, VideoFormat(480, 480)), spread)


def test_shards_of_twice_the_ranks_are_half_as_large() -> None:
    full, twice = staying(8), staying(16)
    for name in ("trained weights", "gradients", "optimiser states", "averages"):
        assert twice.parts[name] == pytest.approx(full.parts[name] / 2)
    assert full.num_parameters == 7_450_168_320  # 1.54 billion, and UMT5's encoder
    # which the motion network does not run: they stay in main memory
    assert full.parts["frozen weights"] == 0
    assert full.parts["frozen encoders and VAE"] < 0.1 * 2**30


def test_a_recipe_that_does_not_fit_says_what_would_help() -> None:
    recipe = tiny("2_a2v", *FRESH)
    little = Machine(GPU("small card", 3.0, 1.0, 100.0, 10.0), 0.5)
    clips = clips_of(recipe, None, None)
    assert (clips.video.size, clips.num_frames) == (
        (32, 32),
        17,
    )  # of the preset, and of the longest window
    text = recipe_report(recipe, little, recipe.spread, clips, measures=False)
    assert "does not fit: 3 of 3 GiB on each of 1 small card" in text
    assert "models.checkpoint_activations: true: " in text
    assert "batch_size: 2: -0.0 GiB" in text


def test_a_reference_that_fills_no_whole_segments_is_planned() -> None:
    recipe = tiny("3_sft", *FRESH, "--model.init_args.personality.min_reference_latents", "9")
    plan = plan_of(recipe, Clips(2, 33, VideoFormat(32, 32)), recipe.spread, with_time=False)
    assert plan.parts["activations"] > 0


OVERLAYS = ("tiny", "small", "minutes", "wan_14b", "wan22_5b")
ALONE = sorted({path.stem for path in RECIPES.glob("*.yaml")} - set(OVERLAYS))
"""Recipes as they stand. All that follows is planned as it is run."""
STAGES = [name for name in ALONE if name[0] in "12345"]
"""Those that larger sizes have, too."""


OF_EACH_KIND = ("3_sft", "4c_distill_motion", "5b_dpo", "critic_face", "0_vae")
"""Clips and pairs, one network and several, and what needs no plan. The others take seconds to half
a minute each and run with the slow tests; the doctor builds the networks of all."""
WITH_TIME = "3_motion"


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(n, marks=[] if n in OF_EACH_KIND else [pytest.mark.slow])
        for n in ALONE
        if n != WITH_TIME
    ],
)
def test_every_recipe_is_planned_to_fit(name: str) -> None:
    """Its time is left out, which takes as long again and needs the same of recipe and networks."""
    words = [str(RECIPES / f"{name}.yaml")]
    recipe, machine = read_recipe(words), Machine(gpu_of("h100"), 0.4)
    if not trains_clips(recipe.model):
        told = recipe_report(recipe, machine, recipe.spread, None, measures=False)
        assert told.endswith("it needs no plan")
        return
    plan = plan_of(recipe, clips_of(recipe, None, None), recipe.spread, with_time=False)
    assert 0 < plan.total / GIB < 80 - RESERVE_GIB
    assert plan.parts["activations"] > 0


def test_a_recipe_is_planned_with_its_time(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["plan", str(RECIPES / f"{WITH_TIME}.yaml")]) == 0
    said = capsys.readouterr().out
    assert ": fits: " in said
    assert "activations" in said
    assert " s a step at 40% of 989 TFLOP/s" in said


def test_captions_encoded_ahead_leave_the_text_encoder_out() -> None:
    """Of training: the weights that it leaves have UMT5, as those of `staying` do."""
    words = ["--model.init_args.models.stored_text", "true"]
    recipe = read_recipe([str(RECIPES / "3_motion.yaml")], words)
    stage = recipe.fresh_stage()
    build_networks(stage)
    empty = stage.conditioner.text_encoder.parameters()
    assert sum(p.numel() for p in empty) == 512 * 4096
    assert left_bytes(recipe)[1] == 4 * 7_450_168_320


def test_the_doctor_knows_what_every_recipe_leaves(tmp_path: Path, monkeypatch) -> None:
    """Weights and shards are missing, of course; who makes them is another test's."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(doctor, "made_by", lambda *_: None)
    for name in ALONE:
        found = [
            finding.text for finding in doctor.recipe_findings([str(RECIPES / f"{name}.yaml")])
        ]
        assert "recipe: every key and value is right" in found
        assert len([text for text in found if text.startswith("disk: ")]) == 1, found


@pytest.mark.parametrize(
    ("overlay", "names"),
    [
        ("wan_14b", ("3_sft", "4b_distill_dmd", "4c_distill_motion")),
        ("wan22_5b", ("1_t2v", "4d_causal_forcing")),
        pytest.param("wan_14b", STAGES, marks=pytest.mark.slow),
    ],
    ids=["14B", "5B", "14B, every stage"],
)
def test_every_recipe_builds_the_networks_of_larger_sizes(
    overlay: str, names: Sequence[str]
) -> None:
    path = RECIPES / f"{overlay}.yaml"
    for name in names:
        checkpoint, weights = left_bytes(read_recipe([str(RECIPES / f"{name}.yaml"), str(path)]))
        assert checkpoint > 0
        assert weights > 4 * 5e9


def test_a_stage_that_refuses_its_networks_is_no_full_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    dit, conditioner = build("tiny", motion_stats=motion_stats())
    told = with_guidance_inside(dit, ((1.0, 2.0),) * 3)
    save_pipeline("runs/student/weights", told, conditioner, Card(preset="tiny"))
    words = [str(RECIPES / f"{name}.yaml") for name in ("4e_self_forcing", "tiny")]
    start = ["--model.init_args.models.init_from", "runs/student/weights"]
    assert main(["doctor", *words, "--", *start]) == 1
    said = capsys.readouterr().out
    why = "runs/student/weights: the scores are weights of stage 3"
    assert f"MISSING  networks: the stage cannot build them: {why}" in said
    assert "disk: " not in said.partition("recipe: ")[2]


def test_generation_is_planned_of_weights_and_of_presets(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert main(["plan", "--generate", "small", "--seconds", "4"]) == 0
    said = capsys.readouterr().out
    assert said.startswith("small: fits: 3 of 80 GiB on each of 1 H100")
    assert "4 s of 64 x 64" in said
    assert "text and sound, once for all steps of a chunk: 8.33% of a step" in said


def test_what_text_and_sound_cost_is_counted() -> None:
    dit, of = AvatarDiT(DiTConfig.tiny()), Pass(2, 3, (4, 4), text_tokens=5)
    sound = torch.zeros(2, 3, dit.config.num_audio_tokens, dit.config.audio_dim)
    with FlopCounterMode(display=False) as counter:
        text, heard = (
            dit._embed_text(torch.zeros(2, 5, dit.config.text_dim)),
            dit._embed_audio(sound),
        )
        for block in dit.blocks:
            block.text_attention.project_keys(text)
            if block.audio_attention is not None:
                block.audio_attention.project_keys(heard.flatten(0, 1))
    assert context_flops(dit, of) == counter.get_total_flops()
    whole, rest = pass_cost(dit, of), pass_cost(dit, dataclasses.replace(of, kept=True))
    assert whole.flops - rest.flops == context_flops(dit, of)
    config, num_layers = dit.config, dit.config.num_layers
    assert context_bytes(dit, of) == 2 * 2 * num_layers * config.dim * (2 * 5 + 2 * 3 * 8)


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ([], "plan needs a recipe, or --generate"),
        (["x.yaml", "--gpu", "h1000"], "no GPU 'h1000'; there are h100"),
        (["x.yaml", "--mfu", "2"], "--mfu"),
        (["x.yaml", "--gpus", "0"], "--gpus"),
        (["x.yaml"], "x.yaml: no such file"),
    ],
)
def test_what_cannot_be_planned_is_one_line(
    words: list[str], told: str, tmp_path: Path, monkeypatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["plan", *words]) == 2
    assert told in capsys.readouterr().err
    assert not list(tmp_path.iterdir())
