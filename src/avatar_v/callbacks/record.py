"""What a run leaves behind: the loss of every step while it runs, the weights when it ends."""

import csv
import shutil
from pathlib import Path
from typing import Any, Literal

import lightning as L
import numpy as np
import torch
from torch import Tensor

from avatar_v.base import checks
from avatar_v.base.command_line import commit_of
from avatar_v.base.paths import disk_named, whole_file
from avatar_v.base.video_format import Framing, VideoFormat
from avatar_v.callbacks.ema import averaged
from avatar_v.models.base import hash_folder, part_folder
from avatar_v.models.lora import active_factors
from avatar_v.parallel.apply import whole_state
from avatar_v.sampling.chunks import OVERLAP
from avatar_v.shards.datamodule import ShardData
from avatar_v.training.engine import Engine, steps_made, subject_of, trains_clips
from avatar_v.training.finite import require_finite_weights
from avatar_v.training.settings import MAX_GUIDANCE
from avatar_v.training.subject import token_side
from avatar_v.training.windows import to_tokens, value_at
from avatar_v.weights.adapter_files import save_adapter
from avatar_v.weights.card import AdapterCard, Capabilities, Card
from avatar_v.weights.weights import save_pipeline


class LossCurve(L.Callback):
    """``default_root_dir/loss.csv`` with one row per step (of a stage: of its student): step, loss;
    at the end ``loss.png``, a plot of it.

    Losses are those of rank 0 and of a step's last batch. A resumed run drops the rows behind its
    checkpoint and goes on, so the file reads as if nothing had happened.
    """

    def __init__(self, flush_every_num_steps: int = 50) -> None:
        checks.count("flush_every_num_steps", flush_every_num_steps)
        self.flush_every_num_steps = flush_every_num_steps
        self._rows: list[tuple[int, Tensor]] = []
        self._last_step = 0

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._last_step = steps_made(trainer, pl_module)
        self._path = Path(trainer.default_root_dir) / "loss.csv"
        if not trainer.is_global_zero:
            return
        self._path.parent.mkdir(parents=True, exist_ok=True)
        kept = [row for row in read_losses(self._path) if row[0] <= self._last_step]
        with (
            whole_file(self._path) as partial,
            open(partial, "w", newline="", encoding="utf-8") as file,
        ):
            writer = csv.writer(file)
            writer.writerow(("step", "loss"))
            writer.writerows((step, f"{loss:.9g}") for step, loss in kept)

    def on_train_batch_end(self, trainer, pl_module, outputs: Any, batch, batch_idx) -> None:
        step = steps_made(trainer, pl_module)
        if step == self._last_step:
            return
        self._last_step = step
        self._rows.append((step, outputs["loss"].detach()))
        if len(self._rows) >= self.flush_every_num_steps:
            self._flush(trainer)

    def on_save_checkpoint(self, trainer, pl_module, checkpoint) -> None:
        self._flush(trainer)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._flush(trainer)
        if trainer.is_global_zero:
            plot_losses(read_losses(self._path), self._path.with_suffix(".png"))

    def on_exception(self, trainer, pl_module, exception) -> None:
        self._flush(trainer)

    def _flush(self, trainer: L.Trainer) -> None:
        rows, self._rows = self._rows, []
        if not rows or not trainer.is_global_zero:
            return
        losses = torch.stack([loss.float() for _, loss in rows]).tolist()
        with (
            disk_named(self._path),
            open(self._path, "a", newline="", encoding="utf-8") as file,
        ):
            steps = (step for step, _ in rows)
            csv.writer(file).writerows(
                (s, f"{loss:.9g}") for s, loss in zip(steps, losses, strict=True)
            )


