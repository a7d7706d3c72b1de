"""AvatarDiT: a video DiT in the Wan 2.1 form with audio, motion and a reference stream.

Without them it *is* diffusers' WanTransformer3DModel (tests/numerics/test_wan_parity.py). What is
ours (Avatar V §2.1): time per latent frame; audio cross-attention whose output
starts at zero; Sparse Reference Attention, which has no parameters of its own; and the motion
stream, one token per latent frame that goes through the same blocks: alone while there is no video
yet, which then finds it at t = 0, or beside it. Motion tokens look at the video, the video sees
motion only through an injection that starts at zero, so a model without motion gives the same video
before and after the stream is switched on. Habits are statistics of the reference's motion
(models/motion.py): attention could average them out of a hundred frames, but a linear map that
starts at zero and joins the time embedding learns them in minutes.

The refiner (stages/refiner.py) is this class with two settings of its config: attention between
generated tokens is local in time, and upsampled low-resolution latents are read beside x_t.

Tokens are kept as "b l n d" (latent frame, then token within it), so that what is given per latent
frame, modulation and audio, needs no repetition. The residual stream has the dtype of the weights.
"""

import dataclasses

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.models.blocks import Block, Head, run_block
from avatar_v.models.checks import check_latents, check_reference, expect
from avatar_v.models.config import DiTConfig
from avatar_v.models.layers import (
    MLP,
    LayerNorm,
    RMSNorm,
    TimeEmbedding,
    Tokens,
    compute_dtype,
    rotary_grid,
    rotary_table,
)
from avatar_v.models.motion import STYLE_DIM, style_features
from avatar_v.models.own_units import in_own_units
from avatar_v.models.reference import (
    ReferenceCache,
    ReferenceKeys,
    ReferenceLayout,
    join_caches,
    kept_moments,
    pack_frames,
    reference_keys,
    reference_moments,
    token_mask,
)
from avatar_v.types import Cond, Reference

Latents = Float[Tensor, "b l c h w"]
Motion = Float[Tensor, "b l m"]


