"""Pictures come upright, whole, and in the colours of standard range, whatever stored them."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
import pytest
import torch
from av.stream import Disposition
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc
from PIL import Image, ImageOps

from avatar_v.media import containers, hdr
from avatar_v.media.pictures import EXIF, turned
from avatar_v.media.reading import colour_note, probe, read_video
from hdr_files import LUMA, write_hdr, write_light, write_planes
from heif_files import TILE, write_tiled

CORNERS = np.kron(
    np.array([[[250, 40, 40], [40, 250, 40]], [[40, 40, 250], [40, 40, 40]]], np.uint8),
    np.ones((32, 48, 1), np.uint8),
)
"""Red and green above blue and black, 96 x 64: all eight orientations differ."""
OF_LIBRARY = ("jpg", "png", "webp", "tiff", "avif")


def shown(path: Path) -> np.ndarray:
    """The first picture of a file, "h w 3"."""
    return read_video(path)[0].permute(1, 2, 0).numpy().astype(float)


def differs(a: np.ndarray, b: np.ndarray) -> float:
    """Mean difference in grey levels."""
    assert a.shape == b.shape
    return float(np.abs(a.astype(float) - b.astype(float)).mean())


@pytest.mark.parametrize("orientation", EXIF)
def test_every_orientation_is_shown_upright(orientation: int, tmp_path: Path) -> None:
    """As Pillow turns and mirrors them. Codecs blur the edges of the four fields: 6 grey levels on
    average, where a wrong orientation costs over 50."""
    for suffix in OF_LIBRARY:
        path = tmp_path / f"picture.{suffix}"
        image = Image.fromarray(CORNERS)
        tags = image.getexif()
        tags[0x0112] = orientation
        image.save(path, exif=tags.tobytes())
        with Image.open(path) as opened:
            upright = np.asarray(ImageOps.exif_transpose(opened).convert("RGB"))
        assert differs(upright, turned(CORNERS, EXIF[orientation])) < 12, "what Pillow means"
        assert differs(shown(path), upright) < 6, suffix


@pytest.mark.parametrize("orientation", EXIF)
def test_every_display_matrix_of_a_video_is_applied(orientation: int, tmp_path: Path) -> None:
    path = tmp_path / "turned.mp4"
    with av.open(str(path), "w") as container:
        stream = container.add_stream("libx264", rate=25)
        stream.height, stream.width, stream.pix_fmt = *CORNERS.shape[:2], "yuv444p"
        for _ in range(3):
            container.mux(stream.encode(av.VideoFrame.from_ndarray(CORNERS, format="rgb24")))
        container.mux(stream.encode(None))
    a, b, c, d = (0x10000 * value for value in EXIF[orientation])
    one, last = 0x10000, 0x40000000
    data = bytearray(path.read_bytes())
    plain = np.array([one, 0, 0, 0, one, 0, 0, 0, last], ">i4").tobytes()
    start = data.index(plain, data.index(b"tkhd"))
    data[start : start + 36] = np.array([a, b, 0, c, d, 0, 0, 0, last], ">i4").tobytes()
    path.write_bytes(data)
    assert differs(shown(path), turned(CORNERS, EXIF[orientation])) < 6


@pytest.mark.parametrize(("codec", "suffix"), [("libx265", "heic"), ("libsvtav1", "avif")])
def test_a_picture_in_tiles_is_read_whole(codec: str, suffix: str, tmp_path: Path) -> None:
    y, x = np.mgrid[: 2 * TILE + 22, : 3 * TILE + 8]
    picture = np.stack([x, y, (x + y) // 2], 2).astype(np.uint8)
    for turns in (0, 1):
        path = write_tiled(tmp_path / f"tiled.{suffix}", picture, codec=codec, turns=turns)
        upright = np.rot90(picture, turns)
        assert differs(shown(path), upright) < 2  # a gradient survives its codec
        info = probe(path)
        assert {info.width, info.height} == set(upright.shape[:2])
        assert containers.extent(path)[1] == 1
    data = path.read_bytes()
    path.write_bytes(data[:-900])
    assert "cut or damaged" in (containers.early_end(path) or "")
    with pytest.raises(ValueError, match=rf"tiled\.{suffix}: its tiles cannot be put together"):
        read_video(path)


def test_as_many_tiles_as_a_telephone_has(tmp_path: Path) -> None:
    """48 million pixels are in 192 tiles; here they are small."""
    picture = np.full((16 * TILE, 12 * TILE, 3), 90, np.uint8)
    assert differs(shown(write_tiled(tmp_path / "many.heic", picture)), picture) < 3


def test_the_picture_that_players_show_is_read(tmp_path: Path) -> None:
    """Not the first of two tracks, where the second has the flag."""
    path = tmp_path / "two.mkv"
    with av.open(str(path), "w") as container:
        streams = [container.add_stream("ffv1", rate=25) for _ in range(2)]
        for stream in streams:
            stream.width = stream.height = 16
            stream.pix_fmt = "bgr0"
        streams[0].disposition, streams[1].disposition = Disposition(0), Disposition.default
        for stream, value in zip(streams, (40, 200), strict=True):
            grey = np.full((16, 16, 3), value, np.uint8)
            container.mux(stream.encode(av.VideoFrame.from_ndarray(grey, format="rgb24")))
            container.mux(stream.encode(None))
    assert shown(path).mean() == 200


def scene() -> np.ndarray:
    """A picture of standard range with all greys, white and saturated colours, "48 96 3"."""
    ramp = np.linspace(0, 255, 96).round().astype(np.uint8)
    rows = [np.stack([ramp] * 3, 1)]
    rows += [
        np.stack([np.roll(ramp, 32 * i) for i in order], 1) for order in ((0, 1, 2), (2, 0, 1))
    ]
    return np.repeat(np.stack(rows), 16, 0)


@pytest.mark.parametrize("kind", ["PQ", "HLG", "BT.2020"])
def test_standard_range_in_hdr_comes_back(kind: str, tmp_path: Path) -> None:
    """Within 2 % in contrast and one grey level on average; only what is brighter than the knee
    moves, white by 11 of 255. Untouched, PQ had half the contrast and HLG three quarters."""
    picture = scene()
    path = write_hdr(tmp_path / "hdr.mkv", picture, kind, num=2)
    back = shown(path)
    assert back.std() / picture.std() == pytest.approx(1, abs=0.02)
    assert differs(back, picture) < 1.1
    dark = picture.max(2) < 230
    # a dark channel beside bright ones is lost in the steps of 10 bits
    assert np.quantile(np.abs(back - picture)[dark], 0.95) <= 3
    white = back[:16, -1].mean()
    assert white == pytest.approx(255 if kind == "BT.2020" else 244, abs=1)
    assert probe(path).colours == kind
    assert colour_note(path) == (
        f"{path} has {kind} colours; they are converted to standard range (BT.709)"
    )


@pytest.mark.parametrize("kind", ["PQ", "HLG"])
def test_what_is_brighter_than_white_keeps_its_order(kind: str, tmp_path: Path) -> None:
    light = np.repeat(np.array([50, 203, 300, 500, 1000.0]), 8)[None, :, None]
    light = light.repeat(8, 0).repeat(3, 2)
    greys = shown(write_light(tmp_path / "bright.mkv", light, kind))[4, ::8, 0]
    assert (np.diff(greys) > 0).all()
    assert greys[-1] >= 254


def test_the_curves_have_the_values_of_the_standards() -> None:
    """BT.2100 and BT.2408: PQ 58 % and HLG 75 % are the 203 cd/m² of white, PQ 1 is 10,000."""
    assert hdr.pq_light(np.array([0.5807, 1.0, 0.0])) == pytest.approx([203, 10_000, 0], rel=1e-3)
    assert 1000 * hdr.hlg_light(np.array([0.75, 1.0])) ** 1.2 == pytest.approx(
        [203, 1000], rel=2e-3
    )
    assert hdr.hlg_light(np.array([0.5])) == pytest.approx([1 / 12])
    light = torch.linspace(0, 5, 501)
    curve = hdr.compressed(light)
    assert torch.equal(curve[:81], light[:81])
    assert (curve.diff() > 0)[:492].all(), "up to the brightest there is an order"
    assert curve[-1] == pytest.approx(1)
    assert (curve[81] - curve[80]) / 0.01 == pytest.approx(1, abs=0.05), "no kink"
    assert torch.tensor(hdr.TO_BT709).sum(1) == pytest.approx([1, 1, 1], abs=1e-3)


MATRICES = {
    Colorspace.ITU709: (0.2126, 0.0722),
    Colorspace.ITU601: (0.299, 0.114),
    Colorspace.BT2020: (LUMA[0], LUMA[2]),
}


def yuv(picture: np.ndarray, matrix: int, *, full: bool) -> list[np.ndarray]:
    red, blue = MATRICES[matrix]
    x = picture / 255
    luma = x @ np.array([red, 1 - red - blue, blue])
    chroma = [(x[..., i] - luma) / (2 * (1 - part)) for i, part in ((2, blue), (0, red))]
    scales = ((255, 0), (255, 128), (255, 128)) if full else ((219, 16), (224, 128), (224, 128))
    return [
        np.round(scale * plane + shift).clip(0, 255).astype(np.uint8)
        for plane, (scale, shift) in zip((luma, *chroma), scales, strict=True)
    ]


@pytest.mark.parametrize("full", [False, True])
@pytest.mark.parametrize("matrix", MATRICES)
def test_matrix_and_range_are_those_of_the_file(matrix: int, full: bool, tmp_path: Path) -> None:
    """Rounding to 8 bits costs up to 2 grey levels; another matrix or range over 5 on average."""
    path = write_planes(
        tmp_path / "tagged.mkv",
        yuv(CORNERS, matrix, full=full),
        ColorTrc.BT709,
        ColorPrimaries.BT709,
        matrix,
        color_range=ColorRange.JPEG if full else ColorRange.MPEG,
    )
    assert np.abs(shown(path) - CORNERS).max() <= 2
    assert colour_note(path) is None


@pytest.mark.parametrize(("suffix", "codec"), [("mp4", "libvpx-vp9"), ("mov", "mjpeg")])
def test_pixels_are_square_whether_container_or_codec_states_their_aspect(
    suffix: str, codec: str, tmp_path: Path
) -> None:
    path = tmp_path / f"a.{suffix}"
    with av.open(str(path), "w") as container:
        stream = container.add_stream(codec, rate=25)
        stream.width = stream.height = 64
        stream.pix_fmt = "yuvj420p" if codec == "mjpeg" else "yuv420p"
        stream.codec_context.sample_aspect_ratio = Fraction(2, 1)
        frame = av.VideoFrame.from_ndarray(np.zeros((64, 64, 3), np.uint8), format="rgb24")
        container.mux([*stream.encode(frame), *stream.encode(None)])
    assert read_video(path).shape == (1, 3, 64, 128)


@pytest.mark.parametrize(("scale", "matrix"), [(1, Colorspace.ITU601), (14, Colorspace.ITU709)])
def test_a_video_without_a_matrix_has_that_of_its_size(
    scale: int, matrix: int, tmp_path: Path
) -> None:
    picture = CORNERS.repeat(scale, 0).repeat(scale, 1)
    unstated = int(ColorTrc.UNSPECIFIED)
    planes = yuv(picture, matrix, full=False)
    path = write_planes(tmp_path / "plain.mkv", planes, unstated, unstated, unstated)
    assert np.abs(shown(path) - picture).max() <= 2
