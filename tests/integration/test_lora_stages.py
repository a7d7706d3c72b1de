"""LoRA in every stage: the adapter that a run leaves, merged into its base, is what it wrote."""

from pathlib import Path

import pytest
import torch
from torch import Tensor, nn

from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.guided import with_guidance_inside
from avatar_v.training.trainable import AUDIO, MOTION
from avatar_v.weights.adapter import check_adapters, load_merged
from avatar_v.weights.adapter_files import read_adapter
from avatar_v.weights.card import AdapterSpec, Card, read_card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import load_pipeline, save_pipeline
from random_models import make_motion_net, randomise
from tiny_run import make_shards, run_stage

RANGES = ((1.0, 5.0), (1.0, 5.0), (1.0, 3.0))
STAGES: dict[str, tuple[str, ...]] = {
    "1_t2v": (),
    "2_a2v": AUDIO,
    "3_pictures": MOTION,
    "3_sft": MOTION,
    "3_motion": (),
    "4a_distill_cfg": (*MOTION, "guidance_embed"),
    "4b_distill_dmd": (),
    "4c_distill_motion": (),
    "5a_grpo": (),
    "5b_dpo": (),
    "5b_dpo_video": (),
    "own_face": (),
    "refiner": ("low_embed", "head"),
    "refiner_adversarial": ("low_embed", "head"),
}
"""What each trains whole, beside its factors."""
LIKE_OTHERS = (
    "3_pictures", "3_sft", "4c_distill_motion", "5a_grpo", "5b_dpo", "own_face",
    "refiner_adversarial",
)  # fmt: skip
"""They train what another of these stages trains, by another loss."""
OWN_VAE = ("1_t2v", "own_face", "refiner", "refiner_adversarial")
"""Recipes that name a VAE: here it is that of the base."""
OF_MOTION = ("3_motion", "4c_distill_motion", "5a_grpo", "5b_dpo")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Shards, and weights to start from: "base" knows all, "deaf" hears nothing yet, "guided" is
    told the guidance."""
    folder = tmp_path_factory.mktemp("lora_stages")
    make_shards(folder)
    for name in ("base", "deaf", "guided"):
        dit, conditioner = build("tiny", seed=0, motion_stats=motion_stats())
        randomise(dit)
        conditioner.motion_net = make_motion_net(conditioner.audio_encoder.dim)
        if name == "deaf":
            for key, parameter in dit.named_parameters():
                if ".audio_attention.out." in key:
                    nn.init.zeros_(parameter)
        elif name == "guided":
            dit = with_guidance_inside(dit, RANGES)
        save_pipeline(folder / name, dit, conditioner, Card("tiny"))
    return folder


@pytest.mark.parametrize(
    "stage",
    [pytest.param(s, marks=[pytest.mark.slow] if s in LIKE_OTHERS else []) for s in STAGES],
)
def test_an_adapter_on_its_base_is_what_the_run_leaves(
    stage: str, folder: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.chdir(folder)
    base = {"2_a2v": "deaf", "4b_distill_dmd": "guided"}.get(stage, "base")
    run_stage(
        stage,
        *("--trainer.max_steps", "2", "--trainer.limit_val_batches", "0"),
        *("--trainer.default_root_dir", str(tmp_path)),
        *("--model.init_args.optim.num_warmup_steps", "0"),
        *("--model.init_args.models.init_from", base),
        *(("--model.init_args.models.vae", f"{base}/vae") if stage in OWN_VAE else ()),
        *("--model.init_args.trainable.parts", "lora"),
        *("--model.init_args.trainable.lora_rank", "2"),
    )
    adapter = read_adapter(tmp_path / "adapter")
    assert adapter.about.part == ("motion" if stage in OF_MOTION else "dit")
    assert {key.split(".")[0] for key in adapter.whole if not key.startswith("blocks")} == {
        name for name in STAGES[stage] if not name.startswith(("motion_n", "motion_i", "audio_n"))
    } - {"audio_attention", "identity_embed"}  # the base reads no face vectors
    assert any(bool(b.any()) for _, b in adapter.factors.values())
    assert sum(factor.shape[-1] == 2 for _, factor in adapter.factors.values()) >= 8
    chosen = [AdapterSpec(tmp_path / "adapter")]
    card = check_adapters(Path(base), chosen)
    dit, conditioner = load_merged(Path(base), chosen)
    written = load_pipeline(tmp_path / "weights", preset="tiny")
    assert same(state(dit, conditioner), state(*written))
    assert not same(state(*load_pipeline(base)), state(*written))
    assert card == read_card(tmp_path / "weights")


def state(dit: AvatarDiT, conditioner: Conditioner) -> dict[str, Tensor]:
    assert conditioner.motion_net is not None
    motion = {f"motion.{key}": x for key, x in conditioner.motion_net.state_dict().items()}
    return {**dit.state_dict(), **motion}


def same(one: dict[str, Tensor], other: dict[str, Tensor]) -> bool:
    return one.keys() == other.keys() and all(torch.equal(one[key], other[key]) for key in one)


def test_lora_of_a_motion_network_that_is_not_there_is_refused(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(folder)
    dit, conditioner = build("tiny", seed=0, motion_stats=motion_stats())
    save_pipeline(folder / "still", dit, conditioner, Card("tiny"))
    with pytest.raises(ValueError, match="have no motion network"):
        run_stage(
            "3_motion",
            *("--model.init_args.models.init_from", "still"),
            *("--model.init_args.trainable.parts", "lora"),
        )