class Export(L.Callback):
    """At the end of training writes ``default_root_dir/weights``: the averaged weights as a
    pipeline folder, with the loss curve and the complete recipe beside them; and of a run with LoRA
    what it learned alone, ``default_root_dir/adapter``."""

    def __init__(
        self,
        recipe: str,
        dtype: Literal["float32", "float16", "bfloat16"] = "float32",
        guidance_audio: float = 2.0,
        guidance_motion: float = 1.0,
        stills_from_prompt: int = 0,
        people: str = "",
        framing: Framing = "face",
    ) -> None:
        """``recipe``: the files of the recipe, for the card of the weights; ``dtype``: of the
        stored weights; ``guidance_audio``: what generation takes where none is asked for;
        ``guidance_motion``: of the style, in motion; ``stills_from_prompt``: what
        it reads where no first frame is given; ``people``: whom it is trained on; ``framing``:
        what its pictures of filmed people show. See Card and
        Capabilities in weights/card.py."""
        checks.number("guidance_audio", guidance_audio, least=0, most=MAX_GUIDANCE)
        checks.number("guidance_motion", guidance_motion, least=0, most=MAX_GUIDANCE)
        checks.count("stills_from_prompt", stills_from_prompt, least=0)
        self.recipe = recipe
        self._base: tuple[str, str] | None = None
        self.guidance_audio, self.guidance_motion = guidance_audio, guidance_motion
        self.stills_from_prompt = stills_from_prompt
        self.people = people
        self.framing: Framing = framing
        self.dtype = {"float32": torch.float32, "float16": torch.float16}.get(dtype, torch.bfloat16)

    def on_fit_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """Note which weights an adapter is trained on, before anything can replace them."""
        if trainer.is_global_zero and trains_clips(pl_module):
            self._base = _lora_base(pl_module)

    def on_train_end(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self.write(trainer, pl_module)

    def write(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        """The weights as they are now, in place of what was written before."""
        if not trains_clips(pl_module):
            raise ValueError(f"Export serves the DiT stages, got {type(pl_module).__name__}")
        folder = Path(trainer.default_root_dir) / "weights"
        preset = subject_of(pl_module).models.preset
        sizes = {"video": self._video(trainer, pl_module), "window_latents": _chunk(pl_module)}
        look_ahead, window = pl_module.conditioner.hears
        heard = {"audio_look_ahead": look_ahead, "audio_window": window}
        faces = pl_module.conditioner.face_vectors
        read = {} if faces is None else {"identity": faces.name, "identity_hash": faces.hash()}
        entries: dict[str, Any] = sizes | pl_module.card_entries() | heard | read
        can = Capabilities(
            people=self.people,
            stills_from_prompt=self.stills_from_prompt,
            **entries,
        )
        card = Card(
            preset,
            self.recipe,
            commit_of(Path.cwd(), digits=40),
            "loss.csv",
            can,
            guidance_audio=self.guidance_audio,
            guidance_motion=self.guidance_motion,
        )
        with averaged(trainer, pl_module), whole_state(pl_module):
            require_finite_weights(trainer, pl_module, f"export to {folder}", self.dtype)
            if not trainer.is_global_zero:
                return
            dit, conditioner = pl_module.dit, pl_module.conditioner
            save_pipeline(folder, dit, conditioner, card, dtype=self.dtype, overwrite=True)
            _save_adapter(folder.with_name("adapter"), pl_module, card, self._base)
        for name in ("loss.csv", "recipe.yaml"):
            source = Path(trainer.default_root_dir) / name
            if source.is_file():
                with whole_file(folder / name) as partial:
                    partial.write_bytes(source.read_bytes())

    def _video(self, trainer: L.Trainer, stage: Engine) -> VideoFormat | None:
        """Of the largest pictures of the last step; None where the stage has not learned from
        pictures of shards."""
        data = trainer.datamodule  # pyright: ignore[reportAttributeAccessIssue]
        size = data.picture_size if isinstance(data, ShardData) else None
        if size is None:
            return None
        share = value_at(subject_of(stage).objective.resolution, max(stage.step - 1, 0))
        height, width = (to_tokens(share * side, token_side(stage)) for side in size)
        return VideoFormat(width, height, data.frame_rate_hz, self.framing)


def _part_of_factors(stage: Engine) -> Literal["dit", "motion"] | None:
    """Which network LoRA trains in ``stage``."""
    if active_factors(stage.dit) is not None:
        return "dit"
    net = stage.conditioner.motion_net
    return None if net is None or active_factors(net) is None else "motion"


def _lora_base(stage: Engine) -> tuple[str, str] | None:
    """Folder and hash of the weights that LoRA is trained on in ``stage``; "" for fresh ones."""
    part, models = _part_of_factors(stage), subject_of(stage).models
    if part is None:
        return None
    if models.init_from is not None:
        return models.init_from, hash_folder(part_folder(Path(models.init_from) / part))
    return ("", "") if models.dit is None else (models.dit, hash_folder(models.dit))


def _save_adapter(folder: Path, stage: Engine, card: Card, base: tuple[str, str] | None) -> None:
    """The LoRA factors of ``stage``, if it trains with them."""
    part = _part_of_factors(stage)
    if part is None or base is None:
        shutil.rmtree(folder, ignore_errors=True)  # of an earlier run with LoRA
        return
    network = stage.dit if part == "dit" else stage.conditioner.motion_net
    assert network is not None
    about = AdapterCard(part, card, *base, stage.conditioner.vae.hash())
    save_adapter(folder, network, about, stage.conditioner.motion_stats)


def _chunk(stage: Engine) -> int | None:
    """Latents of the last windows, where generation can make chunks of that length."""
    length = value_at(subject_of(stage).objective.window_latents, max(stage.step - 1, 0))
    return length if length > OVERLAP else None


def plot_losses(losses: list[tuple[int, float]], path: Path) -> None:
    """A picture of a loss curve, with a running mean over a fiftieth of it; none of no loss."""
    if not losses:
        return
    from matplotlib.figure import Figure  # slow to import, and not needed before a run ends

    steps, values = (np.array(column) for column in zip(*losses, strict=True))
    width = max(len(values) // 50, 1)
    mean = np.convolve(values, np.ones(width) / width, mode="valid")
    figure = Figure(figsize=(8, 4), layout="constrained")
    axes = figure.subplots()
    axes.plot(steps, values, linewidth=0.5, alpha=0.4, label="each step")
    axes.plot(steps[width - 1 :], mean, label=f"mean of {width}")
    axes.set_xlabel("optimiser step")
    axes.set_ylabel("training loss")
    axes.legend()
    axes.grid(alpha=0.3)
    with whole_file(path) as partial:
        figure.savefig(partial, dpi=120, format="png")


def read_losses(path: Path) -> list[tuple[int, float]]:
    """(step, loss) rows of a loss curve; none if the file does not exist."""
    if not path.is_file():
        return []
    with open(path, newline="", encoding="utf-8") as file:
        return [(int(row["step"]), float(row["loss"])) for row in csv.DictReader(file)]
