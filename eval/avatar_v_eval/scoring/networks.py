"""Feature networks that a user gives to FID and FVD: a TorchScript file, or an own class."""

import importlib
from collections.abc import Sequence
from pathlib import Path

import torch
from jaxtyping import Float, UInt8
from torch import Tensor, nn

from avatar_v.critics.frozen import weights_hash
from avatar_v_eval.files import file_hash


class GivenNetwork:
    """A network and the hash of its weights; a file is called with the ``options`` set, which its
    maker's own networks know.

    ``given`` is a TorchScript file, or ``package.module:Name``, called without arguments for a
    module of one's own. ValueError for a file that is missing (naming ``source``, where one gets
    it) or unreadable, and for a path that leads to no module.
    """

    def __init__(self, given: str, source: str, options: Sequence[str] = ()) -> None:
        path, self.options = Path(given), {}
        if ":" in given and not path.exists():
            network = _imported(given)
            self.network = network.eval().requires_grad_(False)
            self._hash = weights_hash(network.state_dict())
            return
        if not path.is_file():
            raise ValueError(f"{path}: no such file; it needs {source}")
        try:
            self.network = torch.jit.load(str(path), map_location="cpu").eval()
        except RuntimeError as error:
            raise ValueError(f"{path} is no TorchScript file; it needs {source}") from error
        self._hash, self.options = file_hash(path)[:12], dict.fromkeys(options, True)

    def hash(self) -> str:
        return self._hash

    @torch.no_grad()
    def __call__(self, frames: UInt8[Tensor, "b *s"]) -> Float[Tensor, "b d"]:
        return self.network(frames, **self.options).float()


def _imported(given: str) -> nn.Module:
    module, _, name = given.partition(":")
    try:
        network = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{given}: cannot be imported ({error})") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"{given} gives a {type(network).__name__}, expected an nn.Module")
    return network
