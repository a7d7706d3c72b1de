"""base/packed.py, models/restored.py, slim.py: weights in fewer bytes, alone or beside a base."""

import json
import re
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

from avatar_v.base.packed import LARGEST_CODE, compressed, decompressed
from avatar_v.cli import main
from avatar_v.models.base import COMPRESSED, hash_folder, part_folder
from avatar_v.models.config import DiTConfig
from avatar_v.models.vae import VideoVAE
from avatar_v.motion.stats import read_stats
from avatar_v.planning.networks import config_of
from avatar_v.training.settings import Models
from avatar_v.weights.adapter_files import read_adapter
from avatar_v.weights.card import Card, read_card
from avatar_v.weights.presets import build
from avatar_v.weights.random import motion_stats
from avatar_v.weights.slim import make_slim, make_whole
from avatar_v.weights.weights import load_dit, load_pipeline, read_state, save_pipeline
from random_models import randomise

PARTS = ("vae", "dit", "text", "audio")
ERROR = 4e-3
KEY = "blocks.0.ffn.up.weight"


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """``base`` and ``child`` as they were trained, ``small_base`` and ``small`` compressed."""
    place = tmp_path_factory.mktemp("slim")
    dit, conditioner = build("tiny", seed=1, motion_stats=motion_stats())
    randomise(dit)
    save_pipeline(place / "base", dit, conditioner, Card("tiny"), dtype=torch.float16)
    generator = torch.Generator().manual_seed(3)
    with torch.no_grad():
        for parameter in dit.parameters():
            parameter += 0.05 * torch.randn(parameter.shape, generator=generator)
    save_pipeline(place / "child", dit, conditioner, Card("tiny"), dtype=torch.float16)
    words = [f"{part}=0" for part in PARTS]
    assert weights("slim", place / "base", "--error", *words, "--out", place / "small_base") == 0
    base = ("--base", place / "small_base")
    words = [f"dit={ERROR}"]
    out = ("--out", place / "small")
    assert weights("slim", place / "child", *base, "--error", *words, *out) == 0
    return place


@pytest.fixture
def pair(made: Path, tmp_path: Path) -> Path:
    """A compressed folder beside its base, to be changed."""
    for name in ("small_base", "small"):
        shutil.copytree(made / name, tmp_path / name)
    return tmp_path / "small"


def weights(*words: object) -> int:
    return main(["weights", *map(str, words)])


def edit(file: Path, change: Callable[[dict[str, Any]], object]) -> None:
    values = json.loads(file.read_text())
    change(values)
    file.write_text(json.dumps(values))


def edit_state(folder: Path, change: Callable[[dict[str, Tensor]], object]) -> None:
    state = load_file(folder / "dit" / COMPRESSED)
    change(state)
    save_file(state, folder / "dit" / COMPRESSED)


def size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def test_without_a_base_weights_are_the_same_to_the_bit(made: Path) -> None:
    for part in PARTS:
        one, two = read_state(made / "base" / part), read_state(made / "small_base" / part)
        assert one.keys() == two.keys()
        for key, value in one.items():
            assert value.dtype == two[key].dtype
            assert torch.equal(value, two[key])
    assert size(made / "small_base") < size(made / "base")


def test_zeros_are_restored_though_they_pack_better_than_weights() -> None:
    zeros = {"out.weight": torch.zeros(64, 64)}
    stored = compressed({}, zeros, error=0.0)
    assert torch.equal(decompressed({}, stored, where="here")["out.weight"], zeros["out.weight"])


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_without_a_base_they_are_as_near_as_was_asked(dtype: torch.dtype) -> None:
    state = {"w": torch.randn(64, 9, 8, generator=torch.Generator().manual_seed(0)).to(dtype)}
    stored = compressed({}, {**state, "bias": torch.ones(64)}, 2e-3)
    assert set(stored) == {"w.codes", "w.step", "w.like", "bias"}
    assert len(stored["w.codes"]) < 1.4 * state["w"].numel()
    found = decompressed({}, stored, where="x")["w"]
    assert found.dtype == dtype
    apart = (found.float() - state["w"].float()).norm() / state["w"].float().norm()
    assert 1e-3 < apart <= 2e-3
    with pytest.raises(ValueError, match=r"w\.codes is a whole tensor, and the base has w"):
        decompressed(state, stored, where="x")
    with pytest.raises(ValueError, match=r"w\.like stands without w\.packed"):
        decompressed({}, {"w.like": stored["w.like"]}, where="x")
    coarse = compressed({}, state, 0.2)  # fewer bytes than a reader believes, of fp32
    found = decompressed({}, coarse, where="x")["w"].float() - state["w"].float()
    assert found.norm() <= 0.2 * state["w"].float().norm()
    for shape in ((0, 10**9, 10**9), (0,), (0, 0, 8), (0, 64, 65)):
        with pytest.raises(ValueError, match=r"w\.codes"):
            decompressed({}, {**stored, "w.like": torch.empty(shape, dtype=dtype)}, where="x")