class AvatarDiT(nn.Module):
    """Velocity of latents at per-frame times t, given text, audio and a reference."""

    def __init__(self, config: DiTConfig) -> None:
        super().__init__()
        self.config = config
        patch_dim = config.latent_channels * config.patch**2
        self.patch_embed = nn.Linear(patch_dim, config.dim)
        self.low_embed = nn.Linear(patch_dim, config.dim) if config.reads_low else None
        self.time_embed = TimeEmbedding(config.freq_dim, config.dim)
        self.text_embed = MLP(config.text_dim, config.dim, config.dim)
        self.audio_embed = nn.Linear(config.audio_dim, config.dim)
        self.audio_position = nn.Parameter(torch.empty(config.num_audio_tokens, config.dim))
        self.motion_embed = nn.Linear(config.motion_dim, config.dim)
        self.style_embed = nn.Parameter(torch.empty(STYLE_DIM, config.dim))
        self.face_embed = nn.Parameter(torch.zeros(config.dim))  # added to the tokens of a face
        self.anchor_embed = nn.Parameter(torch.zeros(config.dim))  # and to those of the anchor
        self.blocks = nn.ModuleList(
            Block(config, has_audio=i % config.audio_every == 0) for i in range(config.num_layers)
        )
        self.head = Head(config.dim, patch_dim, config.eps)
        self.motion_head = Head(config.dim, config.motion_dim, config.eps)
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Wan's initialisation; the outputs of heads, audio and motion, style and what marks a
        face or the anchor are 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                nn.init.zeros_(module.bias)
            elif isinstance(module, RMSNorm | LayerNorm):
                module.reset_parameters()
            elif isinstance(module, Block | Head):
                nn.init.normal_(module.modulation, std=self.config.dim**-0.5)
        for linear in (*_linears(self.time_embed), *_linears(self.text_embed)):
            nn.init.normal_(linear.weight, std=0.02)
        nn.init.normal_(self.audio_position, std=0.02)
        nn.init.zeros_(self.face_embed)
        nn.init.zeros_(self.anchor_embed)
        nn.init.zeros_(self.head.out.weight)
        nn.init.zeros_(self.motion_head.out.weight)
        nn.init.zeros_(self.style_embed)
        for block in self.modules():
            if isinstance(block, Block) and block.audio_attention and block.motion_inject:
                nn.init.zeros_(block.audio_attention.out.weight)
                nn.init.zeros_(block.motion_inject.weight)

    def forward(
        self,
        x_t: Latents | None,
        t: Float[Tensor, "b l"],
        cond: Cond,
        *,
        motion_t: Motion | None = None,
        t_motion: Float[Tensor, "b l"] | None = None,
        reference_cache: ReferenceCache | None = None,
        reference_offset: int | None = None,
        moments: Float[Tensor, "b k"] | None = None,
    ) -> Latents | tuple[Latents | None, Motion]:
        """v = ε - x_0 at every latent frame; with ``motion_t`` also the velocity of motion.

        t is in [0, 1]; clean frames (image, prefix) carry t = 0, in video and motion alike.
        ``t_motion`` are the times of motion where they are not those of the video. With
        ``reference_cache`` the reference in ``cond`` is not read. ``reference_offset`` is the
        temporal position of the first reference frame, the target's first being 0; by default the
        last reference frame lies ``reference_gap`` before the target. ValueError for shapes that
        do not fit.

        Without x_t there is no video yet, and motion is alone at times t: it reads text and sound,
        and of the reference its habits, ``moments`` (models/motion.motion_moments) or those of
        ``cond`` or the cache. The network works in units of the person's own then
        (models/own_units.py), in a pass that drops the reference, too. Its velocity comes
        with None for that of the video. A pass costs a token per latent frame.
        """
        self._check(x_t, t, cond, motion_t, t_motion)
        if x_t is not None and moments is not None:
            raise ValueError(
                "moments are for a pass without video; with it they are the reference's"
            )
        if x_t is None:
            assert motion_t is not None
            return None, self._motion_alone(motion_t, t, cond, reference_cache, moments)
        num_samples, num_frames, _, height, width = x_t.shape
        grid = (height // self.config.patch, width // self.config.patch)
        rotary = rotary_grid(num_frames, *grid, self.config.head_dim, x_t.device)
        motion_rotary = rotary_grid(num_frames, 1, 1, self.config.head_dim, x_t.device)
        x = self._embed_patches(x_t)
        if self.low_embed is not None and cond.low is not None:
            x = x + self._embed_low(self.low_embed, cond.low)
        text = self._embed_text(cond.text)
        audio, audio_scale = self._heard(cond)
        reference = self._reference_keys(
            cond, reference_cache, reference_offset, num_samples, rotary.shape[0]
        )
        style = None if reference is None else self._embed_style(reference.moments)
        embedding, modulation = self.time_embed(t, style)
        motion = self._embed_motion(motion_t)
        motion_embedding, motion_modulation = embedding, modulation
        if t_motion is not None:
            motion_embedding, motion_modulation = self.time_embed(t_motion, style)
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            x, motion, _ = run_block(
                block, x, motion, modulation, rotary, motion_rotary,
                motion_modulation=motion_modulation,
                text=text, audio=audio, audio_scale=audio_scale,
                extra=None if reference is None else reference.layer(i),
                key_mask=None if reference is None else reference.mask,
                window=self.config.temporal_window,
            )  # fmt: skip
        v = self._to_latents(self.head(x, embedding), *grid)
        return v if motion is None else (v, self.motion_head(motion, motion_embedding).squeeze(2))

    def _motion_alone(
        self,
        motion_t: Motion,
        t: Float[Tensor, "b l"],
        cond: Cond,
        cache: ReferenceCache | None,
        moments: Float[Tensor, "b k"] | None,
    ) -> Motion:
        if moments is None and cache is not None:
            moments = cache.expand(t.shape[0]).moments
        elif moments is None and cond.reference is not None:
            moments = reference_moments(cond.reference)
        own = in_own_units(motion_t, t, moments)
        moments = kept_moments(moments, cond.reference_keep)
        embedding, modulation = self.time_embed(t, self._embed_style(moments))
        x = self._embed_motion(own.motion_t)
        assert x is not None
        rotary = rotary_grid(t.shape[1], 1, 1, self.config.head_dim, t.device)
        text = self._embed_text(cond.text)
        audio, audio_scale = self._heard(cond)
        for block in self.blocks:
            assert isinstance(block, Block)
            x, _ = block(x, modulation, rotary, text=text, audio=audio, audio_scale=audio_scale)
        return own.velocity(self.motion_head(x, embedding).squeeze(2))

    def encode_reference(self, reference: Reference) -> ReferenceCache | None:
        """K and V of the reference stream in every layer; None for one of no frames and no faces.

        The stream runs at t = 0, without text (so one cache serves every prompt and guidance
        branch), with the reference's own audio and motion. Faces have neither and see nothing
        but themselves. What holds frames but not one valid is encoded, too, and masked.
        """
        check_reference(reference, self.config)
        clip = self._encode_clip(reference)
        if reference.faces is None or reference.faces_valid is None:
            return clip
        num_faces = reference.faces.shape[1]
        number = torch.arange(num_faces, device=reference.faces.device)
        alone = Reference(
            reference.faces, reference.faces_valid, number.expand(reference.faces.shape[0], -1)
        )
        faces = self._encode_clip(alone, mark=self.face_embed)
        if faces is None:
            return clip
        faces = faces.as_faces()
        return (
            faces
            if clip is None
            else dataclasses.replace(join_caches(clip, faces), moments=clip.moments)
        )

    def turned(self, cache: ReferenceCache) -> ReferenceCache:
        """``cache`` with its keys rotated once for the default ``reference_offset``, for passes
        that all read it there: same output, a rotation of every key less in each."""
        return cache.turned(self._offset(cache))

    def _offset(self, cache: ReferenceCache) -> int:
        return -self.config.reference_gap - cache.num_frames + 1

    def _encode_clip(
        self, reference: Reference, mark: Float[Tensor, " d"] | None = None
    ) -> ReferenceCache | None:
        """``encode_reference`` without its faces; ``mark`` is added to every token."""
        valid, moments = reference.valid, reference_moments(reference)
        is_blind = not bool(valid.any())
        if is_blind:
            # sharded, all ranks have to run this stream: a frame of zeros stands in, masked below
            reference = reference.map(torch.zeros_like)
            valid = torch.arange(valid.shape[1], device=valid.device).expand_as(valid) == 0
        layout = pack_frames(valid, reference.segment)
        if layout is None:
            return None
        num_frames, _, height, width = reference.latents.shape[1:]
        grid = (height // self.config.patch, width // self.config.patch)
        x = self._embed_patches(reference.latents.flatten(0, 1)[layout.frames])
        x = x if mark is None else x + mark.to(x.dtype)
        if reference.anchor is not None:
            is_anchor = reference.anchor.flatten()[layout.frames]
            x = x + is_anchor[..., None, None] * self.anchor_embed.to(x.dtype)
        _, modulation = self.time_embed(x.new_zeros(1, 1, dtype=torch.float32))
        audio = reference.audio
        if audio is not None:
            audio = self._embed_audio(audio.flatten(0, 1)[layout.frames])
        motion = reference.motion
        if motion is not None:
            motion = self._embed_motion(motion.flatten(0, 1)[layout.frames])
        position = layout.frames % num_frames
        rotary = rotary_table(position, *grid, self.config.head_dim)
        motion_rotary = rotary_table(position, 1, 1, self.config.head_dim)
        mask = token_mask(layout.frame_mask, x.shape[2])
        layers = []
        for block in self.blocks:
            assert isinstance(block, Block)
            x, motion, (key, value) = run_block(
                block, x, motion, modulation, rotary, motion_rotary,
                audio=audio, key_mask=mask, motion_mask=layout.frame_mask,
            )  # fmt: skip
            layers.append((_gather(key, layout), _gather(value, layout)))
        key_mask = layout.key_mask
        if is_blind:
            key_mask = torch.zeros_like(layout.position, dtype=torch.bool)
        return ReferenceCache(
            tuple(layers),
            token_mask(key_mask, x.shape[2]),
            layout.position,
            grid,
            num_frames,
            moments,
        )

    def _reference_keys(
        self,
        cond: Cond,
        cache: ReferenceCache | None,
        offset: int | None,
        num_samples: int,
        num_tokens: int,
    ) -> ReferenceKeys | None:
        """What the generated tokens read of the reference in this call."""
        keep = cond.reference_keep
        if cache is None and cond.reference is not None:
            # what is not kept is masked, not left out: sharded, all ranks have to run this stream
            cache = self.encode_reference(cond.reference)
        if cache is None:
            return None
        if offset is None:
            offset = self._offset(cache)
        return reference_keys(cache.expand(num_samples), offset, num_tokens, keep)

    def _embed_patches(self, latents: Latents) -> Tokens:
        return self.patch_embed(self._patches(latents)).to(self.patch_embed.weight.dtype)

    def _embed_low(self, low_embed: nn.Linear, low: Latents) -> Tokens:
        return low_embed(self._patches(low)).to(self.patch_embed.weight.dtype)

    def _patches(self, latents: Latents) -> Float[Tensor, "b l n o"]:
        p = self.config.patch
        return rearrange(latents, "b l c (h p) (w q) -> b l (h w) (c p q)", p=p, q=p)

    def _to_latents(self, patches: Float[Tensor, "b l n o"], height: int, width: int) -> Latents:
        p = self.config.patch
        return rearrange(
            patches, "b l (h w) (p q c) -> b l c (h p) (w q)", h=height, w=width, p=p, q=p
        )

    def _embed_text(self, text: Float[Tensor, "b n e"]) -> Float[Tensor, "b n d"]:
        return self.text_embed(text.to(compute_dtype(text, self.text_embed.up.weight)))

    def _embed_audio(
        self, audio: Float[Tensor, "b l a e"] | None
    ) -> Float[Tensor, "b l a d"] | None:
        if audio is None:
            return None
        y = self.audio_embed(audio.to(compute_dtype(audio, self.audio_embed.weight)))
        return y + self.audio_position.to(y.dtype)

    def _heard(
        self, cond: Cond
    ) -> tuple[Float[Tensor, "b l a d"] | None, Float[Tensor, "b 1 1 1"] | None]:
        """Audio tokens, and 0 for the samples whose audio is not kept."""
        audio = self._embed_audio(cond.audio)
        if audio is None or cond.audio_keep is None:
            return audio, None
        return audio, cond.audio_keep[:, None, None, None].to(self.patch_embed.weight.dtype)

    def _embed_style(self, moments: Float[Tensor, "b k"] | None) -> Float[Tensor, "b d"] | None:
        if moments is None:
            return None
        return style_features(moments).to(self.style_embed) @ self.style_embed

    def _embed_motion(self, motion: Motion | None) -> Float[Tensor, "b l 1 d"] | None:
        if motion is None:
            return None
        y = self.motion_embed(motion.to(compute_dtype(motion, self.motion_embed.weight)))
        return y.to(self.patch_embed.weight.dtype).unsqueeze(2)

    def _check(
        self,
        x_t: Latents | None,
        t: Float[Tensor, "b l"],
        cond: Cond,
        motion_t: Tensor | None,
        t_motion: Tensor | None,
    ) -> None:
        if x_t is None and (motion_t is None or t_motion is not None or self.config.reads_low):
            raise ValueError("a pass without video denoises motion alone, at times t; no refiner")
        num_samples, num_frames = t.shape if x_t is None else x_t.shape[:2]
        if x_t is not None:
            check_latents("x_t", x_t, self.config)
        expect("t", t.shape, (num_samples, num_frames))
        expect("cond.text", cond.text.shape, (num_samples, None, self.config.text_dim))
        if cond.audio is not None:
            shape = (num_samples, num_frames, self.config.num_audio_tokens, self.config.audio_dim)
            expect("cond.audio", cond.audio.shape, shape)
        if (cond.low is not None) != self.config.reads_low:
            here = "without" if cond.low is None else "with"
            kind = "a refiner" if self.config.reads_low else "no refiner"
            raise ValueError(f"this is {kind}, got conditions {here} low latents")
        if cond.low is not None and x_t is not None:
            expect("cond.low", cond.low.shape, x_t.shape)
        if motion_t is not None:
            shape = (num_samples, num_frames, self.config.motion_dim)
            expect("motion_t", motion_t.shape, shape)
        if t_motion is not None:
            expect("t_motion", t_motion.shape, (num_samples, num_frames))
            if motion_t is None:
                raise ValueError("t_motion are times of motion, got them without motion_t")


def _gather(
    x: Float[Tensor, "s wn heads width"], layout: ReferenceLayout
) -> Float[Tensor, "b kn heads width"]:
    """Tokens of segments → the tokens of each sample's valid frames, in order."""
    frames = x.unflatten(1, (layout.frames.shape[1], -1)).flatten(0, 1)
    return frames[layout.keys].flatten(1, 2)


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [child for child in module.modules() if isinstance(child, nn.Linear)]
