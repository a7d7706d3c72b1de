"""Several sets of weights in one process, any of which makes the next video.

What they have in common, as the VAE and the encoders of a teacher and its students, lies in memory
once. Nothing is loaded, moved or merged between two videos: another set is another entry.
"""

from collections.abc import Iterator, Mapping
from dataclasses import replace

import torch

from avatar_v.base.device import chosen_device
from avatar_v.base.pools import TensorPool, num_bytes
from avatar_v.generate.launching import launched_as
from avatar_v.generate.pipeline import AvatarPipeline
from avatar_v.generate.stored_pipeline import StoredPipeline
from avatar_v.request.request import Weights
from avatar_v.weights.card import names_of


class WeightSets(Mapping[str, AvatarPipeline]):
    """Pipelines by name, in the order that was given: ``sets["small_student"](reference=…)``.

    ValueError as of `StoredPipeline`, before any network is built; for several devices, ``shard``
    and ``offload``, which only a single `AvatarPipeline` has; and where the device has no room for
    all sets.
    """

    def __init__(self, weights: Mapping[str, Weights]) -> None:
        if not weights:
            raise ValueError("no weights: give at least one set")
        for name, one in weights.items():
            if max(one.devices, launched_as()[1]) > 1 or one.shard or one.offload:
                raise ValueError(
                    f"{name}: several sets of weights lie on one device, whole: leave out "
                    "--devices, --shard and --offload"
                )
        stored = {name: StoredPipeline(one) for name, one in weights.items()}
        pools: dict[torch.device, TensorPool] = {}
        self._pipelines: dict[str, AvatarPipeline] = {}
        for name, one in stored.items():
            device = chosen_device(one.weights.device)
            pool = pools.setdefault(device, TensorPool(device))
            try:
                self._pipelines[name] = one.load_as(AvatarPipeline, pool=pool)
            except torch.OutOfMemoryError as error:
                loaded = ", ".join(self._pipelines) or "none"
                raise ValueError(
                    f"{device} has no room for {name} beside the others ({loaded}: "
                    f"{self.num_bytes / 2**30:.2f} GiB): load fewer sets"
                ) from error

    @classmethod
    def from_pretrained(
        cls,
        *names: str,
        device: str = "auto",
        precision: str = "auto",
        refiner: str | None = None,
    ) -> "WeightSets":
        """Sets as `names_of` has them; options as of `AvatarPipeline.from_pretrained`, for all."""
        how = Weights(device=device, precision=precision, refiner=refiner)
        return cls({name: replace(how, name=one) for name, one in names_of(names).items()})

    def __getitem__(self, name: str) -> AvatarPipeline:
        return self._pipelines[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self._pipelines)

    def __len__(self) -> int:
        return len(self._pipelines)

    @property
    def num_bytes(self) -> int:
        """Bytes of all weights, those that are shared counted once."""
        return num_bytes(*(network for one in self.values() for network in one.networks))
