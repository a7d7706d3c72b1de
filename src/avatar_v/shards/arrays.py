"""Members of shards that are arrays, as .npy and .npz files: their bytes, and back.

What is read may be foreign: nothing is unpickled, and what is damaged or would fill the memory is
one ValueError.
"""

import io
import zipfile

import numpy as np
import torch
from torch import Tensor

MAX_GROWTH, LEAST_BOUND = 8, 1 << 24
"""An npz is at most so many times as large in memory as it is stored, or has so many bytes."""


def encode_array(array: np.ndarray) -> bytes:
    """The bytes of a .npy file."""
    file = io.BytesIO()
    np.save(file, array, allow_pickle=False)
    return file.getvalue()


def encode_arrays(arrays: dict[str, np.ndarray]) -> bytes:
    """The bytes of an .npz file."""
    file = io.BytesIO()
    np.savez(file, allow_pickle=False, **arrays)
    return file.getvalue()


def load_arrays(data: bytes, name: str):
    """An array, or the arrays of an npz by name. ValueError if the member ``name`` is damaged."""
    try:
        if data.startswith(b"PK"):
            _check_not_a_bomb(data)
        loaded = np.load(io.BytesIO(data), allow_pickle=False)
        return loaded if isinstance(loaded, np.ndarray) else {k: loaded[k] for k in loaded.files}
    except Exception as error:  # numpy and zipfile raise a dozen kinds for damaged bytes
        raise ValueError(f"{name}: damaged, {len(data)} bytes ({error})") from error


def load_tensor(data: bytes, kind: type[np.generic], num_axes: int, name: str) -> Tensor:
    """One array of this kind; ValueError if the member ``name`` is another, or damaged."""
    array = load_arrays(data, name)
    if not isinstance(array, np.ndarray) or array.dtype != kind or array.ndim != num_axes:
        raise ValueError(f"{name}: expected one array of {kind.__name__} with {num_axes} axes")
    return torch.from_numpy(array)


def _check_not_a_bomb(data: bytes) -> None:
    """ValueError for an npz that would be far larger in memory; our own are not compressed."""
    with zipfile.ZipFile(io.BytesIO(data)) as file:
        size = sum(member.file_size for member in file.infolist())
    if size > max(MAX_GROWTH * len(data), LEAST_BOUND):
        raise ValueError(f"its arrays would have {size:,} bytes")
