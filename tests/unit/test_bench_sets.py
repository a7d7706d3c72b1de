"""FID and FVD: Gaussians that are known, a copy scores 0, one interval a set, networks by name."""

import sys
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import scipy.linalg
import torch
from torch import Tensor, nn

from avatar_v.scoring.clip import Footage, ScoredClip
from avatar_v.scoring.registry import build, find_scorers
from avatar_v_eval.scoring.frechet import frechet_distance, frechet_number
from avatar_v_eval.scoring.networks import GivenNetwork
from avatar_v_eval.scoring.scorers.sets import FidWorldScorer, FvdWorldScorer
from bench_cases import judged, pixels

SEED = 5


def rows(num: int, dims: int, seed: int = SEED) -> np.ndarray:
    generator = np.random.default_rng(seed)
    return generator.normal(size=(num, dims)) @ generator.normal(size=(dims, dims)) + seed


def textbook(a: np.ndarray, b: np.ndarray) -> float:
    """The formula as it is printed, with scipy's matrix root."""
    s, t = np.cov(a, rowvar=False), np.cov(b, rowvar=False)
    root = scipy.linalg.sqrtm(s @ t).real
    return float(np.square(a.mean(0) - b.mean(0)).sum() + np.trace(s + t - 2 * root))


@pytest.mark.parametrize(("num", "other", "dims"), [(300, 200, 12), (40, 500, 30), (50, 60, 1)])
def test_the_distance_is_the_textbooks(num: int, other: int, dims: int):
    a, b = rows(num, dims), rows(other, dims, SEED + 1)
    if dims == 1:  # in one dimension the root is that of numbers
        expected = (a.mean() - b.mean()) ** 2 + (a.std(ddof=1) - b.std(ddof=1)) ** 2
    else:
        expected = textbook(a, b)
    assert frechet_distance(a, b) == pytest.approx(expected, rel=1e-6)
    assert frechet_distance(b, a) == pytest.approx(frechet_distance(a, b), rel=1e-9)


def test_known_gaussians():
    """Samples whose mean and covariance are exactly those of N(0, I) and N(m, diag(s²))."""
    generator = np.random.default_rng(SEED)
    white = generator.normal(size=(100, 3))
    white -= white.mean(0)
    white = white @ np.linalg.inv(np.linalg.cholesky(np.cov(white, rowvar=False))).T
    mean, scale = np.array([1.0, -2.0, 0.5]), np.array([2.0, 0.5, 3.0])
    expected = np.square(mean).sum() + np.square(scale - 1).sum()
    assert frechet_distance(white, white * scale + mean) == pytest.approx(expected, rel=1e-9)


def test_it_is_the_one_of_torchmetrics():
    from torchmetrics.image.fid import FrechetInceptionDistance

    class Pixels(nn.Module):
        num_features = 12

        def forward(self, x: Tensor) -> Tensor:
            return x.float().flatten(1)

    generator = torch.Generator().manual_seed(SEED)
    real, fake = (torch.randint(0, 256, (200, 3, 2, 2), generator=generator) for _ in range(2))
    fake = fake // 2
    other = FrechetInceptionDistance(Pixels(), input_img_size=(3, 2, 2))
    other.update(real.byte(), real=True)
    other.update(fake.byte(), real=False)
    ours = frechet_distance(*(x.flatten(1).double().numpy() for x in (real, fake)))
    assert ours == pytest.approx(float(other.compute()), rel=1e-3)  # it counts in fp32


def test_fewer_rows_than_features_and_a_copy():
    a, b = rows(10, 40), rows(12, 40, SEED + 1)
    assert frechet_distance(a, a) < 1e-6 * np.square(a).sum()
    assert frechet_distance(a, b) == pytest.approx(textbook(a, b), rel=1e-3)  # its root is singular
    for wrong in (rows(10, 39), rows(1, 40)):
        with pytest.raises(ValueError, match="2 rows or more of as many features"):
            frechet_distance(a, wrong)


def test_the_interval_is_that_of_the_delta_method():
    """In one dimension, all videos of one row: the squared distance of means has a known error."""
    generator = np.random.default_rng(SEED)
    true = generator.normal(size=(2000, 1))
    shown = generator.normal(3.0, 1.0, size=(2000, 1))
    persons = [str(i) for i in range(2000)]
    number = frechet_number(list(true[:, None]), list(shown[:, None]), persons)
    error = 2 * 3 * np.sqrt(2 / 2000)  # |m|² with both means drawn; spreads add less
    assert number.n == 2000
    assert number.high is not None
    assert number.high - number.value == pytest.approx(1.96 * error, rel=0.5)  # of 20 groups
    alone = frechet_number([rows(9, 2)], [rows(8, 2)], ["p"])
    assert (alone.n, alone.low, alone.high) == (1, None, None)


