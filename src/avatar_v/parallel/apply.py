"""Activation checkpointing and FSDP2, applied to finished models in one order; and back to whole
weights for the export."""

import contextlib
import functools
import itertools
from collections.abc import Iterable, Iterator

import torch
from torch import Tensor, nn
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import (
    CPUOffloadPolicy,
    FSDPModule,
    MixedPrecisionPolicy,
    OffloadPolicy,
    fully_shard,
    register_fsdp_forward_method,
)
from torch.distributed.tensor import DTensor
from torch.utils.checkpoint import checkpoint

from avatar_v.models.audio import HiddenStateAudioEncoder, LogMelEncoder
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import IN_FP32
from avatar_v.models.motion_net import MotionNet
from avatar_v.models.text import ByteTextEncoder, UMT5TextEncoder
from avatar_v.parallel.blocks import find_blocks


def checkpoint_blocks(dit: AvatarDiT) -> None:
    """Each block keeps its input alone and is computed again in the backward pass."""
    for block in dit.blocks:
        block.forward = functools.partial(checkpoint, block.forward, use_reentrant=False)


def shard(module: nn.Module, mesh: DeviceMesh, *, compute_dtype: torch.dtype) -> None:
    """Shard parameters, gradients and optimiser state of ``module`` over ``mesh``.

    Of a DiT each block is sharded, then the rest; of a conditioner each layer of the two encoders
    and of the motion network, then the rest of each, which is put back into shards behind every
    pass too: they run once a step. Its frozen VAE stays whole on every rank; any other module is
    sharded as one.
    Weights are kept and reduced in fp32 and gathered as ``compute_dtype``; those of the embeddings
    of time and guidance, which compute in fp32, as fp32. Inputs are not cast: times and latents
    stay fp32 until the layers themselves cast.
    """
    policy, exact = (
        MixedPrecisionPolicy(
            param_dtype=dtype, reduce_dtype=torch.float32, cast_forward_inputs=False
        )
        for dtype in (compute_dtype, torch.float32)
    )
    networks: list[nn.Module] = [module]
    if isinstance(module, Conditioner):
        networks = sharded_parts(module)
    parts = [part for network in networks for part in shard_units(network)]
    for part in parts:
        for child in part.modules():
            if isinstance(child, IN_FP32):
                fully_shard(child, mesh=mesh, mp_policy=exact)
    # None: all but the outermost are put back into shards behind a pass
    back = True if isinstance(module, Conditioner) else None
    for part in parts:
        fully_shard(part, mesh=mesh, mp_policy=policy, reshard_after_forward=back)
    _register_methods(networks)


def shard_frozen(network: nn.Module, mesh: DeviceMesh, *, offload: bool = False) -> None:
    """Shard the weights of ``network``, a DiT or an encoder, for inference: a rank keeps its part
    of each, and gathers a block just before it runs, while the one before it computes.

    The units are those of `shard`. Weights keep their types, so results are the same, bit for bit.
    A block that runs several times in a row (video, then motion) is gathered once, but for the last
    one: nothing stays gathered between passes. With ``offload`` the shards of blocks wait in main
    memory; the rest stays on the device, where code asks the network for it.
    """
    network.requires_grad_(False)  # one unit may mix types, but trained weights may not
    blocks = shard_units(network)[:-1]
    waiting = CPUOffloadPolicy(pin_memory=mesh.device_type == "cuda")
    for block in blocks:
        fully_shard(
            block,
            mesh=mesh,
            reshard_after_forward=block is blocks[-1],
            offload_policy=waiting if offload else OffloadPolicy(),
        )
    fully_shard(network, mesh=mesh, reshard_after_forward=True)
    _register_methods([network])
    for unit, after in itertools.pairwise([network, *blocks]):
        assert isinstance(unit, FSDPModule)
        assert isinstance(after, FSDPModule)
        unit.set_modules_to_forward_prefetch([after])
        if unit is not network:
            after.register_forward_pre_hook(functools.partial(_put_back, unit), prepend=True)
    network.register_forward_hook(_forget_order)


def _register_methods(networks: Iterable[nn.Module]) -> None:
    """Let what is called besides ``forward`` find whole weights, too."""
    for dit in networks:
        if isinstance(dit, AvatarDiT):
            register_fsdp_forward_method(dit, "encode_reference")
            for block in dit.blocks:
                register_fsdp_forward_method(block, "context_keys")


def _put_back(before: FSDPModule, *_: object) -> None:
    before.reshard()


def _forget_order(network: nn.Module, *_: object) -> None:
    """FSDP2 notes the order of calls until a backward pass, which never comes."""
    assert isinstance(network, FSDPModule)
    network.reset_iter_state()


def sharded_parts(conditioner: Conditioner) -> list[nn.Module]:
    """The networks of a conditioner that are sharded: all that are its children (a stage may have
    set others aside) but the VAE."""
    return [part for part in conditioner.children() if part is not conditioner.vae]


def shard_units(network: nn.Module) -> list[nn.Module]:
    """What is gathered at a time: the blocks of a DiT, the layers of an encoder or of a motion
    network (elements of a list that it calls one by one), and last the network, for the rest."""
    kinds = (AvatarDiT, ByteTextEncoder, UMT5TextEncoder, LogMelEncoder, MotionNet)
    if not isinstance(network, (*kinds, HiddenStateAudioEncoder)):
        return [network]
    layers = [b for b in find_blocks(network) if not isinstance(b, nn.Embedding)]
    return [*layers, network]


@contextlib.contextmanager
def whole_state(module: nn.Module) -> Iterator[None]:
    """Within the block ``state_dict()`` of ``module`` and its parts holds whole tensors on the CPU
    instead of shards. All ranks enter it together; away from rank 0 it is empty of them."""
    sharded = {n: p for n, p in module.named_parameters() if isinstance(p, DTensor)}
    if not sharded:
        yield
        return
    whole: dict[int, Tensor] = {}
    for parameter in sharded.values():
        full = parameter.full_tensor().detach()
        if torch.distributed.get_rank() == 0:
            whole[id(parameter)] = full.cpu().clone()  # not a view of the gathered, padded buffer

    def replace(part: nn.Module, state_dict: dict[str, Tensor], prefix: str, _metadata) -> None:
        for name, parameter in part.named_parameters():
            if id(parameter) in whole:
                state_dict[prefix + name] = whole[id(parameter)]

    hooks = [part.register_state_dict_post_hook(replace) for part in module.modules()]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()
