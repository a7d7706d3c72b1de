"""Trained weights on their device, which turn what was read of a request into frames.

The weights decide picture size and chunk length (request/resolve.py); everything else is the
request's. run.py carries a request out, and making.py makes a video with the networks that are held
here.
"""

import dataclasses
import functools
import itertools
from collections.abc import Generator, Iterator, Sequence
from pathlib import Path
from typing import Any

import torch
from jaxtyping import UInt8
from torch import Tensor, nn

from avatar_v.base.device import chosen_device, chosen_precision
from avatar_v.base.pools import TensorPool
from avatar_v.generate.generator import Clip, LatentChunk, context_latents
from avatar_v.generate.making import GenerationTask, RankTask
from avatar_v.generate.ranks import Ranks
from avatar_v.generate.refine import TrainedRefiner, hash_of_refiner, refined_person
from avatar_v.generate.resume import ChunkCheckpoint
from avatar_v.inputs.inputs import Inputs
from avatar_v.inputs.person import EncodedPerson, encode_clips, stored_reference, with_picture
from avatar_v.inputs.person_file import FROM_PROMPT, READ, REFINED
from avatar_v.inputs.reference_check import NamedPictures, check_reference
from avatar_v.models.conditioner import Conditioner
from avatar_v.models.config import DiTConfig
from avatar_v.models.dit import AvatarDiT
from avatar_v.models.layers import narrow
from avatar_v.parallel.compiling import compiled, compiles
from avatar_v.parallel.streams import open_streams
from avatar_v.request.record import ReferenceCheck
from avatar_v.request.request import Request
from avatar_v.request.resolve import (
    InputSpec,
    Sizes,
    input_spec,
    resolved,
    sampler_settings,
    sizes_of,
)
from avatar_v.sampling.amount import num_passes
from avatar_v.sampling.settings import Settings
from avatar_v.types import Reference
from avatar_v.weights.card import AdapterSpec, Card, hash_with
from avatar_v.weights.presets import format_of

Frames = UInt8[Tensor, "f 3 h w"]


