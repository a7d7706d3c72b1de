"""Feature networks that a user gives to FID and FVD: a TorchScript file, or an own class."""

import importlib
from pathlib import Path

import torch
from torch import nn

from avatar_v.critics.frozen import weights_hash
from avatar_v_eval.bench.manifest import file_hash


def load_network(given: str, source: str) -> tuple[nn.Module, str, bool]:
    """The network, the hash of its weights, and whether it is a file's.

    ``given`` is a TorchScript file, or ``package.module:Name``, called without arguments for a
    module of one's own. ValueError for a file that is missing (naming ``source``, where one gets
    it) or unreadable, and for a path that leads to no module.
    """
    if ":" in given and not Path(given).exists():
        network = _imported(given)
        return network.eval().requires_grad_(False), weights_hash(network.state_dict()), False
    path = Path(given)
    if not path.is_file():
        raise ValueError(f"{path}: no such file; it needs {source}")
    try:
        network = torch.jit.load(str(path), map_location="cpu")
    except RuntimeError as error:
        raise ValueError(f"{path} is no TorchScript file; it needs {source}") from error
    return network.eval(), file_hash(path)[:12], True


def _imported(given: str) -> nn.Module:
    module, _, name = given.partition(":")
    try:
        network = getattr(importlib.import_module(module), name)()
    except (ImportError, AttributeError) as error:
        raise ValueError(f"{given}: cannot be imported ({error})") from error
    if not isinstance(network, nn.Module):
        raise ValueError(f"{given} gives a {type(network).__name__}, expected an nn.Module")
    return network
