"""What a stage starts from and what it is trained on, as numbers of a recipe."""

from dataclasses import dataclass, field, fields

from avatar_v.base import checks
from avatar_v.weights.card import ASSETS

MAX_GUIDANCE = 100.0
MAX_SHIFT = 1000.0
"""The largest shift of training and sampling times; published models have 1 to 17."""


NULL = "None"
"""The value that jsonargparse gives ``null`` on the command line, in a field of a dataclass."""


@dataclass(frozen=True)
class Models:
    """What a stage trains: fresh models of a preset, or the weights of a pipeline folder."""

    preset: str  # a name of weights/presets.py
    init_from: str | None = None
    """Pipeline folder to start from, e.g. runs/1_t2v/weights, or the name of weights that ship."""
    dit: str | None = None  # a DiT folder alone, e.g. of `avatar-v weights import-wan`
    vae: str | None = None  # folders of trained encoders; with init_from: a VAE tuned from its own
    text: str | None = None
    audio: str | None = None
    stored_text: bool = False
    """Take the clips' captions as `avatar-v shards encode --text` encoded them, and leave the text
    encoder, which is frozen then, out of training."""
    audio_look_ahead: int | None = None
    """Latents behind its own whose sound a latent hears (models/audio.py). With it wav2vec 2.0 and
    the like can follow a live sound. None: as init_from has it, else the whole recording for those
    and 0 for the embedded encoder."""
    audio_window: int | None = None
    """Latents of sound, the last its own, that those encoders then hear at once; None: 12."""
    identity: str | None = None
    """Recogniser whose vector of the reference's face the network reads (models/identity.py): the
    name of a critic that ships, a folder of ours or ArcFace's file. None: that of init_from."""
    motion_stats: str | None = None
    """File of motion statistics, a folder of weights or the name of some that have it; None: that
    of init_from or else computed from the training clips, where the stage knows motion."""
    checkpoint_activations: bool = False  # less memory, a third more computation
    compile: bool = False  # each block by torch.compile: a minute before the first step, for a GPU

    def __post_init__(self) -> None:
        for each in fields(self):
            if getattr(self, each.name) == NULL:
                object.__setattr__(self, each.name, None)
        if self.audio_look_ahead is not None:
            checks.count("models.audio_look_ahead", self.audio_look_ahead, least=0, most=16)
        if self.audio_window is not None:
            checks.count("models.audio_window", self.audio_window, most=1000)
            if self.audio_look_ahead is None:
                raise ValueError("models.audio_window goes with models.audio_look_ahead")
        if self.identity is not None:
            from avatar_v.faces.objectives import check_objective  # torch, which help does without

            check_objective("identity", self.identity)
        if self.stored_text and not (self.init_from or self.text):
            raise ValueError("models.stored_text needs init_from or text: a trained encoder")
        folders = {"dit": self.dit, "text": self.text, "audio": self.audio}
        given = [name for name, folder in folders.items() if folder is not None]
        if self.init_from is not None and given:
            raise ValueError(f"init_from {self.init_from} brings its own networks: drop {given}")
        if self.init_from is not None and (ASSETS / self.init_from / "card.json").is_file():
            object.__setattr__(self, "init_from", str(ASSETS / self.init_from))  # of a name


@dataclass(frozen=True)
class Objective:
    """Numbers of rectified-flow training on windows of clips (training/windows.py)."""

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
        checks.by_step(checks.count, "window_latents", self.window_latents)
        checks.by_step(_resolution, "resolution", self.resolution)
        checks.positive("shift", self.shift, most=MAX_SHIFT)
        shares = ("first_share", "image_share", "suffix_share", "text_dropout", "audio_dropout")
        checks.each(checks.share, self, shares)


def _resolution(key: str, value: object) -> None:
    checks.positive(key, value, most=1)
