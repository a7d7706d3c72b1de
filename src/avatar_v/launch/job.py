"""A recipe as a job: its id, its folder, its size, and the command that every node runs.

Nothing here schedules. Slurm, Kubernetes and SkyPilot start, preempt and requeue; this package
writes what they read (slurm.py, kubernetes.py, skypilot.py) and asks them afterwards. The command
always goes on from the last checkpoint, so a first start and a tenth one are the same (HELIOS,
Avatar V §6.1, has schedulers of its own).
"""

import json
import re
import secrets
import shlex
import subprocess
import sys
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from avatar_v.base import checks, trust
from avatar_v.base.launched import RUN
from avatar_v.base.outside import read_json
from avatar_v.base.paths import whole_file
from avatar_v.base.stored import built
from avatar_v.recipe.cli import merge_recipes

PRIORITIES = ("inference", "training", "data")
"""From the highest on, as infra/cell names them."""
RECORD, LOG = "launch.json", "launch.log"
"""In the folder of the run: how it was launched, and all that it says."""
ROOT = "--trainer.default_root_dir"
GRACE_S = 120
"""Seconds that a run is given for its checkpoint between SIGTERM and SIGKILL."""
PORT = 29500
GO_ON = ("--ckpt_path", "last")
PLAIN = re.compile(r"[\w.:/@+-]+")


@dataclass(frozen=True)
class Asked:
    """What the command line asks of an engine."""

    on: str
    nodes: str = ""  # N, or LEAST-MOST; of the recipe where empty
    gpus: int | None = None  # of a node; of the recipe where None
    priority: str = ""
    team: str = ""
    time: str = ""
    gpu: str = ""
    image: str = ""
    volume: str = ""
    queue: str = ""
    topology: str = ""


@dataclass(frozen=True)
class Size:
    """What a run makes of the nodes that it is given."""

    nodes: int  # that it uses
    options: tuple[str, ...]


@dataclass(frozen=True)
class Job:
    """A recipe with its size."""

    id: str
    root: Path
    words: tuple[str, ...]  # recipes and options
    sizes: Mapping[int, Size]  # by the number of nodes that an engine gives
    gpus: int  # processes of a node
    on_cpu: bool
    asked: Asked

    @property
    def nodes(self) -> tuple[int, int]:
        """The fewest and the most."""
        return min(self.sizes), max(self.sizes)

    @property
    def command(self) -> str:
        """What runs on each of the most nodes, as a shell reads it."""
        return shlex.join(["avatar-v", "run", *self.words, *self.sizes[self.nodes[1]].options,
                           *GO_ON])  # fmt: skip

    @property
    def environment(self) -> dict[str, str]:
        return {RUN: self.id, "OMP_NUM_THREADS": "1"}


@dataclass(frozen=True)
class Launched:
    """What is known of a job that was submitted."""

    id: str
    on: str
    job: str  # as the engine names it
    command: str


def read_job(recipes: Sequence[str], options: Sequence[str], asked: Asked) -> Job:
    """ValueError, before anything is submitted, for a recipe or a size that would not run."""
    if typed(options, GO_ON[0]) or "--overwrite" in options:
        raise ValueError("a launched run goes on from its last checkpoint, or begins where there "
                         "is none: leave out --ckpt_path and --overwrite")  # fmt: skip
    for option, own in (("devices", "--gpus"), ("num_nodes", "--nodes")):
        if typed(options, f"--trainer.{option}") is not None:
            raise ValueError(f"--trainer.{option}: a launched run has the size of {own}, which "
                             "stands before the --")  # fmt: skip
    trust.split_trust(options)  # the run reads these words again
    recipe = merge_recipes(recipes)
    trainer = recipe.get("trainer") or {}
    root = typed(options, ROOT) or trainer.get("default_root_dir")
    if not root:
        raise ValueError(f"{recipes[0]} names no folder of its run: {ROOT} runs/NAME")
    for name, value in asdict(asked).items():
        if value and not PLAIN.fullmatch(str(value)):
            raise ValueError(f"--{name} is a plain name, got {value!r}")
    on_cpu = (typed(options, "--trainer.accelerator") or trainer.get("accelerator")) == "cpu"
    devices = trainer.get("devices", 1)
    gpus = asked.gpus if asked.gpus is not None else devices
    if not isinstance(gpus, int) or gpus < 1:
        raise ValueError(f"--gpus is the number of GPUs of a node, the recipe says {devices}")
    checks.count("--gpus", gpus, most=64)
    fewest, most = _nodes(asked.nodes or str(trainer.get("num_nodes", 1)))
    sizes = {fewest: Size(fewest, spread(recipe, options, fewest, gpus))}
    for n in range(fewest + 1, most + 1):
        with suppress(ValueError):
            sizes[n] = Size(n, spread(recipe, options, n, gpus))
        sizes.setdefault(n, sizes[n - 1])  # it uses fewer
    words = (*recipes, *options)
    return Job(_id(Path(root), recipes[0]), Path(root), words, sizes, gpus, on_cpu, asked)


