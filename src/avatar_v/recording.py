"""A recording of any length: its samples lie in a file, slices of it in memory."""

import os
import tempfile
import weakref
from collections.abc import Iterable, Iterator

import torch
from jaxtyping import Float
from torch import Tensor

_BYTES = 4  # of a float32


class Recording:
    """Float32 samples in a temporary file without a name, gone with this object.

    It takes what a tensor "s" takes where sound is read in order: ``len``, slices of step 1 (new
    tensors, safe from several threads) and ``split``. OSError, naming the folder, if its disk is
    full.
    """

    def __init__(self, parts: Iterable[Tensor]) -> None:
        self._file = tempfile.TemporaryFile(prefix="avatar_v_sound_", buffering=0)  # noqa: SIM115
        weakref.finalize(self, self._file.close)
        for part in parts:
            self._append(part.numpy().tobytes())
        self._length = self._file.tell() // _BYTES

    def __len__(self) -> int:
        return self._length

    def __getitem__(self, span: slice) -> Float[Tensor, " s"]:
        start, stop, step = span.indices(len(self))
        if step != 1:
            raise ValueError(f"a recording is read in order, got a step of {step}")
        if stop <= start:
            return torch.zeros(0)
        data, wanted = bytearray(), (stop - start) * _BYTES
        while len(data) < wanted:  # the system reads 2 GiB at once at most
            at = start * _BYTES + len(data)
            data += os.pread(self._file.fileno(), wanted - len(data), at)
        return torch.frombuffer(data, dtype=torch.float32)

    def split(self, size: int) -> Iterator[Float[Tensor, " s"]]:
        """Parts of ``size`` samples, the last one shorter."""
        return (self[start : start + size] for start in range(0, len(self), size))

    def _append(self, data: bytes) -> None:
        try:
            while data:
                data = data[self._file.write(data) :]
        except OSError as error:
            folder = tempfile.gettempdir()
            raise OSError(
                f"{folder} has no room for the sound ({error}); let TMPDIR name another folder"
            ) from error


Sound = Float[Tensor, " s"] | Recording
"""A whole sound, in memory or not."""
