"""AvatarDiT: a video DiT in the Wan 2.1 form with audio, motion and a reference stream.

Without them it *is* diffusers' WanTransformer3DModel (tests/numerics/test_wan_parity.py).
Ours are (Avatar V §2.1): time per latent frame; audio cross-attention whose output
starts at zero; Sparse Reference Attention, which has no parameters of its own; and the motion
stream, one clean token per latent frame that goes through the same blocks. Motion tokens look at
the video, the video sees motion only through an injection that starts at zero, so a model without
motion gives the same video before and after the stream is switched on. A style is statistics of the
reference's motion (motion/style.py): attention could average them out of a hundred frames, but a
linear map that starts at zero and joins the time embedding learns them in minutes.

The refiner (objectives/refiner.py) is this class with two settings of its config: attention between
generated tokens is local in time, and upsampled low-resolution latents are read beside x_t.

Tokens are kept as "b l n d" (latent frame, then token within it), so that what is given per latent
frame, modulation and audio, needs no repetition. The residual stream has the dtype of the weights.
"""

from collections.abc import Callable
from functools import partial

import torch
from einops import rearrange
from jaxtyping import Float
from torch import Tensor, nn

from avatar_v.kernels.key_mask import KeyPart, build_mask
from avatar_v.kernels.residual import Tokens
from avatar_v.models.attention import KeyValue, Pattern
from avatar_v.models.blocks import Block, ContextKeys, Head, run_block
from avatar_v.models.cache import KeyValueCache
from avatar_v.models.checks import check_latents, check_reference, expect
from avatar_v.models.config import CAUSAL_FIRST, NUM_GUIDANCE, DiTConfig
from avatar_v.models.layers import (
    MLP,
    GuidanceEmbedding,
    LayerNorm,
    RMSNorm,
    TimeEmbedding,
    compute_dtype,
    residual_dtype,
    rotary_grid,
    rotary_table,
)
from avatar_v.models.reference import (
    PackedFrames,
    PackedReference,
    kept_moments,
    pack_reference,
    reference_moments,
)
from avatar_v.models.spread import ALONE, Spread
from avatar_v.motion.own_units import build_style, in_own_units
from avatar_v.motion.stats import MotionStats
from avatar_v.motion.style import STYLE_DIM, style_code
from avatar_v.types import Cond, Reference

Latents = Float[Tensor, "b l c h w"]
Motion = Float[Tensor, "b l m"]