class LoadedPipeline:
    """Loaded networks on one device. ``precision`` "auto" is bf16 where the hardware has it.

    ``overlap`` samples a chunk while the one before is decoded, in threads; the result is the same.
    None is: on an accelerator; on a CPU both need the same cores, and the first frames come later.
    ``offload`` keeps the weights in main memory, from where they visit a GPU block by block; the
    result is the same. A ``refiner`` (refine.py) makes larger pictures. ``name`` and
    ``folder`` say where the weights come from, ``adapters`` what was merged into them. ``ranks``
    make the video together (ranks.py); all of them build a pipeline, those that follow call
    `follow`, and `close` ends them. With ``shard`` each rank keeps its part of the weights of the
    DiT and the text encoder, and with ``offload`` as well that part waits in main memory. With
    ``compile`` "on" the blocks of the DiT are compiled at their first call (compiling.py), with
    "auto" for videos that are long enough, each by itself. Ranks of causal weights stand in a line,
    of which rank 0 always overlaps (parallel/timestep.py). A ``pool`` holds the weights of other
    pipelines, of which equal ones are shared (weight_sets.py).
    """

    def __init__(
        self,
        dit: AvatarDiT,
        conditioner: Conditioner,
        card: Card,
        *,
        device: str = "auto",
        precision: str = "auto",
        overlap: bool | None = None,
        offload: bool = False,
        shard: bool = False,
        compile: str = "off",
        refiner: str | Path | None = None,
        name: str = "",
        folder: Path | None = None,
        adapters: Sequence[AdapterSpec] = (),
        ranks: Ranks | None = None,
        pool: TensorPool | None = None,
    ) -> None:
        self.adapters = tuple(adapters)
        if dit.config.reads_low:
            raise ValueError("these weights are a refiner: pass them as --refiner")
        self.card, self.name, self.folder = card, name, folder
        self.format = format_of(card)
        self.device = chosen_device(device)
        self.overlap = self.device.type != "cpu" if overlap is None else overlap
        self.bf16 = chosen_precision(precision, self.device) == "bf16"
        self.dit, self.conditioner = dit.eval(), conditioner.eval()
        self.refiner = (
            None if refiner is None else TrainedRefiner.from_pretrained(refiner, conditioner)
        )
        self.offload, self.shard, self.compile = offload, shard, compile
        self.has_audio = dit.has_audio  # asked before a rank has but a part of the weights
        networks = self._networks()
        if self.bf16:
            for dit, conditioner in networks:
                narrow(dit, torch.bfloat16)
                if conditioner.motion_net is not None:
                    narrow(conditioner.motion_net, torch.bfloat16)
        self.ranks = ranks
        self._place(networks, pool)
        if ranks is not None and not self.dit.config.is_causal:
            decoding = networks[-1][1].vae
            ranks.spread(*(dit for dit, _ in networks), vae=decoding)
        self._compiled: tuple[AvatarDiT, TrainedRefiner | None] | None = None
        if compile != "off":
            larger = self.refiner
            if larger is not None:
                larger = dataclasses.replace(larger, dit=compiled(larger.dit))
            self._compiled = compiled(self.dit), larger

    def stream(self, inputs: Inputs, request: Request) -> Iterator[Frames]:
        """Blocks of frames for files already read, without files or a watermark (run.py); of
        ``request`` only prompt and numbers count."""
        return (clip.frames for clip in self.clips(inputs, request))

    def clips(
        self, inputs: Inputs, request: Request, kept: ChunkCheckpoint | None = None
    ) -> Generator[Clip, None, None]:
        """``stream`` with the sound of each block; closing it ends all its threads. Chunks that
        ``kept`` holds are not sampled, others are kept there."""
        making = self._making(self._job(inputs, request))
        return making.clips(inputs.audio, kept, inputs.listener)

    def latents(self, inputs: Inputs, request: Request) -> Generator[LatentChunk, None, None]:
        """The chunks of ``stream`` before they are decoded, of one rank or a line of them."""
        making = self._making(self._job(inputs, request))
        return making.latents(inputs.audio, inputs.listener)

    def follow(self) -> None:
        """Take part in the videos of rank 0, until it has no more."""
        assert self.ranks is not None
        while (job := self.ranks.share()) is not None:
            self._making(job).follow()
        self.close()

    def close(self) -> None:
        """End the ranks that follow, where there are some."""
        if self.ranks is not None:
            self.ranks.close()

    def settings(self, request: Request) -> Settings:
        """The sampler's settings for ``request``, with nothing left to the weights (`resolved`)."""
        return sampler_settings(request, self.card, bf16=self.bf16)

    def check_follows(self) -> None:
        """ValueError for encoders that look at the whole recording: they cannot follow a live
        sound."""
        own = None if self.refiner is None else self.refiner.conditioner
        context_latents(self.conditioner, own)

    def person(
        self, inputs: Inputs, *, from_prompt: bool = False, size: tuple[int, int] | None = None
    ) -> EncodedPerson:
        """The person who is to speak, encoded: picture, reference and motion.

        ``from_prompt``: the picture will not be given (Capabilities.stills_from_prompt); ``size``:
        height and width of another picture than the weights were trained on."""
        size = self.format.video.size if size is None else size
        if inputs.stored is None:
            reference = encode_clips(inputs, self.conditioner, size, **self._shown(from_prompt))
        else:
            name = inputs.stored.name_of(from_prompt=from_prompt)
            reference = stored_reference(inputs.stored, name, self.conditioner, size)
        return with_picture(inputs, self.conditioner, size, reference)

    def references(self, inputs: Inputs, request: Request) -> dict[str, Reference]:
        """What a person file holds of the clips (inputs/person_file.py)."""
        sizes, latents = self.sizes(request.sampling.size), self.format.refiner_latents
        encode = functools.partial(encode_clips, inputs, self.conditioner, sizes.base.size)
        found = {READ: encode(**self._shown(False))}
        if self._shown(True) != self._shown(False):
            found[FROM_PROMPT] = encode(**self._shown(True))
        larger = refined_person(self.refiner, inputs, sizes.larger, latents)
        if larger is not None:
            found[REFINED] = larger.reference
        return {name: reference for name, reference in found.items() if reference is not None}

    def _shown(self, from_prompt: bool) -> dict[str, Any]:
        can = self.card.can
        return {"faces": can.faces, "stills": can.num_stills(from_prompt=from_prompt)}

    @property
    def num_ranks(self) -> int:
        """Number of processes that make a video together."""
        return 1 if self.ranks is None else self.ranks.size

    def sizes(self, size: str | None = None) -> Sizes:
        """The pictures of a video on their way, of the size that is asked for. ValueError for one
        that the weights do not make."""
        return sizes_of(size, self.card, self.refiner_card)

    def input_spec(self, request: Request) -> InputSpec:
        """The inputs that are to be read of a person."""
        return input_spec(request, self.card, self.refiner_card)

    @property
    def refiner_card(self) -> Card | None:
        """The card of the refiner; None where there is none."""
        return None if self.refiner is None else self.refiner.card

    @property
    def makes_motion(self) -> bool:
        """Whether there is a motion network."""
        return self.conditioner.motion_net is not None

    @functools.cached_property
    def weights_hash(self) -> str:
        """Hash of the files that the networks were loaded from; ValueError where there are none."""
        if self.folder is None:
            raise ValueError("these networks come from no folder, so no record can name them")
        return hash_with(self.folder, self.adapters)

    def compiles(self, inputs: Inputs, request: Request) -> bool:
        """Whether the blocks are compiled for this video."""
        return compiles_video(self.compile, inputs, request, self.card, self.dit.config)

    @property
    def made_with(self) -> dict[str, str]:
        """The conditions besides request and weights that all frames depend on, for resume.py."""
        refiner = {} if self.refiner is None else {"refiner": hash_of_refiner(self.refiner.name)}
        precision = "bf16" if self.bf16 else "fp32"
        return {"precision": precision, "device": self.device.type, **refiner}

    def check_reference(self, pictures: NamedPictures) -> tuple[ReferenceCheck, tuple[str, ...]]:
        """Compare ``pictures`` with those that the weights know; also the warnings."""
        video, people = self.format.video, self.card.can.people
        return check_reference(pictures, self.conditioner.vae, video=video, people=people)

    def _job(self, inputs: Inputs, request: Request) -> GenerationTask:
        """``request`` with nothing left open, and who is to speak, for the refiner too."""
        known = inputs.has_reference
        request = resolved(request, self.card, has_clips=known, num_ranks=self.num_ranks)
        sizes, latents = self.sizes(request.sampling.size), self.format.refiner_latents
        from_prompt = request.person.from_prompt
        person = self.person(inputs, from_prompt=from_prompt, size=sizes.base.size)
        larger = refined_person(self.refiner, inputs, sizes.larger, latents)
        return GenerationTask(request, person, larger, sizes, self.compiles(inputs, request))

    def _making(self, job: GenerationTask) -> RankTask:
        settings, line = self.settings(job.request), None
        if self.ranks is not None and self.dit.config.is_causal:
            line = self.ranks.line(settings.num_steps)
        dit, refiner = self.dit, self.refiner
        if job.compiles:
            assert self._compiled is not None, "rank 0 has the same options"
            dit, refiner = self._compiled
        return RankTask(
            job,
            settings,
            dit,
            self.conditioner,
            refiner,
            device=self.device,
            overlap=self.overlap,
            ranks=self.ranks,
            line=line,
        )

    @property
    def networks(self) -> tuple[nn.Module, ...]:
        """All networks, those of the refiner too."""
        return tuple(itertools.chain.from_iterable(self._networks()))

    def _networks(self) -> list[tuple[AvatarDiT, Conditioner]]:
        refiner = self.refiner
        own = (self.dit, self.conditioner)
        return [own] if refiner is None else [own, (refiner.dit, refiner.conditioner)]

    def _place(
        self, networks: Sequence[tuple[AvatarDiT, Conditioner]], pool: TensorPool | None
    ) -> None:
        """Bring weights to where they are to stay."""
        if self.shard:
            if self.ranks is None:
                raise ValueError("weights are sharded over ranks, and this pipeline has none")
            parts = [part for dit, c in networks for part in (dit, c.text_encoder)]
            self.ranks.shard(*parts, offload=self.offload)
            for _, conditioner in networks:
                for part in conditioner.children():
                    if part is not conditioner.text_encoder:
                        part.to(self.device)
        elif self.offload:
            from avatar_v.parallel.offload import (
                offload_models,  # sharded tensors: a second of imports
            )

            offload_models(networks, open_streams(self.device))
        else:
            for part in itertools.chain.from_iterable(networks):
                if pool is None:
                    part.to(self.device)
                else:
                    pool.place(part)


def compiles_video(
    how: str, inputs: Inputs, request: Request, card: Card, config: DiTConfig
) -> bool:
    """Whether blocks are compiled for the video of a `resolved` request, by its own length: the
    same request is made the same way whatever its process made before."""
    frames = inputs.num_frames
    if how != "auto" or frames is None:
        return compiles(how, None)
    settings = sampler_settings(request, card, bf16=False)
    known = inputs.has_reference
    return compiles(how, num_passes(settings, config, frames, has_reference=known))
