"""One decoded picture to the project's: RGB, upright, square pixels, standard range (BT.709).

Matrix and range of the colours are those that the file states; a large video that states none has
those of BT.709, as players take it. HDR is hdr.py's. Pictures in tiles, as telephones store HEIC
and AVIF, are put together by libheif and libavif: FFmpeg gives the tiles one by one.
"""

import os
import warnings
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import cast

import numpy as np
import pi_heif
import torch
from av.container import InputContainer
from av.error import FFmpegError
from av.sidedata.sidedata import SideData, Type
from av.video.frame import VideoFrame
from av.video.reformatter import ColorPrimaries, Colorspace, VideoReformatter
from jaxtyping import UInt8
from PIL import Image, ImageOps
from torch import Tensor

from avatar_v.media.containers import MIN_SIDE, check_pixels, is_image, regular_file
from avatar_v.media.hdr import kind_of_colours, to_standard

LARGE = (1280, 576)
"""Pixels: wider or higher, a video has the colours of HD unless it states others."""
UNSTATED = 2
"""FFmpeg's number of a matrix that the file does not state."""
WITH_EXIF = ("JPEG", "PNG", "WEBP", "TIFF")
ORIENTATION = 0x0112
NOT_READ = (ValueError, OSError, SyntaxError, RuntimeError, EOFError, Image.DecompressionBombError)
"""What Pillow and its plugins raise for a damaged file."""
pi_heif.register_heif_opener()  # lets Pillow open HEIC; AVIF it opens itself

Matrix = tuple[int, int, int, int]
"""a b c d of a display matrix: the pixel (x, y) is shown at (a x + c y, b x + d y)."""
QUARTERS: tuple[Matrix, ...] = ((1, 0, 0, 1), (0, -1, 1, 0), (-1, 0, 0, -1), (0, 1, -1, 0))
"""Quarter turns, anticlockwise."""
EXIF: dict[int, Matrix] = {
    1: QUARTERS[0],
    2: (-1, 0, 0, 1),
    3: QUARTERS[2],
    4: (1, 0, 0, -1),
    5: (0, 1, 1, 0),
    6: QUARTERS[3],
    7: (0, -1, -1, 0),
    8: QUARTERS[1],
}
"""Exif's orientations."""


def checked(frames: Iterator[VideoFrame], aspect: float, path: str | Path) -> Iterator[VideoFrame]:
    """The frames, each with sides that can be used, square pixels counted."""
    for frame in frames:
        width = frame.width * aspect
        check_pixels(width, frame.height, path)
        if min(width, frame.height) < MIN_SIDE:
            raise ValueError(
                f"{path}: a picture of {width:.0f} x {frame.height} pixels; "
                f"each side has at least {MIN_SIDE}"
            )
        yield frame


class PictureConverter:
    """Frames of one file to pictures."""

    def __init__(self, container: InputContainer, path: str | Path, *, aspect: float) -> None:
        self._path, self._aspect = path, aspect
        self._is_image, self._exif = is_image(container), exif_matrix(container, path)
        self._reformatters: dict[int | None, VideoReformatter] = {}  # each holds a scaler

    def __call__(self, frame: VideoFrame, max_side: int | None) -> UInt8[Tensor, "3 h w"]:
        """ValueError for a frame that cannot be converted to RGB."""
        width, height = frame.width * self._aspect, frame.height
        side = max(width, height)
        reduction = min(1.0, max_side / side) if max_side else 1.0
        kind = kind_of_colours(frame.color_trc, frame.color_primaries)
        try:
            reformatter = self._reformatters.setdefault(max_side, VideoReformatter())
            picture = reformatter.reformat(
                frame,
                max(1, round(width * reduction)),
                max(1, round(height * reduction)),
                "rgb48le" if kind else "rgb24",
                src_colorspace=self._color_matrix(frame),
                interpolation="AREA",
            ).to_ndarray()
        except FFmpegError as error:
            why = f"{frame.format.name}, {error.strerror}"
            raise ValueError(
                f"{self._path}: a picture cannot be converted to RGB ({why})"
            ) from error
        if kind:
            wide = frame.color_primaries == ColorPrimaries.BT2020
            picture = to_standard(picture, kind, wide=wide)
        shown = turned(picture, self._exif or display_matrix(frame))
        return torch.from_numpy(np.ascontiguousarray(shown.transpose(2, 0, 1)))

    def _color_matrix(self, frame: VideoFrame) -> Colorspace | None:
        """BT.709 where a large video states no matrix; None leaves FFmpeg the one it states."""
        is_large = frame.width >= LARGE[0] or frame.height > LARGE[1]
        unstated = frame.colorspace == UNSTATED and not (frame.format.is_rgb or self._is_image)
        return Colorspace.ITU709 if unstated and is_large else None


