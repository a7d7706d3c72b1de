"""A video file over HTTP with byte ranges (RFC 9110 §14) and no telling headers.

Browsers ask for ranges to seek. Frameworks' file responses add ETag, Last-Modified and
Content-Disposition, which differ between files and so between systems; these carry none.
"""

import re
from collections.abc import Iterator
from pathlib import Path

from starlette.responses import Response, StreamingResponse

_BLOCK = 256 * 1024
_RANGE = re.compile(r"bytes=(\d*)-(\d*)")


def video_response(path: Path, range_header: str | None) -> Response:
    """200 with the whole file, 206 with one range, or 416. Several ranges get the whole file."""
    size = path.stat().st_size
    headers = {"Accept-Ranges": "bytes", "Cache-Control": "no-store"}
    try:
        span = byte_range(range_header, size)
    except ValueError:
        return Response(status_code=416, headers={**headers, "Content-Range": f"bytes */{size}"})
    start, stop = span or (0, size)
    headers["Content-Length"] = str(stop - start)
    if span:
        headers["Content-Range"] = f"bytes {start}-{stop - 1}/{size}"
    return StreamingResponse(
        _blocks(path, start, stop),
        status_code=206 if span else 200,
        headers=headers,
        media_type="video/mp4",
    )


def byte_range(header: str | None, size: int) -> tuple[int, int] | None:
    """(start, stop) of "bytes=a-b", "bytes=a-" or "bytes=-n"; None for no single range.

    Raises ValueError for a range that holds no byte of the file.
    """
    match = _RANGE.fullmatch(header.replace(" ", "")) if header else None
    if match is None or match[1] == match[2] == "":
        return None
    if match[1] == "":
        start, stop = max(0, size - int(match[2])), size
    else:
        start, stop = int(match[1]), min(size, int(match[2]) + 1 if match[2] else size)
    if start >= stop:
        raise ValueError(f"range {header!r} holds no byte of {size}")
    return start, stop


def _blocks(path: Path, start: int, stop: int) -> Iterator[bytes]:
    with path.open("rb") as file:
        file.seek(start)
        while start < stop and (block := file.read(min(_BLOCK, stop - start))):
            start += len(block)
            yield block
