"""Pipeline folders: round trips, and errors that name what is wrong."""

import json
import shutil
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from avatar_v.critics.frozen import Critic
from avatar_v.critics.motion import MotionMeter
from avatar_v.critics.world_sync import WorldSyncNet
from avatar_v.faces.face import FaceCritic
from avatar_v.weights.card import Card, read_card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import check_state, load_dit, load_pipeline, read_state, save_pipeline
from random_models import make_dit, randomise


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    dit, conditioner = build("tiny", seed=1, motion_stats=motion_stats())
    randomise(dit)
    folder = tmp_path_factory.mktemp("made") / "weights"
    save_pipeline(folder, dit, conditioner, Card("tiny", recipe="recipes/x.yaml"))
    return folder


@pytest.fixture
def folder(made: Path, tmp_path: Path) -> Path:
    """A copy that a test may spoil."""
    return shutil.copytree(made, tmp_path / "weights")


def edit(path: Path, **changes: object) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **changes}))


def test_build_is_repeatable_and_leaves_the_global_generator_alone() -> None:
    state = torch.random.get_rng_state()
    first, second, other = (
        build("tiny", seed=1, motion_stats=motion_stats()),
        build("tiny", seed=1, motion_stats=motion_stats()),
        build("tiny", seed=2, motion_stats=motion_stats()),
    )
    assert torch.equal(torch.random.get_rng_state(), state)
    for a, b in zip(first, second, strict=True):
        assert all(torch.equal(x, y) for x, y in zip(a.parameters(), b.parameters(), strict=True))
    assert not torch.equal(first[0].patch_embed.weight, other[0].patch_embed.weight)


def test_a_full_size_preset_needs_its_encoders() -> None:
    from avatar_v.weights.presets import build_conditioner

    with pytest.raises(ValueError, match="preset wan_14b needs folders for vae, text, audio"):
        build_conditioner("wan_14b")


def test_a_pipeline_comes_back_as_it_was(tmp_path: Path) -> None:
    dit, conditioner = build("tiny", seed=1, motion_stats=motion_stats())
    randomise(dit)
    save_pipeline(tmp_path / "weights", dit, conditioner, Card("tiny", commit="abc"))
    again, encoders = load_pipeline(tmp_path / "weights", preset="tiny")
    assert again.config == dit.config
    for saved, loaded in ((dit, again), (conditioner, encoders)):
        states = saved.state_dict(), loaded.state_dict()
        assert states[0].keys() == states[1].keys()
        assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    assert read_card(tmp_path / "weights") == Card("tiny", commit="abc")
    assert not again.training
    assert all(p.requires_grad for p in again.parameters())


def test_stored_half_precision_loads_as_fp32(tmp_path: Path) -> None:
    dit, conditioner = build("tiny", motion_stats=motion_stats())
    save_pipeline(tmp_path / "weights", dit, conditioner, Card("tiny"), dtype=torch.float16)
    again, _ = load_pipeline(tmp_path / "weights")
    assert again.patch_embed.weight.dtype == torch.float32
    assert torch.equal(again.patch_embed.weight, dit.patch_embed.weight.half().float())


def test_an_existing_folder_is_replaced_only_when_asked(folder: Path) -> None:
    dit, conditioner = build("tiny", seed=2, motion_stats=motion_stats())
    with pytest.raises(ValueError, match="exists"):
        save_pipeline(folder, dit, conditioner, Card("tiny"))
    save_pipeline(folder, dit, conditioner, Card("tiny", recipe="new"), overwrite=True)
    assert read_card(folder).recipe == "new"
    assert not folder.with_name("weights.partial").exists()


def test_weights_of_another_preset_or_version_are_refused(folder: Path) -> None:
    with pytest.raises(ValueError, match="weights of preset 'tiny', expected 'small'"):
        load_pipeline(folder, preset="small")
    edit(folder / "card.json", schema_version=99)
    with pytest.raises(ValueError, match="schema version 99, this code reads 3"):
        load_pipeline(folder)


@pytest.mark.parametrize("name", ["card.json", "dit/config.json", "text/model.safetensors"])
def test_a_missing_file_is_named(folder: Path, name: str) -> None:
    (folder / name).unlink()
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        load_pipeline(folder)


def test_a_damaged_file_is_named(folder: Path) -> None:
    path = folder / "dit" / "model.safetensors"
    path.write_bytes(path.read_bytes()[:1000])
    with pytest.raises(ValueError, match=r"dit/model\.safetensors is damaged"):
        load_pipeline(folder)


def test_every_key_that_does_not_fit_is_named_at_once(folder: Path) -> None:
    path = folder / "dit" / "model.safetensors"
    state = load_file(path)
    del state["blocks.1.ffn.up.weight"]
    state["blocks.0.text_norm.bias"] = torch.zeros(3)
    state["blocks.9.modulation"] = torch.zeros(6, 48)
    save_file(state, path)
    with pytest.raises(ValueError, match="do not fit") as error:
        load_pipeline(folder)
    lines = str(error.value).splitlines()
    assert lines[1:] == [
        "  missing: blocks.1.ffn.up.weight",
        "  unexpected: blocks.9.modulation",
        "  shape of blocks.0.text_norm.bias: (3,), expected (48,)",
    ]