def test_with_a_base_they_are_as_near_as_was_asked_and_smaller(made: Path) -> None:
    assert sorted(p.name for p in (made / "small").iterdir()) == ["card.json", "dit", "motion.json"]
    assert size(made / "small") < 0.6 * size(made / "child" / "dit")
    wanted, found = read_state(made / "child" / "dit"), read_state(made / "small" / "dit")
    assert wanted.keys() == found.keys()
    apart = {k: (v.float() - found[k].float()).norm() / v.float().norm() for k, v in wanted.items()}
    assert max(apart.values()) <= ERROR
    assert max(apart.values()) > ERROR / 4
    assert max(value for key, value in apart.items() if wanted[key].ndim == 1) == 0
    of_base = VideoVAE.from_pretrained(made / "base" / "vae")
    assert VideoVAE.from_pretrained(made / "small" / "vae").hash() == of_base.hash()
    dit, _ = load_pipeline(made / "small")
    assert torch.equal(dit.state_dict()[KEY], found[KEY].float())
    assert torch.equal(load_dit(made / "small" / "dit").state_dict()[KEY], found[KEY].float())


def test_a_number_is_restored_by_one_exact_product_one_sum_and_one_rounding() -> None:
    """In float64, which holds products and sums of these exactly: what any processor has to give,
    for codes of two bytes."""
    generator = torch.Generator().manual_seed(0)
    base = torch.randn(64, 64, generator=generator).half()
    value = base + (torch.randn(64, 64, generator=generator) * 0.05).half()
    value[0, 0] = base[0, 0] + 60
    stored = compressed({"w": base}, {"w": value}, 1e-3)
    assert set(stored) == {"w.codes", "w.step"}
    low, high = np.frombuffer(
        zlib.decompress(stored["w.codes"].numpy().tobytes()), np.int8
    ).reshape(2, -1)
    codes = torch.from_numpy(low + 256.0 * high).view(64, 64)
    assert 10_000 < codes.abs().max() <= LARGEST_CODE
    product = codes * stored["w.step"].double()
    assert torch.equal(product.float().double(), product)
    restored = decompressed({"w": base}, stored, where="x")["w"]
    assert torch.equal(restored, (base.double() + product).float().half())
    assert 0 < (restored.float() - value.float()).norm() <= 1e-3 * value.float().norm()


def test_a_small_change_is_kept_whatever_error_is_allowed() -> None:
    base = torch.ones(64, 64)
    value = base + 1e-4 * torch.randn(64, 64, generator=torch.Generator().manual_seed(0))
    stored = compressed({"w": base}, {"w": value}, 0.01)
    kept = decompressed({"w": base}, stored, where="x")["w"] - base
    assert ((kept - (value - base)).norm() / (value - base).norm()).item() < 0.31


def test_a_whole_copy_needs_no_base(made: Path, tmp_path: Path) -> None:
    assert weights("whole", made / "small", "--out", tmp_path / "alone") == 0
    card = read_card(tmp_path / "alone")
    assert (card.base, card.whole) == (None, None)
    for part in PARTS:
        one, two = read_state(made / "small" / part), read_state(tmp_path / "alone" / part)
        assert one.keys() == two.keys()
        assert all(torch.equal(value, two[key]) for key, value in one.items())
    assert read_stats(tmp_path / "alone")
    load_pipeline(tmp_path / "alone")
    whole = read_card(made / "small").whole
    assert whole is not None
    assert whole.weights == hash_folder(made / "child")
    assert whole.dit == hash_folder(made / "child" / "dit")
    with pytest.raises(ValueError, match="alone exists"):
        make_whole(made / "small", tmp_path / "alone")


