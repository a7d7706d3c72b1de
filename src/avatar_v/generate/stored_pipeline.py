"""Weights on a disk that are found and checked first, and load as a pipeline later."""

import functools
from typing import TypeVar

from avatar_v.base.device import chosen_device, chosen_precision
from avatar_v.base.pools import TensorPool
from avatar_v.generate.launching import check_devices, launched_as, leading
from avatar_v.generate.loaded import LoadedPipeline, compiles_video
from avatar_v.generate.ranks import Ranks
from avatar_v.generate.refine import hash_of_refiner
from avatar_v.inputs.inputs import Inputs
from avatar_v.kernels import backends, switch
from avatar_v.parallel import exchange
from avatar_v.parallel.compiling import check_compile, compiles
from avatar_v.parallel.streams import check_offload
from avatar_v.request.request import Request, Weights
from avatar_v.request.resolve import InputSpec, input_spec
from avatar_v.weights.adapter import check_adapters, load_merged
from avatar_v.weights.card import AdapterSpec, check_follows, hash_with, read_card, weights_folder
from avatar_v.weights.weights import dit_config, has_motion_net, load_pipeline

_Pipeline = TypeVar("_Pipeline", bound=LoadedPipeline)


class StoredPipeline:
    """Weights on a disk that were found and checked, and load as a pipeline.

    ValueError, before any network is built, for a missing part, another schema version or an
    unknown preset, for ``offload``, a named attention or named kernels without a GPU, for ``shard``
    on one device, for ``compile`` where there is no compiler or weights come and go, for a refiner
    that is none, for an adapter that is none or of other weights, and
    for causal weights with ``shard``. The card is that of the last adapter, if there is one.
    """

    def __init__(self, weights: Weights) -> None:
        self.weights = weights
        device = chosen_device(weights.device)
        if weights.offload:
            check_offload(device)
        check_devices(weights.devices, device, shard=weights.shard)
        check_compile(weights.compile, device, is_moved=weights.offload or weights.shard)
        backends.check_named(device)
        switch.check_named(device)
        exchange.check_named(device)
        self.folder = weights_folder(weights.name)
        self.made_with = {
            "precision": chosen_precision(weights.precision, device),
            "device": device.type,
        }
        self.refiner_card = None
        if weights.refiner is not None:
            self.made_with["refiner"] = hash_of_refiner(weights.refiner)
            self.refiner_card = read_card(weights_folder(weights.refiner))
        self.card = read_card(self.folder)
        self.adapters = tuple(AdapterSpec.of(word) for word in weights.lora)
        if self.adapters:
            self.card = check_adapters(self.folder, self.adapters)
        if self.card.can.causal_block is not None and weights.shard:
            raise ValueError(
                "--shard: devices with causal weights make different steps, so each needs whole "
                "weights; --offload keeps them in main memory"
            )

    @functools.cached_property
    def weights_hash(self) -> str:
        """Hash of the files of the weights and adapters."""
        return hash_with(self.folder, self.adapters)

    def check_follows(self) -> None:
        """ValueError for encoders that look at the whole recording: they cannot follow a live
        sound."""
        check_follows(self.folder, self.card)
        if self.refiner_card is not None:
            check_follows(weights_folder(str(self.weights.refiner)), self.refiner_card)

    @property
    def num_ranks(self) -> int:
        """Number of processes that will make a video together."""
        return max(self.weights.devices, launched_as()[1])

    def input_spec(self, request: Request) -> InputSpec:
        """The inputs that are to be read of a person."""
        return input_spec(request, self.card, self.refiner_card)

    def compiles(self, inputs: Inputs, request: Request) -> bool:
        """Whether the blocks are compiled for this video."""
        how = self.weights.compile
        if how != "auto":
            return compiles(how, None)
        config = dit_config(self.folder / "dit")
        return compiles_video(how, inputs, request, self.card, config)

    @property
    def makes_motion(self) -> bool:
        """Whether there is a motion network."""
        return has_motion_net(self.folder)

    def load(self, ranks: Ranks | None = None) -> LoadedPipeline:
        """The networks; of rank 0, which brings the others (launching.py), or of ``ranks``.

        ValueError and ChildProcessError as `load_as`.
        """
        return self.load_as(LoadedPipeline, ranks)

    def load_as(
        self, make: type[_Pipeline], ranks: Ranks | None = None, *, pool: TensorPool | None = None
    ) -> _Pipeline:
        """`load`, as another kind of pipeline, with the tensors of a ``pool``.

        ValueError for every key that does not fit (weights/weights.py), ChildProcessError for a
        rank that ends before it has begun.
        """
        weights, device = self.weights, chosen_device(self.weights.device)
        if ranks is None:
            ranks = leading(weights, device, follow)
        # rank 0 alone refines what causal weights make
        refines = ranks is None or ranks.rank == 0 or self.card.can.causal_block is None
        if self.adapters:
            dit, conditioner = load_merged(self.folder, self.adapters)
        else:
            dit, conditioner = load_pipeline(self.folder)
        return make(
            dit,
            conditioner,
            self.card,
            device=weights.device if ranks is None else str(ranks.device),
            precision=weights.precision,
            offload=weights.offload,
            shard=weights.shard,
            compile=weights.compile,
            refiner=weights.refiner if refines else None,
            name=str(weights.name),
            folder=self.folder,
            adapters=self.adapters,
            ranks=ranks,
            pool=pool,
        )


def follow(weights: Weights, ranks: Ranks) -> None:
    """All that a rank above 0 does: it takes part in the videos of rank 0."""
    StoredPipeline(weights).load(ranks).follow()
