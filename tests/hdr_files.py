"""Clips in HDR: pictures of standard range put into HLG and PQ as broadcasters do (BT.2408)."""

from fractions import Fraction
from pathlib import Path

import av
import numpy as np
from av.video.reformatter import ColorPrimaries, ColorRange, Colorspace, ColorTrc

WHITE = 203.0  # cd/m²
XYZ_OF_709 = np.array(
    [[0.4124, 0.3576, 0.1805], [0.2126, 0.7152, 0.0722], [0.0193, 0.1192, 0.9505]]
)
XYZ_OF_2020 = np.array([[0.6370, 0.1446, 0.1689], [0.2627, 0.6780, 0.0593], [0, 0.0281, 1.0610]])
LUMA = np.array([0.2627, 0.6780, 0.0593])
TRC = {
    "PQ": ColorTrc.SMPTE2084,
    "HLG": ColorTrc.ARIB_STD_B67,
    "BT.2020": ColorTrc.BT2020_10,
    "": ColorTrc.BT709,
}


def code_values(light: np.ndarray, kind: str) -> np.ndarray:
    """Light in cd/m² with primaries of BT.2020, "h w 3", as code values in [0, 1]."""
    if kind == "BT.2020":
        return (light / WHITE) ** (1 / 2.4)
    if kind == "PQ":
        y = (light / 10_000) ** (2610 / 16384)
        return ((3424 / 4096 + 2413 / 128 * y) / (1 + 2392 / 128 * y)) ** (2523 / 32)
    bright = np.maximum(light @ LUMA / 1000, 1e-9)[..., None]
    scene = light / 1000 * bright ** (-0.2 / 1.2)
    a, b, c = 0.17883277, 0.28466892, 0.55991073
    log = a * np.log(np.maximum(12 * scene - b, 1e-9)) + c
    return np.where(scene <= 1 / 12, np.sqrt(3 * scene), log)


def write_hdr(path: Path, picture: np.ndarray, kind: str, *, num: int = 1) -> Path:
    """``num`` frames of a picture "h w 3" of standard range, whose white is ``WHITE``."""
    light = WHITE * (picture / 255) ** 2.4 @ (np.linalg.inv(XYZ_OF_2020) @ XYZ_OF_709).T
    return write_light(path, np.maximum(light, 0), kind, num=num)


def write_light(path: Path, light: np.ndarray, kind: str, *, num: int = 1) -> Path:
    """The same of light "h w 3" in cd/m² with primaries of BT.2020, lossless, in 10 bits."""
    codes = code_values(light, kind)
    luma = codes @ LUMA
    blue, red = ((codes[..., i] - luma) / (2 * (1 - LUMA[i])) for i in (2, 0))
    planes = (876 * luma + 64, 896 * blue + 512, 896 * red + 512)
    values = [np.round(plane).astype(np.uint16) for plane in planes]
    return write_planes(path, values, TRC[kind], ColorPrimaries.BT2020, Colorspace.BT2020, num)


def write_planes(
    path: Path,
    planes: list[np.ndarray],
    trc: int,
    primaries: int,
    colorspace: int,
    num: int = 1,
    color_range: int = ColorRange.MPEG,
) -> Path:
    """A video (FFV1) of these planes at full resolution, 8 or 10 bits, tagged as said."""
    pixels = "yuv444p" if planes[0].dtype == np.uint8 else "yuv444p10le"
    height, width = planes[0].shape
    with av.open(str(path), "w") as container:
        stream = container.add_stream("ffv1", rate=25)
        stream.width, stream.height, stream.pix_fmt = width, height, pixels
        for number in range(num):
            frame = av.VideoFrame(width, height, pixels)
            for plane, values in zip(frame.planes, planes, strict=True):
                row = np.zeros((height, plane.line_size // values.itemsize), values.dtype)
                row[:, :width] = values
                plane.update(row.tobytes())
            frame.pts, frame.time_base = number, Fraction(1, 25)
            for each in (frame, stream.codec_context):
                each.color_trc, each.color_primaries = trc, primaries
                each.colorspace, each.color_range = colorspace, color_range
            container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    return path