def test_what_is_trained_from_compressed_weights_is_whole(made: Path, tmp_path: Path) -> None:
    save_pipeline(tmp_path / "new", *load_pipeline(made / "small"), read_card(made / "small"))
    assert read_card(tmp_path / "new").base is None
    assert sorted(p.name for p in (tmp_path / "new").iterdir() if p.is_dir()) == sorted(PARTS)
    assert config_of(Models("tiny", init_from=str(made / "small"))).dim == 48


def test_the_hash_of_weights_counts_their_base(pair: Path) -> None:
    before = hash_folder(pair), hash_folder(pair / "dit")
    edit(pair / "card.json", lambda card: card["base"].update(hash="0" * 16))
    assert before[0] != hash_folder(pair)
    assert before[1] != hash_folder(pair / "dit")


def card_of(**changes: Any) -> Callable[[Path], None]:
    return lambda folder: edit(folder / "card.json", lambda card: card["base"].update(changes))


def state_of(change: Callable[[dict[str, Tensor]], object]) -> Callable[[Path], None]:
    return lambda folder: edit_state(folder, change)


def no_base(folder: Path) -> None:
    shutil.rmtree(folder.parent / "small_base")


def circle(folder: Path) -> None:
    own = json.loads((folder / "card.json").read_text())["base"] | {"folder": "small"}
    edit(folder.parent / "small_base" / "card.json", lambda card: card.update(base=own))


def other_base(folder: Path) -> None:
    """A base whose DiT has other numbers."""
    part = folder.parent / "small_base" / "text"
    save_file({k: v + 1 for k, v in read_state(part).items()}, part / "model.safetensors")


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (no_base, "stored as what it changes in small_base, weights that are not in .*copy them"),
        (card_of(folder="../../x"), "card.json: expected a path below .* got '../../x'"),
        (card_of(folder="/etc"), "card.json: expected a path below .* got '/etc'"),
        (card_of(folder="a/b"), "card.json: expected the name of a file in "),
        (card_of(folder=""), "card.json: expected a path below "),
        (card_of(folder="."), "card.json: expected "),
        (card_of(folder=7), "card.json: base.* is an object|base: folder is text, got 7"),
        (card_of(folder="small"), "its base .*small has a base itself"),
        (circle, "its base .*small_base has a base itself"),
        (card_of(hash="0" * 16), "of the hash 0000000000000000; those in .*small_base have"),
        (other_base, "those in .*small_base have"),
        (
            card_of(parts=["vae", "card.json"]),
            "is one of 'vae', 'dit', 'text', 'aud",
        ),
        (card_of(parts=["text", "audio"]), "lacks vae/config.json"),
        (state_of(lambda s: s.pop(KEY + ".step")), rf"{KEY}.codes stands without {KEY}.step"),
        (state_of(lambda s: s.pop(KEY + ".codes")), rf"{KEY}.step stands without {KEY}.codes"),
        (
            state_of(lambda s: s.update({KEY + ".step": torch.tensor(float("nan")).bfloat16()})),
            f"{KEY} holds numbers that are not finite",
        ),
        (
            state_of(lambda s: s.update({KEY + ".step": torch.tensor(1e38).bfloat16()})),
            f"{KEY} holds numbers that are not finite",
        ),
        (
            state_of(lambda s: s.update({KEY + ".step": torch.ones(2).bfloat16()})),
            r"a step bfloat16 \[2\], expected one number",
        ),
        (state_of(lambda s: s.update({KEY + ".codes": s[KEY + ".codes"][:-9]})), "is damaged"),
        (
            state_of(lambda s: s.update({KEY + ".codes": torch.zeros(9).to(torch.uint8)})),
            "is damaged",
        ),
        (state_of(lambda s: s.update({KEY + ".codes": torch.zeros(9)})), "expected bytes"),
        (
            state_of(lambda s: s.update({KEY + ".codes": s["blocks.0.ffn.down.weight.codes"][:0]})),
            "is damaged",
        ),
        (
            state_of(
                lambda s: s.update({f"x.{e}": s[f"{KEY}.{e}"] + 0 for e in ("codes", "step")})
            ),
            "a tensor changes that the base has not",
        ),
        (state_of(lambda s: s.update({KEY: torch.ones(3, 3).half()})), f"holds {KEY} twice"),
        (state_of(lambda s: s.update({"x": torch.ones(3, 3).half()})), "unexpected: x"),
    ],
)
def test_hostile_folders_are_refused(
    pair: Path, change: Callable[[Path], None], message: str
) -> None:
    change(pair)
    with pytest.raises(ValueError, match=message):
        load_pipeline(pair)