def spread(
    recipe: Mapping[str, Any], options: Sequence[str], nodes: int, gpus: int
) -> tuple[str, ...]:
    """Options that run a recipe on so many nodes, each step over as many clips as the recipe's own:
    more ranks accumulate fewer batches. ValueError where that does not divide."""
    trainer = recipe.get("trainer") or {}
    size = ("--trainer.num_nodes", str(nodes), "--trainer.devices", str(gpus))
    own, new = trainer.get("devices", 1), nodes * gpus
    updates = ((recipe.get("model") or {}).get("init_args") or {}).get("updates") or {}
    by_hand = "accumulate_grad_batches" in updates
    place = f"--{'model.init_args.updates' if by_hand else 'trainer'}.accumulate_grad_batches"
    batches = (updates if by_hand else trainer).get("accumulate_grad_batches", 1)
    if not isinstance(own, int) or own < 1 or typed(options, place):
        return size
    own *= trainer.get("num_nodes", 1)
    if own == new:
        return size
    if batches * own % new:
        raise ValueError(
            f"{nodes} x {gpus} ranks cannot share the {batches} x {own} batches of a step: choose "
            f"a size that divides them, or type {place} behind --"
        )
    size += (place, str(batches * own // new))
    interval = trainer.get("val_check_interval")  # counts batches
    if isinstance(interval, int) and not typed(options, "--trainer.val_check_interval"):
        size += ("--trainer.val_check_interval", str(max(1, interval * own // new)))
    return size


def typed(options: Sequence[str], name: str) -> str | None:
    """The value that the option ``name`` has on a command line."""
    for i, word in enumerate(options):
        option, equals, value = word.partition("=")
        if option == name:
            return value if equals else next(iter(options[i + 1 :]), None)
    return None


def keep(job: Job, handle: str) -> None:
    """Write how ``job`` was launched into its folder."""
    record = Launched(job.id, job.asked.on, handle, shlex.join(job.words))
    job.root.mkdir(parents=True, exist_ok=True)
    with whole_file(job.root / RECORD) as partial:
        partial.write_text(json.dumps(asdict(record), indent=1) + "\n", encoding="utf-8")


def kept(folder: Path) -> Launched | None:
    """How the run in ``folder`` was launched; None where it was not."""
    path = folder / RECORD
    if not path.exists():
        return None
    record = built(Launched, read_json(path), where=path)
    if not all(PLAIN.fullmatch(word) for word in (record.id, record.on, record.job)):
        raise ValueError(f"{path}: id, on and job are plain names, got {record}")
    return record


def told(*words: str) -> str:
    """What a command of an engine says. ValueError, with its words, where it fails."""
    try:
        done = subprocess.run(words, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise ValueError(f"{words[0]} is not installed here: --dry-run shows what it would be "
                         "given") from error  # fmt: skip
    if done.returncode:
        said = " ".join((done.stderr or done.stdout).split())
        raise ValueError(f"{words[0]} {words[1]}: {said or f'status {done.returncode}'}")
    return done.stdout.strip()


def by_path(job: Job) -> str:
    """The run by this Python, which other nodes see on the same file system, but for its size."""
    return shlex.join([sys.executable, "-m", "avatar_v.cli", "run", *job.words, *GO_ON])


def _nodes(text: str) -> tuple[int, int]:
    match = re.fullmatch(r"([1-9]\d{0,3})(?:-([1-9]\d{0,3}))?", text)
    if match is None or int(match[2] or match[1]) < int(match[1]):
        raise ValueError(f"--nodes is a number such as 4, or LEAST-MOST such as 2-4, got {text}")
    return int(match[1]), int(match[2] or match[1])


def _id(root: Path, recipe: str) -> str:
    """The run's own for a folder that was launched before: it goes on there."""
    before = kept(root)
    if before is not None:
        return before.id
    name = re.sub(r"[^a-z0-9]+", "-", Path(recipe).stem.lower()).strip("-")[:24]
    return f"run-{name}-{secrets.token_hex(4)}"