def test_parts_that_a_dit_no_longer_has_are_left_out(folder: Path) -> None:
    before, path = load_dit(folder / "dit").state_dict(), folder / "dit" / "model.safetensors"
    save_file({**load_file(path), "motion_head.out.weight": torch.ones(2)}, path)
    after = load_dit(folder / "dit").state_dict()
    assert before.keys() == after.keys()
    assert all(torch.equal(before[key], after[key]) for key in before)


def test_encoders_that_do_not_fit_the_dit_are_refused(folder: Path) -> None:
    other = make_dit()
    config = {**json.loads((folder / "dit/config.json").read_text()), "text_dim": 40}
    (folder / "dit/config.json").write_text(json.dumps(config))
    state = other.state_dict()
    state["text_embed.up.weight"] = torch.zeros(48, 40)
    save_file(state, folder / "dit/model.safetensors")
    with pytest.raises(ValueError, match="text width: 32 here, 40 in the DiT"):
        load_pipeline(folder)


def test_check_state_accepts_what_fits() -> None:
    state = make_dit().state_dict()
    check_state(state, dict(state), where="here")


NO_RATE = {"width": 64, "height": 64, "frame_rate_hz": 26, "framing": "face"}
BROKEN = [
    ("card.json", {"guidance_audio": float("nan")}, "card.json: guidance_audio is a finite number"),
    ("card.json", {"guidance_motion": "3"}, "guidance_motion is a finite number from 0 to 100"),
    ("card.json", {"guidance_audio": True}, "guidance_audio is a finite number .*, got True"),
    ("card.json", {"guidance_audio": 10**400}, "got a huge number"),
    ("card.json", {"preset": None}, "preset is text, got None"),
    ("card.json", {"preset": "a\0b"}, "preset is text without NUL"),
    ("card.json", {"recipe": ["x"]}, r"recipe is text, got \['x'\]"),
    ("card.json", {"can": 3}, "can is an object, got 3"),
    ("card.json", {"can": {}}, "card.json: can: missing keys"),
    ("card.json", {"can.stills": -1}, "can: stills is a whole number from 0 to 65,536, got -1"),
    ("card.json", {"can.stills_from_prompt": 2.0}, "stills_from_prompt is a whole number"),
    ("card.json", {"can.motion": 1}, "can: motion is true or false, got 1"),
    ("card.json", {"can.side": 96}, r'write "video": \{"width": 96, "height": 96, "frame_r'),
    ("card.json", {"can.video": NO_RATE}, "video: frame_rate_hz is one of 24, 25 or 30, got 26"),
    ("card.json", {"extra": 1}, r"card\.json: unknown keys .'extra'.$"),
    ("dit/config.json", {"dim": "48"}, "dit/config.json: dim is a whole number from 1"),
    ("dit/config.json", {"dim": 10**9}, "dim is a whole number .*, got 1000000000"),
    ("dit/config.json", {"dim": 65_532}, "do not fit the model"),
    ("dit/config.json", {"num_layers": 10**6}, "num_layers is a whole number from 1 to 1,000"),
    ("dit/config.json", {"eps": None}, "eps is a finite number"),
    ("dit/config.json", {"num_heads": 0}, "num_heads is a whole number from 1"),
    ("dit/config.json", {"temporal_window": True}, "temporal_window is a whole number"),
    ("text/config.json", {"dim": 65_536}, "do not fit the model"),
    ("text/config.json", {"num_layers": [1]}, "text/config.json: num_layers is a whole number"),
    ("text/config.json", {"num_bytes": None}, "num_bytes is a whole number"),
    ("text/config.json", {"class": ["x"]}, "describes a"),
    ("text/config.json", {"num_heads": 7}, "dim is a multiple of num_heads"),
    ("audio/config.json", {"num_layers": 10**6}, "num_layers is a whole number from 0 to 16"),
    ("audio/config.json", {"num_mels": float("inf")}, "num_mels is a whole number"),
    ("vae/config.json", {"base_dim": "4"}, "vae/config.json: base_dim is a whole number"),
    ("vae/config.json", {"base_dim": 65_536}, "do not fit"),
    ("vae/config.json", {"num_res_blocks": 10**6}, "num_res_blocks is a whole number"),
    ("vae/config.json", {"dim_mult": 3}, "dim_mult is a list"),
    ("vae/config.json", {"dim_mult": []}, "one entry less than dim_mult, got 2 and 0"),
    ("vae/config.json", {"latents_mean": [float("nan")] * 16}, r"latents_mean\[0\] is a finite"),
    ("vae/config.json", {"latents_std": [0.0] * 16}, "describes no .*positive stds"),
    ("vae/config.json", {"temperal_downsample": [True, None]}, r"temperal_downsample\[1\] is true"),
    ("vae/config.json", {"temperal_downsample": [False, False]}, "temporal factor 4"),
]  # fmt: skip


