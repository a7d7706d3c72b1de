"""Several sets of weights in one process."""

from pathlib import Path

import pytest
import torch

from avatar_v.base.pools import TensorPool, num_bytes
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.weight_sets import WeightSets
from avatar_v.models.dit import AvatarDiT
from avatar_v.request.request import Request, Weights
from avatar_v.weights.card import names_of, read_card
from avatar_v.weights.weights import load_pipeline, save_pipeline


def matrix_of(dit: AvatarDiT) -> torch.nn.Parameter:
    return next(x for x in dit.blocks[0].parameters() if x.dim() == 2)


@pytest.fixture
def student(weights: Path, tmp_path: Path) -> Path:
    """The weights with another first matrix in one block of the DiT."""
    dit, conditioner = load_pipeline(weights)
    changed = matrix_of(dit)
    torch.nn.init.normal_(changed, std=0.1, generator=torch.Generator().manual_seed(5))
    save_pipeline(tmp_path / "student", dit, conditioner, read_card(weights))
    return tmp_path / "student"


def frames_of(pipeline: AvatarPipeline, request: Request) -> torch.Tensor:
    person = request.person
    how = {"num_steps": 1, "face_crop": False, "audio": person.audio}
    return torch.stack(list(pipeline(reference=person.reference, **how)))


def test_sets_share_what_is_equal_and_nothing_else(
    weights: Path, student: Path, request_: Request
) -> None:
    """Frames are those of each set alone, in any order."""
    how = {"device": "cpu", "precision": "fp32"}
    alone = [AvatarPipeline.from_pretrained(folder, **how) for folder in (weights, student)]
    sets = WeightSets.from_pretrained(f"teacher={weights}", str(student), **how)
    assert list(sets) == ["teacher", "student"]
    expected = [frames_of(pipeline, request_) for pipeline in alone]
    assert not torch.equal(*expected)
    for name, frames in (("student", expected[1]), ("teacher", expected[0])) * 2:
        assert torch.equal(frames_of(sets[name], request_), frames)
    own = matrix_of(alone[1].dit)
    buffers = sum(x.nbytes for network in alone[1].networks for x in network.buffers())
    one = WeightSets.from_pretrained(str(weights), **how)
    assert sets.num_bytes == one.num_bytes + own.nbytes + buffers
    assert one.num_bytes <= num_bytes(*alone[0].networks)


def test_tensors_are_told_apart_by_bits_type_and_shape() -> None:
    pool, zero = TensorPool(torch.device("cpu")), torch.zeros(2, 2)
    kept = [torch.nn.Linear(2, 2, bias=False) for _ in range(6)]
    values = [
        zero,
        zero.clone(),
        -zero,
        zero.bfloat16(),
        zero.view(4, 1),
        torch.full((2, 2), torch.nan),
    ]
    for network, value in zip(kept, values, strict=True):
        network.weight = torch.nn.Parameter(value.clone(), requires_grad=False)
        pool.place(network)
    places = [network.weight.data_ptr() for network in kept]
    assert places[0] == places[1]
    assert len(set(places)) == 5
    for network, value in zip(kept, values, strict=True):
        assert torch.equal(network.weight.view(-1), value.view(-1)) or value.isnan().all()


def test_sets_that_cannot_be(weights: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert names_of(["small", "runs/a/weights", "b=runs/b/weights"]) == {
        "small": "small",
        "weights": "runs/a/weights",
        "b": "runs/b/weights",
    }
    for words, told in (
        (["small", "x/small"], "two sets of weights are called small: say NAME=x/small"),
        (["=x"], "weights '=x' have no name"),
    ):
        with pytest.raises(ValueError, match=told):
            names_of(words)
    with pytest.raises(ValueError, match="no weights: give at least one set"):
        WeightSets({})
    with pytest.raises(ValueError, match="two: several sets of weights lie on one device, whole"):
        WeightSets({"one": Weights(weights), "two": Weights(weights, device="cpu", devices=2)})

    def full(self: TensorPool, network: torch.nn.Module) -> None:
        raise torch.OutOfMemoryError

    monkeypatch.setattr(TensorPool, "place", full)
    with pytest.raises(ValueError, match=r"cpu has no room for one beside the others \(none: 0"):
        WeightSets({"one": Weights(weights, device="cpu")})
