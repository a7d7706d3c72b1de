"""What a stage starts from and what it is trained on, as numbers of a recipe."""

from dataclasses import dataclass, field


@dataclass(frozen=True)
class Models:
    """What a stage trains: fresh models of a preset, or the weights of a pipeline folder."""

    preset: str  # a name of models/presets.py
    init_from: str | None = None  # pipeline folder to start from, e.g. runs/1_t2v/weights
    dit: str | None = None  # a DiT folder alone, e.g. of `avatar-v weights import-wan`
    vae: str | None = None  # folders of trained encoders; with init_from: a VAE tuned from its own
    text: str | None = None
    audio: str | None = None
    checkpoint_activations: bool = False  # less memory, a third more computation

    def __post_init__(self) -> None:
        folders = {"dit": self.dit, "text": self.text, "audio": self.audio}
        given = [name for name, folder in folders.items() if folder is not None]
        if self.init_from is not None and given:
            raise ValueError(f"init_from {self.init_from} brings its own networks: drop {given}")


@dataclass(frozen=True)
class Objective:
    """Numbers of rectified-flow training on windows of clips (stages/windows.py)."""

    window_latents: dict[int, int]  # {step: latents}, the window from that step on
    resolution: dict[int, float] = field(default_factory=lambda: {0: 1.0})
    """{step: factor} on the size of the videos from that step on; 1 is that of their bucket."""
    shift: float = 1.0  # of the logit-normal times
    first_share: float = 0.5  # windows that start at the beginning of their clip
    image_share: float = 0.5  # of those: the first latent is given (I2V), else nothing (T2V)
    suffix_share: float = 0.0  # windows whose last latent is given: N/I chunks
    text_dropout: float = 0.1  # share of samples trained with the empty text
    audio_dropout: float = 0.0  # and as if they had no audio

    def __post_init__(self) -> None:
        for name in ("window_latents", "resolution"):
            if 0 not in getattr(self, name):
                raise ValueError(f"{name} needs an entry for step 0, got {getattr(self, name)}")
        shares = ("first_share", "image_share", "suffix_share", "text_dropout", "audio_dropout")
        for name in shares:
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} is in [0, 1], got {getattr(self, name)}")
