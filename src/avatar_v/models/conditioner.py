"""Batches and media to clean latents and `Cond`: the same code trains and generates."""

import dataclasses
from collections.abc import Sequence

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from avatar_v.models.audio import (
    NUM_WINDOW_FRAMES,
    HiddenStateAudioEncoder,
    LogMelEncoder,
    latent_windows,
)
from avatar_v.models.config import DiTConfig
from avatar_v.models.identity import FaceVectors, Looks, looks_of
from avatar_v.models.motion_net import MotionNet
from avatar_v.models.reference import NUM_STILLS, segments
from avatar_v.models.text import ByteTextEncoder, StoredText, UMT5TextEncoder
from avatar_v.models.vae import VideoVAE
from avatar_v.motion.stats import FILE, MotionStats, how_to_make
from avatar_v.motion.style import motion_moments
from avatar_v.motion.vectors import pack_motion
from avatar_v.types import (
    SAMPLES_PER_FRAME,
    TEMPORAL_FACTOR,
    Batch,
    Cond,
    Reference,
    num_frames,
    num_latents,
)

Latents = Float[Tensor, "b l c lh lw"]
ASKED = "models.audio_look_ahead and audio_window"


class Conditioner(nn.Module):
    """What makes the DiT's conditions: the VAE (frozen), the text and audio encoders, and where
    motion is known its statistics and the motion network."""

    def __init__(
        self,
        vae: VideoVAE,
        text_encoder: ByteTextEncoder | UMT5TextEncoder | StoredText,
        audio_encoder: LogMelEncoder | HiddenStateAudioEncoder,
        motion_stats: MotionStats | None = None,
        motion_net: MotionNet | None = None,
    ) -> None:
        """``motion_stats`` and ``motion_net`` are None in pipelines that know no motion."""
        super().__init__()
        self.motion_stats = motion_stats
        self.motion_net = motion_net
        self.face_vectors: FaceVectors | None = None  # of weights that read whose face it is
        self.vae = vae.requires_grad_(False).eval()
        self.text_encoder = text_encoder
        self.audio_encoder = audio_encoder

    def train(self, mode: bool = True) -> "Conditioner":
        """The VAE stays in evaluation mode: it is frozen."""
        super().train(mode)
        self.vae.eval()
        return self

    def hear(self, look_ahead: int | None, window: int | None, *, is_learned: bool = False) -> None:
        """Let the audio encoder hear so many latents behind a latent's own, in windows of so many;
        None leaves what it has.

        ValueError where the weights have learned (``is_learned``) to hear otherwise. From whole
        recordings they can go over to windows, which are nearly the same.
        """
        if look_ahead is None:
            return
        has = self.hears
        self.audio_encoder.hear(look_ahead, window)
        if is_learned and has[0] is not None and has != self.hears:
            raise ValueError(
                f"the weights were trained to {_hearing(*has)}, and {ASKED} ask them to "
                f"{_hearing(*self.hears)}: leave both out, or set them where weights learn to hear "
                "(recipes/2_a2v.yaml)"
            )

    @property
    def hears(self) -> tuple[int | None, int | None]:
        """The audio encoder's look-ahead (None: the whole recording) and window, where it has."""
        encoder = self.audio_encoder
        return encoder.look_ahead, None if encoder.look_ahead is None else encoder.window

    def check_heard(self, look_ahead: int | None, window: int | None, *, where: str) -> None:
        """ValueError unless weights, by the card of the folder ``where``, heard what this hears."""
        if look_ahead is None and isinstance(self.audio_encoder, LogMelEncoder):
            look_ahead = 0  # cards did not say it once
        if (look_ahead, window) != self.hears:
            raise ValueError(
                f"{where} was trained to {_hearing(look_ahead, window)}, and this recipe would "
                f"{_hearing(*self.hears)}: set {ASKED} as there"
            )

    def at_rate(self, frame_rate_hz: int) -> None:
        """Let the audio encoder know how many video frames a second has. One that was trained
        elsewhere hears seconds (`HiddenStateAudioEncoder.at_rate`); the embedded one learns
        frames."""
        if isinstance(self.audio_encoder, HiddenStateAudioEncoder):
            self.audio_encoder.at_rate(frame_rate_hz)

    def check_fits(self, config: DiTConfig) -> None:
        """ValueError naming every width that differs from what the DiT expects."""
        pairs = {
            "latent channels": (self.vae.latent_channels, config.latent_channels),
            "text width": (self.text_encoder.dim, config.text_dim),
            "audio width": (self.audio_encoder.dim, config.audio_dim),
            "audio tokens per latent": (NUM_WINDOW_FRAMES, config.num_audio_tokens),
        }
        own = 0 if self.face_vectors is None else self.face_vectors.dim
        pairs["numbers of a face vector"] = (own, config.identity_dim or 0)
        if self.motion_net is not None:
            pairs["audio width of motion"] = (
                self.audio_encoder.dim,
                self.motion_net.config.audio_dim,
            )
        wrong = [f"{name}: {a} here, {b} in the DiT" for name, (a, b) in pairs.items() if a != b]
        if wrong:
            raise ValueError(f"the encoders do not fit the DiT; {'; '.join(wrong)}")

    def clean_latents(self, batch: Batch, most: int | None = None) -> Latents:
        """``batch.latents``, or the VAE's encoding of ``batch.video``, of the latter only the first
        ``most`` latents: no later frame changes them. ValueError for neither."""
        if batch.latents is not None:
            return batch.latents.float()
        if batch.video is None:
            raise ValueError(f"batch {batch.key[:3]} has neither video nor latents")
        frames = slice(None if most is None else num_frames(most))
        return self.encode_video(batch.video[:, frames])

    def encode_reference(
        self, batch: Batch, start: int = 0, length: int | None = None
    ) -> Reference:
        """The reference stream of clips, or of the run of ``length`` latents from ``start`` alone.

        A latent frame is valid if all its frames show a face. All faces of the clips come along,
        whatever the run. ValueError for a run that leaves the clips.
        """
        latents = self.clean_latents(batch)
        num_samples, num = latents.shape[:2]
        length = num - start if length is None else length
        if not 0 <= start < start + length <= num:
            raise ValueError(f"{length} latent frames from {start} are not in a reference of {num}")
        run, starts = slice(start, start + length), torch.full((num_samples,), start)
        return Reference(
            latents[:, run],
            latent_validity(batch.valid)[:, run].to(latents.device),
            segments(length, latents.device).expand(num_samples, -1),
            self.encode_audio_windows(batch.audio, starts, length),
            self.pack_motion(batch.motion)[:, run].to(latents.device),
            batch.faces,
            batch.faces_valid,
            habits_known=batch.habits_known,
            moments=self.clip_moments(batch.motion, batch.valid, run, batch.habits_known).to(
                latents.device
            ),
        )

    def encode_stills(self, batch: Batch, places: Int[Tensor, " k"]) -> Reference:
        """Single frames of clips as the reference stream: each is a clip of its own, with the sound
        and the motion of that moment. All faces come along.

        ``places`` rise from 0 to below ``NUM_STILLS``; a clip that has fewer stills gives those
        nearest to these places, none twice. ValueError for clips without stills.
        """
        if batch.stills is None or batch.stills_valid is None or batch.still_frames is None:
            raise ValueError("the clips have no stills: add them with `avatar-v shards stills`")
        chosen = places.to(batch.stills.device) * batch.stills_valid.sum(1, keepdim=True)
        chosen = chosen // NUM_STILLS
        row = torch.arange(len(chosen), device=chosen.device)[:, None]
        valid = batch.stills_valid[row, chosen]
        valid[:, 1:] &= chosen[:, 1:] != chosen[:, :-1]
        frames = batch.still_frames[row, chosen].long()
        latents = batch.stills[row, chosen].float()
        audio = None
        if self.hears_moments:
            step = torch.arange(SAMPLES_PER_FRAME, device=frames.device)
            sound = SAMPLES_PER_FRAME * frames[..., None] + step
            moments = batch.audio.gather(1, sound.flatten(1)).reshape(-1, SAMPLES_PER_FRAME)
            audio = self.encode_audio(moments).unflatten(0, frames.shape).squeeze(2)
        motion = self.pack_motion(batch.motion[row, frames].flatten(0, 1)[:, None])
        motion = motion.unflatten(0, frames.shape).squeeze(2).to(latents.device)
        return Reference(
            latents,
            valid,
            torch.arange(len(places), device=latents.device).expand(len(row), -1),
            audio,
            motion,
            batch.faces,
            batch.faces_valid,
            habits_known=batch.habits_known,
            moments=motion_moments(motion, valid, self.known_stats, batch.habits_known),
        )

    @torch.no_grad()
    def with_identity(self, reference: Reference, shown: Batch | Looks) -> Reference:
        """``reference`` with the face vectors of the clips or pictures ``shown``, where the weights
        read some. Errors as `identity.looks_of` and `FaceVectors.read`."""
        if self.face_vectors is None:
            return reference
        looks = looks_of(shown, self.encode_image) if isinstance(shown, Batch) else shown
        pictures = self.vae.decode(looks.latents.flatten(0, 1)[:, None]).squeeze(1)
        pictures = pictures.unflatten(0, looks.seen.shape)
        vectors = self.face_vectors.read(pictures, looks.seen, looks.faces)
        identity = vectors.to(reference.latents)[:, None]
        num = reference.latents.shape[1]
        return dataclasses.replace(reference, identity=identity.expand(-1, num, -1))

    @property
    def hears_moments(self) -> bool:
        """Whether a frame's sound alone means something: wav2vec 2.0 and the like need sound around
        a frame, and with a look-ahead a frame's feature is of later sound, so frames that stand for
        a clip are silent to them."""
        encoder = self.audio_encoder
        return isinstance(encoder, LogMelEncoder) and encoder.look_ahead == 0

    def encode_clip(
        self,
        video: Float[Tensor, "f 3 h w"],
        valid: Bool[Tensor, " f"],
        audio: Float[Tensor, " s"] | None,
        motion: Float[Tensor, "f m"] | None,
        faces: Float[Tensor, "k 3 h w"] | None = None,
        habits_known: Bool[Tensor, "1 m"] | None = None,
    ) -> Reference:
        """The reference stream of one clip that may lack sound, motion or close-ups of the face;
        f = 4k + 1 frames and the close-ups in [-1, 1], 640 f samples at -23 LUFS.
        ``habits_known``: components in which the motion tells habits (None: all)."""
        latents = self.encode_video(video[None])
        seen, packed, moments = latent_validity(valid[None]).to(latents.device), None, None
        if motion is not None:
            packed = self.pack_motion(motion[None]).to(latents.device)
            moments = motion_moments(packed, seen, self.known_stats, habits_known)
        return Reference(
            latents,
            seen,
            segments(latents.shape[1], latents.device)[None],
            None if audio is None else self.encode_audio(audio[None].to(latents.device)),
            packed,
            None if faces is None else self.encode_image(faces).movedim(1, 0),
            None if faces is None else latents.new_ones(1, len(faces), dtype=torch.bool),
            habits_known=None if habits_known is None else habits_known.to(latents.device),
            moments=moments,
        )

    @property
    def known_stats(self) -> MotionStats:
        """``motion_stats``; ValueError for a pipeline that has none."""
        if self.motion_stats is None:
            raise ValueError(
                f"this pipeline has no motion statistics ({FILE}), so it can read no motion; "
                f"{how_to_make('FOLDER_OF_THE_WEIGHTS')}"
            )
        return self.motion_stats

    def pack_motion(self, motion: Float[Tensor, "b f m"]) -> Float[Tensor, "b l md"]:
        """Motion of video frames as normalised vectors of latent frames."""
        return pack_motion(motion, self.known_stats)

    def clip_moments(
        self,
        motion: Float[Tensor, "b f m"],
        valid: Bool[Tensor, "b f"],
        run: slice = slice(None),
        known: Bool[Tensor, "#b m"] | None = None,
    ) -> Float[Tensor, "b k"]:
        """The moments of the visible frames of clips (motion/style.py), or of a run of their
        latents."""
        packed, seen = self.pack_motion(motion)[:, run], latent_validity(valid)[:, run]
        return motion_moments(packed, seen, self.known_stats, known)

    def encode_text(self, texts: Sequence[str]) -> Float[Tensor, "b n d"]:
        return self.text_encoder(texts)

    def encode_captions(self, batch: Batch) -> Float[Tensor, "b n d"]:
        """Of the clips; those that lie beside them where the encoder is left out, then a ValueError
        for clips without."""
        if not isinstance(self.text_encoder, StoredText):
            return self.encode_text(batch.text)
        if batch.text_states is None:
            raise ValueError(f"batch {batch.key[:3]} has no encodings of its captions")
        return self.text_encoder.padded(batch.text_states)

    def encode_audio(
        self, waveform: Float[Tensor, "b s"], first: int = 0
    ) -> Float[Tensor, "b l n d"]:
        """Tokens of each latent frame from number ``first`` on; s = 640 f with f = 4k + 1, else
        ValueError."""
        return latent_windows(self.audio_encoder(waveform, first))[:, first:]

    def encode_audio_windows(
        self, waveform: Float[Tensor, "b s"], start: Int[Tensor, " b"], length: int
    ) -> Float[Tensor, "b l n d"]:
        """The tokens of ``length`` latents from each sample's ``start``: those that the whole
        encoding has there, from the stretch of sound they depend on where the encoder is causal."""
        num = num_latents(waveform.shape[1] // SAMPLES_PER_FRAME)
        look_ahead = self.audio_encoder.look_ahead
        if look_ahead is None:
            return window(self.encode_audio(waveform), start, length)
        memory = self.audio_encoder.memory_latents
        # one behind: windows look two frames ahead
        stretch = min(memory + length + 1 + look_ahead, num)
        first = (start - memory).clamp(0, num - stretch)
        sample = torch.arange(SAMPLES_PER_FRAME * num_frames(stretch))
        index = (SAMPLES_PER_FRAME * TEMPORAL_FACTOR * first)[:, None] + sample
        heard = waveform.gather(1, index.to(waveform.device))
        begin = start - first
        asked = int(begin.min())
        return window(self.encode_audio(heard, asked), begin - asked, length)

    @torch.no_grad()
    def encode_video(self, video: Float[Tensor, "b f 3 h w"]) -> Latents:
        """Latents of video in [-1, 1]."""
        return self.vae.encode(video)

    def encode_image(self, image: Float[Tensor, "b 3 h w"]) -> Latents:
        """The one latent frame of an image in [-1, 1]."""
        return self.encode_video(image[:, None])

    def drop(
        self,
        cond: Cond,
        *,
        text: float = 0.0,
        audio: float = 0.0,
        reference: float = 0.0,
        generator: torch.Generator,
    ) -> Cond:
        """Condition dropout: each sample loses each condition with the probability given.

        Dropped text becomes the encoding of ""; dropped audio and reference are marked in
        ``audio_keep`` and ``reference_keep``. Three numbers are drawn per sample whatever the
        probabilities, so one of them does not shift the other draws. 0 keeps all, 1 drops all.
        """
        num_samples, device = cond.text.shape[0], cond.text.device
        uniform = torch.rand(3, num_samples, generator=generator, device=generator.device)
        keep_reference = uniform[2].cpu() >= reference  # where it stays: see Cond
        keep_text, keep_audio = (
            (row >= p).to(device) for row, p in zip(uniform[:2], (text, audio), strict=True)
        )
        if text > 0:  # whatever was drawn: sharded, all ranks have to run the encoder
            empty = self.encode_text([""])
            cond = dataclasses.replace(
                cond, text=torch.where(keep_text[:, None, None], cond.text, empty)
            )
        if cond.audio is not None:
            cond = dataclasses.replace(cond, audio_keep=_both(cond.audio_keep, keep_audio))
        if cond.reference is not None and not bool(keep_reference.all()):
            keep = _both(cond.reference_keep, keep_reference)
            cond = dataclasses.replace(cond, reference_keep=keep)
        return cond


def window(
    x: Shaped[Tensor, "b clip *rest"], start: Int[Tensor, " b"], length: int
) -> Shaped[Tensor, "b l *rest"]:
    """``length`` latent frames of each sample from its own ``start``; ValueError past the end."""
    if bool((start < 0).any()) or bool((start + length > x.shape[1]).any()):
        raise ValueError(f"windows of {length} from {start.tolist()} leave a clip of {x.shape[1]}")
    index = start.to(x.device)[:, None] + torch.arange(length, device=x.device)
    return x[torch.arange(x.shape[0], device=x.device)[:, None], index]


def latent_validity(valid: Bool[Tensor, "b f"]) -> Bool[Tensor, "b l"]:
    """Validity of latent frames: that of all the video frames each one holds."""
    num = num_latents(valid.shape[1])
    later = valid[:, 1:].unflatten(1, (num - 1, TEMPORAL_FACTOR)).all(-1)
    return torch.cat([valid[:, :1], later], dim=1)


def _hearing(look_ahead: int | None, window: int | None) -> str:
    if look_ahead is None:
        return "hear whole recordings"
    of = "" if window is None else f" in windows of {window}"
    return f"hear {look_ahead} latents ahead{of}"


def _both(old: Tensor | None, new: Tensor) -> Tensor:
    return new if old is None else old & new
