"""The preference model on pairs of drawn clips with known faults, judged by simulated raters.

Draws the pairs (edited_pairs.py: true clips that are drawn anew with faults, nothing is sampled),
trains recipes/critic_preference.yaml on those of training persons, and a control on the same with
the winners dealt out at random. Both judge pairs of test persons: against what raters said, and
against what raters want without their errors and their lean to one side.
"""

import argparse
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch
from jaxtyping import Float, Int

from avatar_v.base import checks
from avatar_v.recipe.cli import run_words
from avatar_v.rewards.features import Features
from avatar_v.rewards.preference import PreferenceModel
from avatar_v.rewards.preference_data import JudgedFeatures, read_features
from avatar_v.shards.loader import read_folder
from avatar_v.shards.pairs import WINNERS, Judgment, read_judgment
from avatar_v.types import num_latents
from avatar_v.world.splits import Split, persons
from avatar_v_eval.edited_pairs import PANEL, TERMS, Faults, margins, values_of, write_edited
from avatar_v_eval.intervals import jackknife, pearson, pooled_mean, within_unit
from avatar_v_eval.protocol import Findings
from avatar_v_eval.records import RESULTS_DIR, Number

RECIPE = "recipes/critic_preference.yaml"
TRAIN_FIRST = 400_000
"""The first training person: none that a critic was trained on."""
MAX_FRAMES, MAX_PERSONS = 1501, 100_000
WORDS = {"model": "preference model", "control": "control, winners dealt at random"}


@dataclass(frozen=True)
class Answers:
    """Test pairs as raters judged them, and what is true of them."""

    winner: Int[np.ndarray, " p"]  # in the order of WINNERS
    person: Int[np.ndarray, " p"]
    wanted: Float[np.ndarray, " p"]  # by how much the panel holds the first better, on average
    rater: Float[np.ndarray, " p"]  # the same of the rater who judged
    terms: Float[np.ndarray, "p k"]  # what TERMS say of the first, less the same of the second


def add_options(parser: argparse.ArgumentParser) -> None:
    add = parser.add_argument
    add("--work", type=Path, default=Path("runs/preference"), help="folder for pairs and models")
    add("--train-persons", type=int, default=160, help="6 pairs each")
    add("--validation-persons", type=int, default=32)
    add("--persons", type=int, default=96, help="of the test")
    add("--first", type=int, default=8000, help="the first person of validation and test")
    add("--frames", type=int, default=25, help="of a clip, 4k + 1")
    add("--seed", type=int, default=0)


def measure(options: argparse.Namespace) -> Findings:
    """ValueError, before anything is written, for too few persons or such as are not there, and
    for frames that are not 4k + 1."""
    checks.count("--frames", options.frames, least=5, most=MAX_FRAMES)
    num_latents(options.frames)
    checks.seed("--seed", options.seed)
    checks.count("--first", options.first, least=0)
    sizes: dict[Split, tuple[int, int]] = {
        "train": (options.train_persons, TRAIN_FIRST),
        "validation": (options.validation_persons, options.first),
        "test": (options.persons, options.first),
    }
    for split, (num, first) in sizes.items():
        checks.count(f"persons of {split}", num, least=2, most=MAX_PERSONS)
        persons(split, num, first)
    for split, (num, first) in sizes.items():
        folder = options.work / split
        write_edited(folder, split, num, first=first, num_frames=options.frames, seed=options.seed)
    models = {
        name: trained(options.work, name, shuffled=name == "control", seed=options.seed)
        for name in WORDS
    }
    clips = read_folder(options.work / "test")
    features = models["model"].features()
    pairs = read_features(clips, models["model"], features, options.work / "features")
    answers = answers_of([read_judgment(clip) for clip in clips], pairs)
    scores = {name: differences(model, pairs) for name, model in models.items()}
    return Findings(
        "A preference model on pairs with known faults, by simulated raters",
        accuracies(scores, answers) | recovered(scores["model"], answers),
        recipe=RECIPE,
        weights={"preference": models["model"].hash(), "features": features.hash()},
        notes=notes(options, models["model"], features, len(clips)),
    )


def notes(
    options: argparse.Namespace, model: PreferenceModel, features: Features, num: int
) -> list[str]:
    fitted, bias = (
        float(model.position_bias.mean()),
        np.mean([of.position_bias for of in PANEL.raters]),
    )
    return [
        f"{len(read_folder(options.work / 'train'))} pairs of {options.train_persons} training "
        f"persons, {num} of {options.persons} test persons from {options.first} on; clips of "
        f"{options.frames} frames, drawn with faults and not sampled",
        f"{len(PANEL.raters)} raters, noise {PANEL.raters[0].noise}, ties "
        f"{PANEL.raters[0].ties}, mean bias to the first place {bias:.2f}; fitted: {fitted:.2f}",
        f"{features.num} features of each clip; intervals are over persons",
    ]


