"""The parts of a network that are moved or gathered one at a time."""

from collections.abc import Iterable

from torch import Tensor, nn


def find_blocks(module: nn.Module) -> list[nn.Module]:
    """The elements of outermost ``ModuleList``s, and embeddings outside them, in order. Each is to
    be run by calling it."""
    found: list[nn.Module] = []
    for child in module.children():
        is_element = type(module) is nn.ModuleList and type(child) is not nn.ModuleList
        if is_element or isinstance(child, nn.Embedding):
            found.append(child)
        else:
            found += find_blocks(child)
    return found


def list_tensors(module: nn.Module, besides: Iterable[nn.Module] = ()) -> list[Tensor]:
    """Parameters and buffers of ``module``, each once, without those of the parts ``besides``."""
    skipped = {part for block in besides for part in block.modules()}
    found: dict[int, Tensor] = {}
    for part in module.modules():
        if part not in skipped:
            for tensor in (*part.parameters(recurse=False), *part.buffers(recurse=False)):
                found[id(tensor)] = tensor
    return list(found.values())
