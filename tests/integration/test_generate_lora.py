"""generate --lora: a base with an adapter is the weights that both make."""

import json
from pathlib import Path

import pytest
import torch

from avatar_v.cli import main
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.models.base import hash_folder
from avatar_v.models.lora import add_factors
from avatar_v.request.request import Request
from avatar_v.weights.adapter_files import save_adapter
from avatar_v.weights.card import AdapterCard, Capabilities, Card
from avatar_v.weights.random import motion_stats
from avatar_v.weights.weights import load_pipeline
from generating import carry_out


@pytest.fixture
def adapter(weights: Path, tmp_path: Path) -> Path:
    """That of a student of 3 steps."""
    dit, _ = load_pipeline(weights)
    add_factors(dit, rank=2, alpha=4.0)
    with torch.no_grad():
        for name, parameter in dit.named_parameters():
            if "lora_B" in name:
                parameter += 0.05
    card = Card("tiny", "recipes/4b_distill_dmd.yaml", can=Capabilities(num_steps=3))
    about = AdapterCard("dit", card, str(weights), hash_folder(weights / "dit"))
    save_adapter(tmp_path / "adapter", dit, about, motion_stats())
    return tmp_path / "adapter"


def test_a_base_with_an_adapter_makes_the_video_of_the_merged_weights(
    request_: Request, weights: Path, adapter: Path, tmp_path: Path
) -> None:
    frames: dict[str, list[torch.Tensor]] = {"merged": [], "lora": [], "half": [], "base": []}
    merged = tmp_path / "merged"
    assert main(["weights", "merge", str(weights), str(adapter), "--out", str(merged)]) == 0
    asked = request_.changed(num_steps=None, overwrite=True)
    cpu = {"device": "cpu", "precision": "fp32"}
    for name, folder, lora in (
        ("merged", merged, ()),
        ("lora", weights, (str(adapter),)),
        ("half", weights, (f"{adapter}:0.5",)),
        ("base", weights, ()),
    ):
        record = carry_out(asked, weights=folder, on_frames=frames[name].append, lora=lora, **cpu)
        assert record.request.sampling.num_steps == (4 if name == "base" else 3)
    made = {name: torch.cat(parts) for name, parts in frames.items()}
    assert torch.equal(made["lora"], made["merged"])
    assert not torch.equal(made["lora"], made["half"])
    assert not torch.equal(made["half"], made["base"])


def test_a_record_names_the_adapter_and_another_scale_is_another_hash(
    weights: Path, adapter: Path
) -> None:
    pipes = [
        AvatarPipeline.from_pretrained(weights, device="cpu", lora=lora)
        for lora in ((), (str(adapter),), (f"{adapter}:0.5",))
    ]
    assert len({pipe.weights_hash for pipe in pipes}) == 3
    assert [str(each) for each in pipes[2].adapters] == [f"{adapter}:0.5"]


@pytest.mark.parametrize(
    ("fault", "message"),
    [("none", "expected a folder with adapter.json"), ("hash", "was trained on")],
)
def test_faults_are_found_before_anything_is_read(
    request_: Request,
    weights: Path,
    adapter: Path,
    fault: str,
    message: str,
    capsys: pytest.CaptureFixture[str],
) -> None:
    word = str(adapter)
    if fault == "none":
        word = str(adapter.parent)
    else:
        values = json.loads((adapter / "adapter.json").read_text())
        values["base_hash"] = "0" * 16
        (adapter / "adapter.json").write_text(json.dumps(values))
    words = ["--reference", request_.person.reference, "--audio", request_.person.audio]
    words += [
        "--out",
        str(request_.output.out),
        "--weights",
        str(weights),
        "--lora",
        word,
        "--device",
        "cpu",
    ]
    assert main(["generate", *words]) == 2
    assert message in capsys.readouterr().err