def test_packed_tensors_that_promise_too_much_are_refused() -> None:
    stored = compressed({}, {"w": torch.randn(64, 64)}, 0.0)
    for shape in ((0, 10**9, 10**9), (0,), (0, 0, 8), (0, 64, 65), (64, 64)):
        like = torch.empty(shape if 0 in shape else (1, 1))
        with pytest.raises(ValueError, match=r"w\.packed"):
            decompressed({}, {**stored, "w.like": like}, where="x")
    with pytest.raises(ValueError, match=r"w\.packed"):
        decompressed({}, {**stored, "w.like": torch.empty(0, 64, 64).byte()}, where="x")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("child --error dit=2 --out P/x", "expected PART=ERROR"),
        ("child --error dit=nan --out P/x", "expected PART=ERROR"),
        ("child --error dit --out P/x", "expected PART=ERROR"),
        ("child --error card.json=0 --out P/x", "expected PART=ERROR"),
        ("child --error motion=0 --out P/x", "has no motion of its own"),
        ("small --error dit=0 --out P/x", "small is compressed already"),
        ("small_base --error dit=0 --out P/x", "small_base is compressed already"),
        ("child --error dit=0 --base P/small --out P/x", "small has a base itself"),
        ("child --error dit=0 --base P/none --out P/x", "no file .*none/card.json"),
        ("child --error dit=0 --base P/base --out P/deep/x", "does not lie beside"),
        ("child --error dit=0 --base P/base --out P/small", "small exists"),
    ],
)
def test_what_cannot_be_compressed(
    made: Path, words: str, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    before = sorted(path.name for path in made.iterdir())
    parts = words.replace("P/", f"{made}/").split()
    assert weights("slim", made / parts[0], *parts[1:]) == 2
    assert re.search(message, " ".join(capsys.readouterr().err.split()))
    assert sorted(path.name for path in made.iterdir()) == before


def test_a_network_that_lacks_tensors_of_the_base_is_refused(made: Path, tmp_path: Path) -> None:
    for name in ("base", "child"):
        shutil.copytree(made / name, tmp_path / name)
    file = tmp_path / "child" / "dit" / "model.safetensors"
    save_file({k: v for k, v in load_file(file).items() if k != KEY}, file)
    with pytest.raises(ValueError, match=f"lacks {KEY}, which "):
        make_slim(tmp_path / "child", tmp_path / "x", {"dit": 0.01}, tmp_path / "base")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["base", "child"]


def test_a_part_of_its_own_counts_before_that_of_the_base(pair: Path) -> None:
    assert part_folder(pair / "vae") == pair.parent.resolve() / "small_base" / "vae"
    shutil.copytree(pair.parent / "small_base" / "vae", pair / "vae")
    assert part_folder(pair / "vae") == pair / "vae"
    assert part_folder(pair / "motion") == pair / "motion"  # neither has one


def test_a_lora_is_imported_for_the_network_of_the_base(pair: Path) -> None:
    shutil.rmtree(pair / "dit")
    card_of(parts=PARTS)(pair)
    dim = DiTConfig.tiny().dim
    key = "diffusion_model.blocks.0.self_attn.q.lora_"
    state = {f"{key}A.weight": torch.ones(4, dim), f"{key}B.weight": torch.ones(dim, 4)}
    save_file(state, pair.parent / "lora.safetensors")
    words = (pair.parent / "lora.safetensors", pair.parent / "adapter", "--base", pair)
    assert weights("import-lora", *words) == 0
    assert "self_attention.query" in next(iter(read_adapter(pair.parent / "adapter").factors))
