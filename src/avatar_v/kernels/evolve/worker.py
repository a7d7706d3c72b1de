"""The process of one candidate: it builds its function once and calls it whenever it is told to.

It is started in the sandbox as ``python -m avatar_v.kernels.evolve.worker MEMORY IN OUT`` in a
folder with spec.json and candidate.py. The candidate's code runs in here and may change whatever is
in here, so nothing that this process says is believed: times are taken and results are compared by
the process that started it. A candidate is a module with ``build(scope)``, which is given the
scope's function and returns another one of the same tensors.
"""

import importlib.util
import json
import mmap
import os
import sys
from pathlib import Path
from typing import Any

import torch

from avatar_v.base.stored import built
from avatar_v.kernels import scopes
from avatar_v.kernels.evolve import layout
from avatar_v.kernels.evolve.spec import Spec


def main() -> None:
    """Until the other side closes its pipe."""
    memory_at, orders, answers = map(int, sys.argv[1:])
    spec = built(Spec, json.loads(Path("spec.json").read_text()), where="spec.json", sparse=True)
    function, given, results = layout.scope_of(spec)
    memory = mmap.mmap(memory_at, layout.num_bytes(spec, given, results))
    slots = layout.slots(spec, memory, given, results)
    call = loaded(Path("candidate.py")).build(function)
    os.write(answers, b"b")
    while os.read(orders, 1):
        run(call, slots, spec.device)
        os.write(answers, b"d")


def loaded(path: Path) -> Any:
    """The module of a file."""
    found = importlib.util.spec_from_file_location("candidate", path)
    if found is None or found.loader is None:
        raise ImportError(str(path))
    module = sys.modules["candidate"] = importlib.util.module_from_spec(found)
    found.loader.exec_module(module)
    return module


@torch.no_grad()
def run(call: Any, slots: list[layout.Slot], device: str) -> None:
    """The results are copied within the measured time; a copy from a GPU waits for it."""
    for given, kept in slots:
        inputs = given if device == "cpu" else [x.to(device) for x in given]
        for out, result in zip(kept, scopes.tensors_of(call(*inputs)), strict=True):
            if result.shape != out.shape or result.dtype != out.dtype:
                raise ValueError(
                    f"expected {out.dtype} {tuple(out.shape)}, "
                    f"got {result.dtype} {tuple(result.shape)}"
                )
            out.copy_(result)


if __name__ == "__main__":
    main()
