"""What a stage asks of its data before the first step, without what reads it."""

from abc import ABC, abstractmethod

import lightning as L

from avatar_v.motion.stats import MotionStats


class TrainingData(L.LightningDataModule, ABC):
    """Clips that a stage trains on. Each ``require_…`` is a ValueError where clips do not do."""

    @abstractmethod
    def require_vae(self, vae_hash: str) -> None:
        """Stored latents are of this VAE."""

    @abstractmethod
    def require_length(self, most_latents: int) -> None:
        """Clips have at least so many latents."""

    @abstractmethod
    def require_one_rate(self) -> None:
        """Training and validation clips have one rate of frames."""

    @abstractmethod
    def require_tokens(self, step: int) -> None:
        """Pictures are of whole tokens of ``step`` pixels."""

    @abstractmethod
    def require_captions(self, most_bytes: int) -> None:
        """Captions have at most so many bytes."""

    @abstractmethod
    def require_text(self, text_hash: str) -> None:
        """Clips have encodings of their captions, of this encoder."""

    @abstractmethod
    def require_stills(self) -> None:
        """Clips have single frames that stand for their video."""

    @property
    @abstractmethod
    def frame_rate_hz(self) -> int:
        """Of the training clips."""

    @property
    @abstractmethod
    def most_latents(self) -> int:
        """Latents of the longest clip."""

    @abstractmethod
    def motion_stats(self) -> MotionStats:
        """The statistics of the training clips' motion."""
