"""What a VAE knows: the measure of a picture, the file, and the warning at generation."""

import json
from pathlib import Path

import pytest
import torch
from torch import Tensor

from avatar_v.base.video_format import VideoFormat
from avatar_v.callbacks.export_vae import reconstruction_stats
from avatar_v.inputs.inputs import Inputs, reference_checked
from avatar_v.inputs.reference_check import check_reference
from avatar_v.media.pixels import decoded
from avatar_v.models.fidelity import ReconstructionStats, fidelity_db, known
from avatar_v.models.vae import VideoVAE
from avatar_v.request.request import Request
from avatar_v.weights.card import ASSETS
from avatar_v.world.clip import make_clip
from avatar_v.world.splits import RANGES

SQUARE = VideoFormat(64, 64)


@pytest.fixture(scope="module")
def vae() -> VideoVAE:
    return VideoVAE.from_pretrained(ASSETS / "small" / "vae")


@pytest.fixture(scope="module")
def drawn() -> Tensor:
    """A picture of a validation person, uint8."""
    first = RANGES["validation"][0]
    clip = make_clip(first + 7, first + 7, first + 7, num_frames=1, size=64)
    assert clip.video is not None
    return clip.video[0]


def noisy(picture: Tensor) -> Tensor:
    """Fine detail of a kind that no drawn person has."""
    noise = torch.randn(picture.shape, generator=torch.Generator().manual_seed(0))
    return (picture + 12 * noise).round().clamp(0, 255).to(torch.uint8)


def test_fidelity_is_the_mean_of_whole_and_detail() -> None:
    board = (torch.arange(16)[:, None] + torch.arange(16)) % 2 * 2.0 - 1
    picture = board.expand(1, 3, 16, 16)
    # half of it is kept: an error of 1/4 of the range is 12.04 dB, half of the detail 6.02
    half = float(fidelity_db(0.5 * picture, picture))
    assert half == pytest.approx((12.04 + 6.02) / 2, abs=0.01)
    blurred = torch.zeros_like(picture)
    assert float(fidelity_db(blurred, picture)) < half
    assert torch.isfinite(fidelity_db(picture, picture)).all()


def test_the_weights_that_ship_tell_drawn_people_from_others(vae: VideoVAE, drawn: Tensor) -> None:
    check, notes = check_reference([("me.mp4", drawn)], vae, video=SQUARE, people="drawn people")
    assert notes == ()
    assert check.fidelity_db is not None
    assert check.least_db is not None
    assert check.fidelity_db > check.least_db > 10
    pictures = [("me.mp4", drawn), ("scene.png", noisy(drawn))]
    check, (note,) = check_reference(pictures, vae, video=SQUARE, people="drawn people")
    assert note.startswith("scene.png: unlike the pictures that the weights know, drawn people (")
    assert f"({check.fidelity_db:.1f} dB of it are kept" in note
    assert "“Your own face” in the README" in note


@pytest.mark.parametrize(
    ("stored", "side"), [(None, 64), (ReconstructionStats(15.0, 10, 64, 64), 32)]
)
def test_nothing_is_said_where_nothing_is_known(
    vae: VideoVAE, drawn: Tensor, stored: ReconstructionStats | None, side: int
) -> None:
    before, vae.known = vae.known, stored
    try:
        check, notes = check_reference(
            [("me.mp4", noisy(drawn))], vae, video=VideoFormat(side, side), people=""
        )
    finally:
        vae.known = before
    assert (check.fidelity_db, check.least_db, notes) == (None, None, ())
    assert check.note.startswith("not checked: the weights")


def test_a_first_frame_from_elsewhere_is_checked_beside_the_reference(drawn: Tensor) -> None:
    asked: list[list[str]] = []

    def ask(pictures):
        asked.append([name for name, _ in pictures])
        return check_reference(pictures, VideoVAE.tiny(), video=VideoFormat(32, 32), people="")

    inputs = Inputs(drawn, torch.zeros(640), 1, 0, ("odd",))
    request = Request.of(reference="me.mp4", audio="a.wav", out="o.mp4")
    seen = reference_checked(inputs, request.person, ask)
    assert asked == [["me.mp4"]]
    assert seen.warnings == ("odd",)
    assert seen.check is not None
    assert seen.check.note


def test_what_is_known_is_stored_beside_the_weights(tmp_path: Path) -> None:
    tiny = VideoVAE.tiny().eval()
    video = torch.rand(3, 5, 3, 16, 16, generator=torch.Generator().manual_seed(1)) * 2 - 1
    tiny.known = reconstruction_stats(tiny, [video, video])
    assert tiny.known.num_pictures == 2 * 3 * 5
    assert (tiny.known.height, tiny.known.width) == (16, 16)
    with torch.inference_mode():
        pictures = video.flatten(0, 1)
        values = fidelity_db(tiny.decode(tiny.encode(pictures[:, None]))[:, 0], pictures)
    expected = known(torch.cat([values, values]), size=(16, 16))
    assert tiny.known.least_db == pytest.approx(expected.least_db, abs=2e-3)
    tiny.save_pretrained(tmp_path)
    assert VideoVAE.from_pretrained(tmp_path).known == tiny.known
    assert VideoVAE.from_pretrained(tmp_path).hash() == tiny.hash()
    (tmp_path / "known.json").write_text(json.dumps({"least_db": "15"}))
    with pytest.raises(ValueError, match=r"known\.json: missing keys"):
        VideoVAE.from_pretrained(tmp_path)


def test_what_training_knows_of_broken_pictures_is_an_error() -> None:
    for values in (torch.zeros(0), torch.tensor([1.0, float("nan")])):
        with pytest.raises(ValueError, match="fidelities are finite numbers"):
            known(values, size=(64, 64))


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_decoded_pixels_are_numbers(value: float) -> None:
    video = torch.zeros(4, 3, 8, 8)
    assert decoded(video, 0).unique().tolist() == [128]
    video[2, 1, 3, 3] = value
    with pytest.raises(ValueError, match="chunk 5 was decoded to pixels that are not finite"):
        decoded(video, 5)


def test_a_few_pictures_are_known_by_their_spread_and_many_by_a_percentile() -> None:
    """The frames of one clip: another of them may lie below the lowest that was seen."""
    few = torch.tensor([16.0, 17.0, 18.0, 17.0] * 4)
    assert known(few, size=(64, 64)).least_db == pytest.approx(17 - 3 * 0.5**0.5, abs=1e-3)
    many = torch.linspace(10, 20, 1001)
    assert known(many, size=(64, 64)).least_db == pytest.approx(10.1, abs=1e-3)
    assert known(torch.tensor([16.0]), size=(64, 64)).least_db == 16.0