def test_cases_of_a_person_are_left_out_together():
    """Else an interval over many cases of few persons is far too narrow."""
    true, shown = ([rows(5, 2, seed + i) for i in range(8)] for seed in (5, 50))
    number = frechet_number(true, shown, list("abcd" * 2))
    by_person = ([np.concatenate([of[i], of[i + 4]]) for i in range(4)] for of in (true, shown))
    whole = frechet_number(*by_person, list("abcd"))
    assert (number.low, number.high) == pytest.approx((whole.low, whole.high))
    assert frechet_number(true, shown, list("aaaabbbb")).low is None, "of two persons"
    few = [rows(5, 2), rows(1, 2), np.empty((0, 2))]
    assert frechet_number(few, few, list("abc")).low is None, "without a there is one row"


def test_a_copy_scores_0_and_others_more():
    clips = [judged(i, num_frames=50) for i in range(3)]
    for metric, shape in ((FidWorldScorer(), (4, 160)), (FvdWorldScorer(), (10, 128))):  # of 2 s
        true, copied, spoilt = [], [], []
        for clip in clips:
            frozen = pixels(clip.video)[:1].repeat(50, 1, 1, 1)
            dark = (frozen * 0.5).to(torch.uint8)
            true.append(metric.features(clip.true).numpy())
            copied.append(metric.score(clip).rows.numpy())
            other = replace(clip, video=Footage.of(dark, clip.video.audio))
            spoilt.append(metric.score(other).rows.numpy())
        assert frechet_number(true, copied, list("abc")).value < 1e-6
        assert frechet_number(true, spoilt, list("abc")).value > 1e-3
        reading = metric.score(clips[0])
        assert reading.values == {f"{metric.name}_rows": len(reading.rows)}
        assert reading.rows.shape == shape


class Inception(nn.Module):
    def forward(self, x: Tensor, return_features: bool = False) -> Tensor:
        means = x.float().mean((2, 3))
        return means if return_features else means[:, :1]


class I3d(nn.Module):
    def forward(
        self, x: Tensor, rescale: bool = False, resize: bool = False, return_features: bool = False
    ) -> Tensor:
        assert rescale
        assert resize
        assert return_features
        return x.float().mean((3, 4)).flatten(1)


@pytest.fixture(scope="module")
def clip() -> ScoredClip:
    return judged(0, num_frames=50)


@pytest.mark.parametrize(
    ("name", "network", "shape"), [("fid", Inception, (4, 3)), ("fvd", I3d, (3, 48))]
)
def test_networks_of_the_user(
    tmp_path: Path, clip: ScoredClip, monkeypatch: pytest.MonkeyPatch, name: str, network, shape
):
    path = tmp_path / "network.pt"
    torch.jit.script(network()).save(str(path))
    own = (
        "from torch import nn\n"
        "class Mean(nn.Module):\n"
        "    def forward(self, x):\n"
        "        return x.float().flatten(-2).mean(-1).flatten(1)\n"
    )
    (tmp_path / "my_features.py").write_text(own)
    monkeypatch.syspath_prepend(tmp_path)
    found = []
    for given in (str(path), "my_features:Mean"):
        (one,) = find_scorers([name], {name: given}, "real")[0]
        metric = build(one, {name: given})
        measured = metric.score(clip).rows
        assert measured is not None
        assert tuple(measured.shape) == shape
        found.append(measured)
        assert len(metric.weights) == 12
    torch.testing.assert_close(found[0], found[1])
    del sys.modules["my_features"]


def test_networks_that_are_not_there_are_named(tmp_path: Path):
    with pytest.raises(
        ValueError, match=r"no such file; it needs inception-2015-12-05.pt .*Apache"
    ):
        build(*_one("fid", str(tmp_path / "x.pt")))
    with pytest.raises(ValueError, match=r"needs i3d_torchscript.pt .*Apache"):
        build(*_one("fvd", str(tmp_path / "x.pt")))
    (tmp_path / "x.pt").write_text("x")
    with pytest.raises(ValueError, match="is no TorchScript file"):
        GivenNetwork(str(tmp_path / "x.pt"), "it")
    for given, words in (("os:nothing", "cannot be imported"), ("collections:Counter", "expected")):
        with pytest.raises(ValueError, match=words):
            GivenNetwork(given, "it")


def _one(name: str, given: str):
    return find_scorers([name], {name: given}, "real")[0][0], {name: given}