def turned(picture: np.ndarray, matrix: Matrix) -> np.ndarray:
    """A picture "h w 3" as its display matrix shows it."""
    a, b, c, d = matrix
    if b or c:
        picture, a, d = picture.swapaxes(0, 1), c, b
    return picture[:: d or 1, :: a or 1]


def display_matrix(frame: VideoFrame) -> Matrix:
    """How a frame is shown, to the nearest quarter turn."""
    try:
        found = cast(Iterable[SideData], frame.side_data)
    except ValueError:  # PyAV lacks the name of a kind that FFmpeg knows, such as a second view
        return QUARTERS[round(frame.rotation / 90) % 4]
    data = next((data for data in found if data.type == Type.DISPLAYMATRIX), None)
    if data is None:
        return QUARTERS[0]
    a, b, _, c, d = np.frombuffer(bytes(data), np.int32)[:5].astype(float)
    if abs(a) + abs(d) >= abs(b) + abs(c):
        return (-1 if a < 0 else 1, 0, 0, -1 if d < 0 else 1)
    return (0, -1 if b < 0 else 1, -1 if c < 0 else 1, 0)


def exif_matrix(container: InputContainer, path: str | Path) -> Matrix | None:
    """The orientation of an image file; None for a video, whose frames tell theirs.

    Of such a file PyAV tells a quarter turn, but no mirroring.
    """
    if not container.format.name.endswith("_pipe"):
        return None
    with os.fdopen(regular_file(path), "rb") as file:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # of other tags
                stated = Image.open(file, formats=WITH_EXIF).getexif().get(ORIENTATION)
        except NOT_READ:  # no such format, or no Exif that can be read
            stated = None
    return EXIF.get(stated or 1, QUARTERS[0])


@contextmanager
def open_tiled(path: str | Path) -> Iterator[Image.Image]:
    """The header of a picture in tiles, which are decoded when they are used. ValueError for what
    is no such picture, or too large."""
    with os.fdopen(regular_file(path), "rb") as file:
        with _named(path):
            image = Image.open(file, formats=("AVIF", "HEIF"))
        check_pixels(*image.size, path)
        yield image


def read_tiled(path: str | Path, kind: str) -> VideoFrame:
    """A picture in tiles, upright, of these colours (`kind_of_colours`). ValueError for a damaged
    one, and for HDR, which the libraries that put tiles together do not keep."""
    if kind:
        raise ValueError(
            f"{path}: an HDR picture ({kind}) in tiles, which is not read; save it as a JPEG or PNG"
        )
    with open_tiled(path) as image, _named(path):
        return VideoFrame.from_image(ImageOps.exif_transpose(image).convert("RGB"))


@contextmanager
def _named(path: str | Path) -> Iterator[None]:
    """A ValueError that names the file for all that libheif and libavif raise."""
    try:
        yield
    except NOT_READ as error:
        why = str(error).partition(" <")[0]
        raise ValueError(f"{path}: its tiles cannot be put together ({why})") from error