class AvatarDiT(nn.Module):
    """Velocity of latents at per-frame times t, given text, audio and a reference."""

    def __init__(self, config: DiTConfig, motion_stats: MotionStats | None = None) -> None:
        """``motion_stats``: those that motion and styles are normalised by; None: it reads none."""
        super().__init__()
        self.config = config
        self.motion_stats = motion_stats
        self.spread: Spread | None = None  # parallel/sequence.py sets it
        patch_dim = config.latent_channels * config.patch**2
        self.patch_embed = nn.Linear(patch_dim, config.dim)
        self.low_embed = nn.Linear(patch_dim, config.dim) if config.reads_low else None
        self.identity_embed = None
        if config.identity_dim is not None:
            self.identity_embed = nn.Linear(config.identity_dim, config.dim, bias=False)
        self.time_embed = TimeEmbedding(config.freq_dim, config.dim)
        self.guidance_embed = None
        if config.guidance_ranges is not None:
            self.guidance_embed = GuidanceEmbedding(NUM_GUIDANCE, config.freq_dim, config.dim)
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
        """Of joint denoising: of motion at the video's times."""
        self.reset_parameters()

    def reset_parameters(self) -> None:
        """Wan's initialisation; the outputs of the head, audio and motion, style, face vectors and
        what marks a face or the anchor are 0."""
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.xavier_uniform_(module.weight)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
            elif isinstance(module, RMSNorm | LayerNorm):
                module.reset_parameters()
            elif isinstance(module, Block | Head):
                nn.init.normal_(module.modulation, std=self.config.dim**-0.5)
        for linear in (*_linears(self.time_embed), *_linears(self.text_embed)):
            nn.init.normal_(linear.weight, std=0.02)
        nn.init.normal_(self.audio_position, std=0.02)
        if self.guidance_embed is not None:
            self.guidance_embed.reset_parameters()
        if self.identity_embed is not None:
            nn.init.zeros_(self.identity_embed.weight)
        nn.init.zeros_(self.face_embed)
        nn.init.zeros_(self.anchor_embed)
        nn.init.zeros_(self.head.out.weight)
        nn.init.zeros_(self.motion_head.out.weight)
        nn.init.zeros_(self.style_embed)
        for block in self.modules():
            if isinstance(block, Block) and block.audio_attention and block.motion_inject:
                nn.init.zeros_(block.audio_attention.out.weight)
                nn.init.zeros_(block.motion_inject.weight)

    @property
    def has_audio(self) -> bool:
        """Whether sound reaches the video: what audio cross-attention gives is zero until a stage
        trains it. False on the meta device."""
        found = (p for n, p in self.named_parameters() if ".audio_attention.out." in n)
        return any(bool(p.any()) for p in found if not p.is_meta)

    def forward(
        self,
        x_t: Latents,
        t: Float[Tensor, "b l"],
        cond: Cond,
        *,
        past: KeyValueCache | None = None,
        start: int = 0,
        origin: tuple[int, int] = (0, 0),
        pattern: Pattern | None = None,
        as_seen: Callable[[int, KeyValue], KeyValue] | None = None,
        return_keys: bool = False,
        contexts: list[ContextKeys] | None = None,
        joint: bool = False,
    ) -> Latents | tuple[Latents, KeyValueCache]:
        """v = ε - x_0 at every latent frame; with ``return_keys`` also their keys and values; with
        ``joint`` motion is noisy as the video, and its velocity comes as the second result.

        t is in [0, 1]; clean frames (image, prefix) carry t = 0. Motion in ``cond`` is clean: the
        motion network (models/motion_net.py) made it before.

        ``past`` are earlier frames, which all new ones attend to: the encoded reference
        (`encode_reference`; ``cond.reference`` itself is not read here, and to leave its keys out
        is an error) and what a causal model has made already. ``start`` is the temporal position
        of the first new frame, on the axis of the positions in ``past``, and ``origin`` the place,
        in tokens down and across, of a part of a picture in the whole. ``pattern`` says which new
        frames see which; None: what the config says (``temporal_window``, ``causal_block``), else
        all see all. Behind the stream of a cache the frames of a causal network are one block. With
        ``return_keys`` the keys and values of the new frames come as a second result, to be
        appended to a cache. ``as_seen(layer, keys)`` says how later blocks see those of a causal
        network, in this pass and in the cache (None: as they are). Motion tokens see the past's
        video alone.

        ``contexts`` is a list that passes of the same text and audio share, where nothing takes a
        gradient: the first leaves there the keys and values of both, which later ones read.
        ValueError for shapes that do not fit.
        """
        self._check(x_t, t, cond)
        if past is None and cond.reference is not None and cond.reference.latents.shape[1] > 0:
            raise ValueError("cond has a reference: give its keys (encode_reference) as past")
        num_samples, num_frames, _, height, width = x_t.shape
        grid = (height // self.config.patch, width // self.config.patch)
        rotary = rotary_grid(num_frames, *grid, self.config.head_dim, x_t.device, start, origin)
        motion_rotary = rotary_grid(num_frames, 1, 1, self.config.head_dim, x_t.device, start)
        x = self._embed_patches(x_t)
        if self.low_embed is not None and cond.low is not None:
            x = x + self.low_embed(self._patches(cond.low)).to(self._residual(cond.low))
        shares = None
        if self.spread is not None:
            kept = return_keys or as_seen is not None
            shares = self.spread.of(num_frames, x.shape[2], keep_keys=kept)
            x = shares.own(x)
        known = list(contexts or ())
        text = audio = None
        if not known:
            text, audio = self._embed_text(cond.text), self._embed_audio(cond.audio)
        audio_scale = self._audio_scale(cond)
        past_rotary = seen = None
        if past is not None:
            past = past.expand(num_samples)
            past_rotary, seen = past.rotary(), past.seen_frames(cond.reference_keep)
        key_mask = motion_key_mask = None
        if past is not None and seen is not None:  # the new tokens' own keys lie in front
            own = torch.ones(num_samples, 1, dtype=torch.bool)
            keys = (KeyPart(own, rotary.shape[0]), KeyPart(seen, past.grid[0] * past.grid[1]))
            key_mask = build_mask(*keys, device=x_t.device)
            motion_key_mask = build_mask(KeyPart(own, num_frames), *keys, device=x_t.device)
        style = self._embed_style(kept_moments(self._moments_in(cond), cond.reference_keep))
        if self.guidance_embed is not None and cond.guidance is not None:
            guidance = self.guidance_embed(cond.guidance)
            style = guidance if style is None else style + guidance
        embedding, modulation = self.time_embed(t, style)
        own = None
        if joint:
            assert cond.motion is not None, "joint denoising has motion"
            moments = kept_moments(self._moments_in(cond), cond.reference_keep)
            told = None if moments is None else build_style(moments, self._known_stats())
            own = in_own_units(cond.motion, t, told)
        shown = cond.motion if own is None else own.motion_t
        motion, motion_modulation = self._embed_motion(shown), modulation
        if motion is not None and not joint and not self.config.reads_low:
            _, motion_modulation = self.time_embed(torch.zeros_like(t), style)
        if pattern is None:
            pattern = self._own_pattern(num_frames, past)
        layers: list[KeyValue] = []
        for i, block in enumerate(self.blocks):
            assert isinstance(block, Block)
            seen_as = None if as_seen is None else partial(as_seen, i)
            if contexts is not None and len(known) == i:
                assert text is not None
                known.append(block.context_keys(text, audio))
            words, sound = (text, audio) if contexts is None else known[i]
            x, motion, keys = run_block(
                block, x, motion, modulation, rotary, motion_rotary,
                motion_modulation=motion_modulation,
                text=words, audio=sound, audio_scale=audio_scale,
                extra=None if past is None else past.read(i, past_rotary),
                key_mask=key_mask, motion_key_mask=motion_key_mask, pattern=pattern,
                as_seen=seen_as, cores=ALONE if shares is None else shares.cores,
            )  # fmt: skip
            if return_keys:  # else those of all blocks would stay until the last one
                layers.append(keys if seen_as is None else seen_as(keys))
        if contexts is not None:
            contexts[:] = known
        patches = self.head(x, embedding)
        v = self._to_latents(patches if shares is None else shares.whole(patches), *grid)
        if own is not None:
            assert motion is not None
            return v, own.velocity(self.motion_head(motion, embedding).squeeze(2))
        if not return_keys:
            return v
        position = (torch.arange(num_frames, device=x.device) + start).expand(num_samples, -1)
        return v, KeyValueCache(tuple(layers), position, None, grid, num_stream=num_frames)

    def _own_pattern(self, num_frames: int, past: KeyValueCache | None) -> Pattern | None:
        config = self.config
        if config.temporal_window is not None:
            return Pattern.local(config.temporal_window)
        if config.causal_block is None:
            return None
        if past is None or past.num_stream == 0:
            return Pattern.causal(config.causal_block, config.causal_window, first=CAUSAL_FIRST)
        if num_frames > config.causal_block:
            raise ValueError(
                f"behind a stream a causal network makes one block of {config.causal_block} latent "
                f"frames, got {num_frames}"
            )
        return None

    def reference_moments(self, reference: Reference | None) -> Float[Tensor, "b k"] | None:
        """Moments of the motion of a reference; None where there is none."""
        return None if reference is None else reference_moments(reference, self.motion_stats)

    def encode_reference(self, reference: Reference) -> KeyValueCache | None:
        """K and V of the reference stream in every layer; None for one of no frames and no faces.

        The stream runs at t = 0, without text (so one cache serves every prompt and guidance
        branch), with the reference's own audio and motion. Faces have neither and see nothing
        but themselves. A reference of frames of which none is valid is encoded, too, and masked.
        """
        check_reference(reference, self.config)
        packed = pack_reference(reference, gap=self.config.reference_gap)
        return None if packed is None else self.encode_packed(packed)

    def encode_packed(self, reference: PackedReference) -> KeyValueCache:
        """`encode_reference` behind its packing: of tensors alone, for a compiler."""
        parts = []
        if reference.clip is not None:
            parts.append(self._encode_frames(reference.clip))
        if reference.faces is not None:
            parts.append(self._encode_frames(reference.faces, mark=self.face_embed))
        return parts[0] if len(parts) == 1 else parts[0].append(parts[1])

    def _encode_frames(
        self, frames: PackedFrames, mark: Float[Tensor, " d"] | None = None
    ) -> KeyValueCache:
        """``mark`` is added to every token."""
        height, width = frames.latents.shape[-2:]
        grid = (height // self.config.patch, width // self.config.patch)
        x = self._embed_patches(frames.latents)
        x = x if mark is None else x + mark.to(x.dtype)
        if frames.is_anchor is not None:
            x = x + frames.is_anchor[..., None, None] * self.anchor_embed.to(x.dtype)
        if self.identity_embed is not None and frames.identity is not None:
            whose = frames.identity.to(compute_dtype(frames.identity, self.identity_embed.weight))
            x = x + self.identity_embed(whose).to(x.dtype)[:, :, None]
        _, modulation = self.time_embed(x.new_zeros(1, 1, dtype=torch.float32))
        audio, motion = self._embed_audio(frames.audio), self._embed_motion(frames.motion)
        rotary = rotary_table(frames.place, *grid, self.config.head_dim)
        motion_rotary = rotary_table(frames.place, 1, 1, self.config.head_dim)
        key_mask = motion_key_mask = None
        if frames.mask is not None:
            tokens = KeyPart(frames.mask, x.shape[2])
            key_mask = build_mask(tokens, device=x.device)
            motion_key_mask = build_mask(KeyPart(frames.mask, 1), tokens, device=x.device)
        layers = []
        for block in self.blocks:
            assert isinstance(block, Block)
            x, motion, (key, value) = run_block(
                block, x, motion, modulation, rotary, motion_rotary,
                audio=audio, key_mask=key_mask, motion_key_mask=motion_key_mask,
            )  # fmt: skip
            key, value = _gather(key, frames), _gather(value, frames)
            if self.spread is not None:
                key, value = self.spread.own_heads(key), self.spread.own_heads(value)
            layers.append((key, value))
        return KeyValueCache(tuple(layers), frames.position, frames.key_mask, grid)

    def _embed_patches(self, latents: Latents) -> Tokens:
        return self.patch_embed(self._patches(latents)).to(self._residual(latents))

    def _residual(self, x: Tensor) -> torch.dtype:
        return residual_dtype(x, self.patch_embed.weight)

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

    def _audio_scale(self, cond: Cond) -> Float[Tensor, "b 1 1 1"] | None:
        """0 for the samples whose audio is not kept."""
        if cond.audio is None or cond.audio_keep is None:
            return None
        return cond.audio_keep[:, None, None, None].to(self._residual(cond.audio))

    def _embed_style(self, moments: Float[Tensor, "b k"] | None) -> Float[Tensor, "b d"] | None:
        if moments is None:
            return None
        return style_code(moments, self._known_stats()).to(self.style_embed) @ self.style_embed

    def _moments_in(self, cond: Cond) -> Float[Tensor, "b k"] | None:
        return self.reference_moments(cond.reference) if cond.moments is None else cond.moments

    def _known_stats(self) -> MotionStats:
        if self.motion_stats is None:
            raise ValueError("this DiT was built without motion statistics, so it reads no motion")
        return self.motion_stats

    def _embed_motion(self, motion: Motion | None) -> Float[Tensor, "b l 1 d"] | None:
        if motion is None:
            return None
        y = self.motion_embed(motion.to(compute_dtype(motion, self.motion_embed.weight)))
        return y.to(self._residual(motion)).unsqueeze(2)

    def _check(self, x_t: Latents, t: Float[Tensor, "b l"], cond: Cond) -> None:
        num_samples, num_frames = x_t.shape[:2]
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
        if (cond.guidance is not None) != self.config.has_guidance_inside:
            here = "without" if cond.guidance is None else "with"
            kind = "have guidance inside" if self.config.has_guidance_inside else "read no guidance"
            raise ValueError(f"these weights {kind}, got conditions {here} guidance weights")
        if cond.guidance is not None:
            expect("cond.guidance", cond.guidance.shape, (num_samples, NUM_GUIDANCE))
        if cond.low is not None:
            expect("cond.low", cond.low.shape, x_t.shape)
        if cond.motion is not None:
            shape = (num_samples, num_frames, self.config.motion_dim)
            expect("cond.motion", cond.motion.shape, shape)


def _gather(
    x: Float[Tensor, "s wn heads width"], frames: PackedFrames
) -> Float[Tensor, "b kn heads width"]:
    """Tokens of segments → the tokens of each sample's valid frames, in order."""
    of_frames = x.unflatten(1, (frames.place.shape[1], -1)).flatten(0, 1)
    return of_frames[frames.keys].flatten(1, 2)


def _linears(module: nn.Module) -> list[nn.Linear]:
    return [child for child in module.modules() if isinstance(child, nn.Linear)]
