"""The perceptual losses in a training step: time and peak memory of stage 3 with and without them.

Each setting runs in a process of its own (peak memory is a process's), on random clips of the small
preset's size. Gradients of the predicted frames run through the VAE decoder and each critic.
"""

import argparse
import dataclasses
import statistics
import time

import torch

from avatar_v.base.device import emulates_bf16
from avatar_v.parallel.mesh import step_generator
from avatar_v.request.record import peak_rss_mib
from avatar_v.stages.continuation import Continuation
from avatar_v.stages.optim import Optim
from avatar_v.stages.perceptual import TERMS, PerceptualTerms
from avatar_v.stages.personality import Personality
from avatar_v.stages.settings import Models, Objective
from avatar_v.stages.sft import SFT
from avatar_v.stages.trainable import Trainable
from avatar_v.types import num_frames
from avatar_v.weights.random import make_batch
from avatar_v_eval.intervals import median_of_repeats
from avatar_v_eval.processes import in_a_process
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import Number
from avatar_v_eval.turns import turns_note

CPU = torch.device("cpu")
BATCH, LATENTS, WINDOW, REFERENCE = 12, 41, 13, 21
SETTINGS = {"none": (), **{term: (term,) for term in TERMS}, "all": TERMS}


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--steps", type=int, default=6, help="timed, after two of warm-up")
    add("--repeats", type=int, default=2, help="processes per setting")


def measure(options: argparse.Namespace) -> Findings:
    found: dict[str, list[dict[str, float]]] = {setting: [] for setting in SETTINGS}
    for _ in range(options.repeats):
        for setting in SETTINGS:
            found[setting].append(in_a_process(measured, setting, options.steps))
    processes = f"processes of {options.steps} steps"
    precision = "fp32" if emulates_bf16(CPU) else "bf16 autocast"
    return Findings(
        "The cost of the perceptual losses in training",
        numbers(found),
        recipe="recipes/3_sft.yaml recipes/small.yaml (its sizes, random clips)",
        notes=[
            f"batch {BATCH}, windows of {WINDOW} latents, references of {REFERENCE}, {precision}",
            f"3 samples of 2 latents; {turns_note(options.repeats, processes)}",
        ],
    )


def numbers(found: dict[str, list[dict[str, float]]]) -> dict[str, Number]:
    """Time and memory of each setting; those of the settings with a term as additions."""
    rows = {}
    for setting, runs in found.items():
        word = {"none": "no critic", "all": "all critics"}.get(setting, f"critic: {setting}")
        for key, unit in (("step_s", "s"), ("peak_mib", "MiB")):
            plain = [run[key] for run in found["none"]]
            values = [run[key] for run in runs]
            if setting != "none":
                values = [v - p for v, p in zip(values, plain, strict=True)]
            label = {"step_s": "one step", "peak_mib": "peak memory"}[key]
            more = "" if setting == "none" else ", in addition"
            rows[f"{setting}_{key}"] = median_of_repeats(values).described(
                f"{label}, {word}{more}", unit=unit
            )
    return rows


def measured(setting: str, num_steps: int) -> dict[str, float]:
    """Median seconds of a forward and backward pass, and the peak memory of this process."""
    on = {term: {0: 0.1} for term in SETTINGS[setting]}
    stage = SFT(
        Models("small", motion_stats="small"),
        Optim(lr=1e-3, num_warmup_steps=1),
        Objective({0: WINDOW}),
        face_boost=1.0,
        mouth_boost=4.0,
        personality=Personality(REFERENCE, REFERENCE, reference_dropout=0.0, motion_dropout=0.0),
        continuation=Continuation(),
        perceptual=dataclasses.replace(PerceptualTerms(max_samples=3), **on),
        trainable=Trainable(),
    )
    stage.configure_model()
    channels = stage.dit.config.latent_channels
    batch = make_batch(BATCH, num_frames(LATENTS), 64, latent_channels=channels, has_reference=True)
    times = []
    for index in range(num_steps + 2):
        begin = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=not emulates_bf16(CPU)):
            generator = step_generator(0, 0, index)
            windows = stage.draw_windows(batch, generator)
            clean, cond = stage.encode(batch, windows, generator)
            loss, _ = stage.loss(clean, cond, windows, batch, generator)
        loss.backward()
        stage.zero_grad()
        times.append(time.perf_counter() - begin)
    return {"step_s": statistics.median(times[2:]), "peak_mib": peak_rss_mib()}
