"""Tensors of several networks on one device, of which those that are equal are kept once."""

import torch
from torch import Tensor, nn

_BITS = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64}


class TensorPool:
    """Brings networks to ``device``. Parameters that are equal bit for bit share memory there, so
    each network computes what it did before. Because of the shared memory, none of the networks may
    be trained, and nothing may be merged into one."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._known: dict[tuple[object, ...], list[Tensor]] = {}

    @torch.no_grad()
    def place(self, network: nn.Module) -> None:
        """Bring ``network`` to the device, one parameter at a time. One that equals a parameter
        already there is dropped at once: the device needs room for one more, not for all."""
        for parameter in network.parameters():
            parameter.data = self._placed(parameter.data)
        network.to(self.device)  # buffers

    def _placed(self, x: Tensor) -> Tensor:
        bits, there = _bits(x), x.to(self.device)
        key = (x.shape, x.stride(), x.dtype, torch.hash_tensor(bits).item())
        known = self._known.setdefault(key, [])
        for other in known:
            if torch.equal(_bits(other), _bits(there)):
                return other
        known.append(there)
        return there


def num_bytes(*networks: nn.Module) -> int:
    """Bytes that the parameters and buffers of ``networks`` take, shared memory counted once."""
    storages = {}
    for network in networks:
        for x in (*network.parameters(), *network.buffers()):
            storage = x.untyped_storage()
            storages[storage.data_ptr()] = storage.nbytes()
    return sum(storages.values())


def _bits(x: Tensor) -> Tensor:
    return x.detach().view(_BITS[x.element_size()])
