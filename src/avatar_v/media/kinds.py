"""The kinds of outputs, told by the words of ``--out``. Nothing that makes one is imported."""

from pathlib import Path
from typing import Literal

STDOUT = "-"
RTMP = "rtmp://"


def output_kind(out: str) -> Literal["mp4", "hls", "rtmp", "stdout"]:
    """ValueError for anything else, and for a playlist that libav could not name segments for."""
    if out == STDOUT:
        return "stdout"
    if out.startswith(RTMP):
        return "rtmp"
    match Path(out).suffix.lower():
        case ".mp4":
            return "mp4"
        case ".m3u8":
            if "%" in out:  # libav's names of segments are printf patterns, without an escape
                raise ValueError(f"{out}: the path of a playlist may not hold a %")
            return "hls"
    raise ValueError(
        f"{out}: the output is an .mp4 file, an .m3u8 playlist (HLS), {RTMP}… or - (stdout)"
    )