@pytest.mark.parametrize(("name", "changes", "message"), BROKEN)
def test_a_field_of_the_wrong_kind_is_one_clear_error(
    folder: Path, name: str, changes: dict[str, object], message: str
) -> None:
    values = json.loads((folder / name).read_text())
    for key, value in changes.items():
        *outer, last = key.split(".")
        place = values[outer[0]] if outer else values
        place[last] = value
    (folder / name).write_text(json.dumps(values))
    with pytest.raises(ValueError, match=message):
        load_pipeline(folder)


@pytest.mark.parametrize("text", ["[1]", "null", "{", "[" * 100_000, "\x00", '"\\ud800"'])
@pytest.mark.parametrize("name", ["card.json", "vae/config.json"])
def test_what_is_no_json_object_is_one_clear_error(folder: Path, name: str, text: str) -> None:
    (folder / name).write_text(text)
    with pytest.raises(ValueError, match=name.replace(".", r"\.")):
        load_pipeline(folder)


def test_a_card_without_a_field_is_refused(folder: Path) -> None:
    card = json.loads((folder / "card.json").read_text())
    del card["can"]
    (folder / "card.json").write_text(json.dumps(card))
    with pytest.raises(ValueError, match=r"missing keys \['can'\]"):
        read_card(folder)


@pytest.mark.parametrize("part", ["dit", "vae", "text", "audio"])
@pytest.mark.parametrize(
    ("change", "message"),
    [
        (lambda x: x.index_fill(0, torch.tensor([0]), float("nan")), "numbers that are not finite"),
        (lambda x: x.index_fill(0, torch.tensor([0]), float("inf")), "numbers that are not finite"),
        (lambda x: x.double().index_fill(0, torch.tensor([0]), 1e300), "that are not finite"),
        (lambda x: x.to(torch.int32), "is stored as int32, expected floating point"),
        (lambda x: x.to(torch.int8), "is stored as int8"),
        (lambda x: x > 0, "is stored as bool"),
        (lambda x: x.to(torch.complex64), "is stored as complex64"),
    ],
)
def test_weights_that_no_network_can_use_are_refused_by_name(
    folder: Path, part: str, change: Callable[[Tensor], Tensor], message: str
) -> None:
    path = folder / part / "model.safetensors"
    state = load_file(path)
    key = sorted(state)[-1]
    save_file({**state, key: change(state[key])}, path)
    with pytest.raises(ValueError, match=f"{part}/model.safetensors.*{key} .*(?:{message})"):
        load_pipeline(folder)


def test_floats_of_any_kind_load(folder: Path) -> None:
    kinds = [torch.float16, torch.bfloat16, torch.float64, torch.float8_e4m3fn, torch.float8_e5m2]
    path = folder / "dit" / "model.safetensors"
    state = load_file(path)
    mixed = {key: value.to(kinds[i % len(kinds)]) for i, (key, value) in enumerate(state.items())}
    save_file(mixed, path)
    dit, _ = load_pipeline(folder)
    assert all(value.dtype == torch.float32 for value in dit.state_dict().values())


@cache
def critic(kind: type[Critic]) -> Critic:
    return kind()


@pytest.mark.parametrize("kind", [FaceCritic, MotionMeter, WorldSyncNet])
@pytest.mark.parametrize(
    ("file", "change", "message"),
    [
        ("config.json", {"width": 10**9}, "width is a whole number from 1 to 1,000"),
        ("config.json", {"width": "36"}, "config.json: width is a whole number"),
        ("config.json", {"width": 1000}, "do not fit"),
        ("model.safetensors", float("nan"), "head.0.weight holds numbers that are not finite"),
        ("model.safetensors", torch.int32, "head.0.weight is stored as int32"),
    ],
)
def test_critics_judge_what_they_load(
    tmp_path: Path, kind: type[Critic], file: str, change: Any, message: str
) -> None:
    critic(kind).save_pretrained(tmp_path)
    path = tmp_path / file
    if file == "config.json":
        edit(path, **change)
    else:
        state = critic(kind).state_dict()
        last = "video_head.0.weight" if kind is WorldSyncNet else "head.0.weight"
        (key,) = (key for key in state if key.endswith(last) and "audio" not in key)
        odd = state[key].to(change) if change is torch.int32 else state[key] * change
        save_file({**state, key: odd}, path)
    with pytest.raises(ValueError, match=message):
        kind.from_pretrained(tmp_path)


@pytest.mark.parametrize(
    ("weight_map", "message"),
    [
        ({"a": "../secret.safetensors"}, "index.json: expected a path below"),
        ({"a": "/etc/passwd"}, "index.json: expected"),
        ({"a": "sub/x.safetensors"}, "index.json: expected the name of a file"),
        ({"a": 3}, "index.json: expected"),
        ({"a": ["x"]}, "index.json: expected"),
        (["x"], "no weight_map"),
        (None, "no weight_map"),
    ],
)
def test_an_index_names_files_of_its_folder_alone(
    tmp_path: Path, weight_map: object, message: str
) -> None:
    save_file({"a": torch.zeros(1)}, tmp_path / "secret.safetensors")
    folder = tmp_path / "dit"
    folder.mkdir()
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    with pytest.raises(ValueError, match=message):
        read_state(folder)
