"""Pictures in tiles, as telephones store them: HEIC and AVIF files of a grid of coded images."""

import io
import struct
from concurrent.futures import ThreadPoolExecutor
from fractions import Fraction
from pathlib import Path

import av
import numpy as np

TILE = 64


def write_tiled(path: Path, picture: np.ndarray, *, codec: str = "libx265", turns: int = 0) -> Path:
    """``picture`` "h w 3" in tiles of ``TILE`` pixels, those at its ends filled up with black.

    HEIC of libx265, AVIF of libsvtav1; ``turns`` are quarter turns anticlockwise to show it.
    """
    height, width = picture.shape[:2]
    rows, columns = -(-height // TILE), -(-width // TILE)
    whole = np.zeros((rows * TILE, columns * TILE, 3), np.uint8)
    whole[:height, :width] = picture
    tiles = [
        whole[TILE * r : TILE * (r + 1), TILE * c : TILE * (c + 1)]
        for r in range(rows)
        for c in range(columns)
    ]
    # SVT-AV1 gives the thread that calls it (as root) real-time priority, and leaves it so: all
    # tests after this one, and what they start, would starve every other process.
    with ThreadPoolExecutor(1) as apart:
        coded = list(apart.map(lambda tile: _coded(tile, codec), tiles))
    kind, config = (b"hvc1", b"hvcC") if codec == "libx265" else (b"av01", b"av1C")
    num = len(coded)
    grid = struct.pack(">4B2H", 0, 0, rows - 1, columns - 1, width, height)
    numbers = range(1, num + 1)  # of the tiles; the grid is the last item
    kinds = [*[kind] * num, b"grid"]
    entries = [
        _full(b"infe", 2, int(item <= num), struct.pack(">HH4sx", item, 0, name))
        for item, name in enumerate(kinds, start=1)
    ]
    properties = [
        _box(config, coded[0][0]),
        _full(b"ispe", 0, 0, struct.pack(">2I", TILE, TILE)),
        _full(b"ispe", 0, 0, struct.pack(">2I", width, height)),
        _box(b"irot", bytes([turns])),
    ]
    of_tile = [struct.pack(">H3B", item, 2, 0x81, 2) for item in numbers]
    ipma = struct.pack(">I", num + 1) + b"".join(of_tile) + struct.pack(">H3B", num + 1, 2, 3, 0x84)
    refs = struct.pack(f">HH{num}H", num + 1, num, *numbers)

    def head(start: int) -> bytes:
        places, at = [], start
        for item, (_, data) in zip(numbers, coded, strict=True):
            places.append(struct.pack(">4H2I", item, 0, 0, 1, at, len(data)))
            at += len(data)
        places.append(struct.pack(">4H2I", num + 1, 1, 0, 1, 0, len(grid)))
        iloc = struct.pack(">HH", 0x4400, num + 1) + b"".join(places)
        meta = (
            _full(b"hdlr", 0, 0, struct.pack(">I4s12xx", 0, b"pict")),
            _full(b"pitm", 0, 0, struct.pack(">H", num + 1)),
            _full(b"iinf", 0, 0, struct.pack(">H", num + 1) + b"".join(entries)),
            _full(b"iref", 0, 0, _box(b"dimg", refs)),
            _box(b"iprp", _box(b"ipco", *properties) + _full(b"ipma", 0, 0, ipma)),
            _box(b"idat", grid),
            _full(b"iloc", 1, 0, iloc),
        )
        brand = b"heic" if codec == "libx265" else b"avif"
        ftyp = _box(b"ftyp", brand, bytes(4), b"mif1", brand, b"miaf")
        return ftyp + _full(b"meta", 0, 0, b"".join(meta))

    start = len(head(0)) + 8
    path.write_bytes(head(start) + _box(b"mdat", b"".join(data for _, data in coded)))
    return path


def _coded(tile: np.ndarray, codec: str) -> tuple[bytes, bytes]:
    """Configuration and data of one coded image."""
    file = io.BytesIO()
    with av.open(file, "w", format="mp4") as container:
        options = (
            {"x265-params": "log-level=error:bframes=0:pools=1"}
            if codec == "libx265"
            else {"crf": "10"}
        )
        stream = container.add_stream(codec, rate=1, options=options)
        stream.height, stream.width = tile.shape[:2]
        stream.pix_fmt = "yuv420p"
        frame = av.VideoFrame.from_ndarray(tile, format="rgb24").reformat(format="yuv420p")
        frame.pts, frame.time_base = 0, Fraction(1)
        container.mux(stream.encode(frame))
        container.mux(stream.encode(None))
    whole = file.getvalue()
    name = b"hvcC" if codec == "libx265" else b"av1C"
    at = whole.index(name) - 4
    config = whole[at + 8 : at + int.from_bytes(whole[at : at + 4])]
    with av.open(io.BytesIO(whole)) as container:
        data = next(bytes(packet) for packet in container.demux(video=0) if packet.size)
    return config, data


def _box(name: bytes, *parts: bytes) -> bytes:
    data = b"".join(parts)
    return struct.pack(">I4s", 8 + len(data), name) + data


def _full(name: bytes, version: int, flags: int, data: bytes) -> bytes:
    return _box(name, struct.pack(">I", version << 24 | flags), data)