def trained(work: Path, name: str, *, shuffled: bool, seed: int) -> PreferenceModel:
    """The model of the recipe on the pairs of ``work``, in ``work/name``."""
    export = work / name / "preference"
    options = {
        "model.init_args.export": export,
        "model.init_args.seed": seed,
        "data.init_args.train": f"[{work / 'train'}]",
        "data.init_args.validation": f"[{work / 'validation'}]",
        "data.init_args.kept": work / "features",
        "data.init_args.shuffled": str(shuffled).lower(),
        "trainer.default_root_dir": work / name,
    }
    words = [f"--{key}={value}" for key, value in options.items()]
    recipe = RESULTS_DIR.parents[1] / RECIPE
    if run_words("run", [str(recipe), *words, "--overwrite"]) != 0:
        raise ValueError(f"the training of {name} failed")
    return PreferenceModel.from_pretrained(export)


def answers_of(judgments: list[Judgment], pairs: JudgedFeatures) -> Answers:
    """What raters said of the pairs, and what their faults say."""
    first, second = (
        [Faults.read(words) for words in side]
        for side in zip(*((of.first, of.second) for of in judgments), strict=True)
    )
    by_rater = margins(PANEL, first, second).double().numpy()
    names = [rater.name for rater in PANEL.raters]
    whose = [names.index(judgment.rater) for judgment in judgments]
    said = [values_of(PANEL.raters[0], faults) for faults in (first, second)]
    terms = torch.stack([said[0][path] - said[1][path] for path in said[0]], dim=1)
    return Answers(
        pairs.winner.numpy(),
        pairs.person.numpy(),
        by_rater.mean(0),
        by_rater[whose, np.arange(len(judgments))],
        terms.double().numpy(),
    )


@torch.no_grad()
def differences(model: PreferenceModel, pairs: JudgedFeatures) -> Float[np.ndarray, " p"]:
    """By how much the model scores the first samples higher."""
    scores = (model(of).gather(1, pairs.axis[:, None])[:, 0] for of in (pairs.first, pairs.second))
    first, second = scores
    return (first - second).double().numpy()


def accuracies(
    scores: Mapping[str, Float[np.ndarray, " p"]], answers: Answers
) -> dict[str, Number]:
    """How often the higher score is that of the preferred one, over pairs that are no ties: of each
    model, and of what raters want, which is the most that there is."""
    decided = answers.winner != WINNERS.index("tie")
    said = np.where(answers.winner == WINNERS.index("first"), 1.0, -1.0)
    differ = answers.wanted != 0
    numbers = {}
    for name, word in WORDS.items():
        numbers[f"accuracy_{name}"] = _rate(scores[name], said, decided, answers.person).described(
            f"pairs judged as raters did: {word}", target="> 0.6" if name == "model" else ""
        )
    for name, values, word in (
        ("panel", answers.wanted, "what raters want on average"),
        ("rater", answers.rater, "what this rater wants"),
    ):
        numbers[f"accuracy_{name}"] = _rate(values, said, decided, answers.person).described(
            f"pairs judged as raters did: {word}, without noise"
        )
    for name, word in WORDS.items():
        numbers[f"truth_{name}"] = _rate(
            scores[name], np.sign(answers.wanted), differ, answers.person
        ).described(f"pairs judged as raters want on average, without noise: {word}")
    return numbers


def recovered(score: Float[np.ndarray, " p"], answers: Answers) -> dict[str, Number]:
    """r of score and what raters want, and the share of each fault in both: coefficients of a
    regression without an intercept, of which the sum of the sizes is 1."""
    groups = [np.flatnonzero(answers.person == who) for who in np.unique(answers.person)]
    numbers = {
        "margin_r": jackknife(
            lambda index: pearson(*_taken(groups, index, score, answers.wanted)),
            len(groups),
        ).described("r of the difference of scores and what raters want: preference model")
    }
    squares = np.stack([answers.terms[rows].T @ answers.terms[rows] for rows in groups])
    products = np.stack([answers.terms[rows].T @ score[rows] for rows in groups])
    wanted = np.mean([[term.weight for term in rater.terms] for rater in PANEL.raters], axis=0)
    for place, term in enumerate(TERMS):

        def share(index: np.ndarray, place: int = place) -> float:
            found = np.linalg.solve(squares[index].sum(0), products[index].sum(0))
            return float(found[place] / np.abs(found).sum())

        word = f"share of a preference: {term.__name__.replace('_', ' ')}"
        numbers[f"share_{term.__name__}"] = jackknife(share, len(groups)).described(
            f"{word}, of the model"
        )
        true = float(wanted[place] / wanted.sum())
        numbers[f"wanted_{term.__name__}"] = Number(true, len(PANEL.raters)).described(
            f"{word}, of the raters"
        )
    return numbers


def _rate(
    values: Float[np.ndarray, " p"],
    said: Float[np.ndarray, " p"],
    kept: np.ndarray,
    person: Int[np.ndarray, " p"],
) -> Number:
    """The share of kept pairs whose value has the sign of what was said, half for 0; with its
    interval over persons."""
    right = np.where(values == 0, 0.5, np.sign(values) == np.sign(said))[kept]
    _, place = np.unique(person[kept], return_inverse=True)
    sums, counts = np.bincount(place, weights=right), np.bincount(place)
    return within_unit(pooled_mean(sums, counts))


def _taken(
    groups: list[np.ndarray], index: np.ndarray, *values: Float[np.ndarray, " p"]
) -> list[np.ndarray]:
    rows = np.concatenate([groups[i] for i in index])
    return [value[rows] for value in values]
