"""All that is checked of a whole recipe before anything is built: trainer and experiment log.

Each error is a ValueError of one line with the key, the value and what is expected. Numbers of the
stages are checked by their constructors (base/checks.py), folders of weights by weights_there.py.
"""

import os
import socket
import sqlite3
import tempfile
from collections.abc import Mapping
from contextlib import closing
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit

import torch
from lightning.pytorch.accelerators import AcceleratorRegistry
from lightning.pytorch.accelerators.cuda import CUDAAccelerator
from lightning.pytorch.accelerators.mps import MPSAccelerator
from lightning.pytorch.strategies import StrategyRegistry

from avatar_v.base import checks
from avatar_v.kernels import backends, switch
from avatar_v.parallel import exchange

MAX_DEVICES = 1024
PATIENCE_S = 5.0
"""A database that another run is writing to, and a server, have so long to answer."""
SQLITE = "sqlite:///"
SHARDED = "avatar_v.parallel.strategy.ShardedStrategy"
PORTS = {"http": 80, "https": 443, "postgresql": 5432, "mysql": 3306, "mssql": 1433}
"""Of servers that a URI names none of."""


def check_trainer(trainer: Mapping[str, Any], *, trains: bool) -> None:
    """ValueError for numbers and names that the trainer would take wrongly or not at all."""
    root = trainer["default_root_dir"]
    if not root:
        raise ValueError(
            f"trainer.default_root_dir is the folder of the run, such as runs/2_a2v, got {root}"
        )
    _check_names(trainer)
    _check_start(trainer["strategy"])
    _check_num_devices(trainer["devices"])
    if trains:
        checks.folder("trainer.default_root_dir", root)
        _check_length(trainer)
    if trainer["gradient_clip_val"] is not None:
        checks.weight("trainer.gradient_clip_val", trainer["gradient_clip_val"])
    for name in ("accumulate_grad_batches", "num_nodes"):
        checks.count(f"trainer.{name}", trainer[name])


def check_warmup(model: Mapping[str, Any], max_steps: int) -> None:
    """ValueError for a warm-up that `warmup_cosine` would refuse, once the networks are loaded."""
    optim = (model.get("init_args") or {}).get("optim")
    num = optim.get("num_warmup_steps") if isinstance(optim, Mapping) else None
    if isinstance(num, int) and 0 < max_steps <= num:
        raise ValueError(
            f"trainer.max_steps {max_steps} ends within the warm-up of {num} steps: pass "
            f"--model.init_args.optim.num_warmup_steps {max_steps // 10}, or train for longer"
        )


def check_devices(trainer: Mapping[str, Any]) -> None:
    """ValueError for devices that this machine lacks, and for a backend of attention or kernels
    that are asked for and do not run on them."""
    accelerator = trainer["accelerator"]
    cuda, mps = CUDAAccelerator.is_available(), MPSAccelerator.is_available()
    there = {"gpu": cuda or mps, "cuda": cuda, "mps": mps}
    if not there.get(accelerator, True):
        raise ValueError(
            f"trainer.accelerator: this machine has no {accelerator}; expected cpu or auto, for "
            "the small recipes with --trainer.devices 1 --trainer.strategy auto"
        )
    num = _number(trainer["devices"])
    if accelerator == "cpu" and num == -1:
        raise ValueError("trainer.devices is a number of processes with accelerator cpu, got -1")
    if num is not None and (accelerator == "cpu" or not (cuda or mps)):
        checks.at_once("trainer.devices", num)
    device = torch.device("cuda" if cuda and accelerator != "cpu" else "cpu")
    backends.check_named(device)
    switch.check_named(device)
    exchange.check_named(device)


def check_experiment_log(logger: Any) -> None:
    """ValueError for an MLflow store that cannot be opened: MLflow tries for over a minute."""
    for one in logger if isinstance(logger, list) else [logger]:
        if not isinstance(one, Mapping) or not one.get("class_path", "").endswith("MLFlowLogger"):
            continue
        uri = (one.get("init_args") or {}).get("tracking_uri")
        uri = uri or os.environ.get("MLFLOW_TRACKING_URI", "")
        problem = store_problem(uri)
        if problem is not None:
            raise ValueError(
                f"trainer.logger: the MLflow store {uri} cannot be opened ({problem}); expected a "
                "sqlite:/// file that can be written or a server that answers, or logger: false"
            )


def store_problem(uri: str) -> str | None:
    """Why a store of MLflow cannot be opened, asked in `PATIENCE_S`; None if it can, as far as that
    is seen. MLflow itself would try for minutes."""
    if uri.startswith(SQLITE):
        return _sqlite_problem(Path(uri.removeprefix(SQLITE).partition("?")[0]))
    port = PORTS.get(urlsplit(uri).scheme.partition("+")[0])
    return None if port is None else _server_problem(uri, port)


def _check_names(trainer: Mapping[str, Any]) -> None:
    accelerator, strategy = trainer["accelerator"], trainer["strategy"]
    known = ("auto", "gpu", *AcceleratorRegistry.available_accelerators())
    if isinstance(accelerator, str) and accelerator not in known:
        raise ValueError(f"trainer.accelerator is one of {', '.join(known)}, got {accelerator}")
    known = ("auto", *StrategyRegistry.available_strategies())
    if isinstance(strategy, str) and strategy not in known:
        path = strategy if "." in strategy else SHARDED
        raise ValueError(
            "trainer.strategy is auto, ddp, another name that Lightning knows, or a class, with "
            f"--trainer.strategy.class_path {path}; got {strategy}"
        )


def _check_start(strategy: Any) -> None:
    """ValueError for ranks that would be copies of this process: they are started as it was."""
    kind = strategy if isinstance(strategy, str) else ""
    if isinstance(strategy, Mapping):
        kind = str((strategy.get("init_args") or {}).get("start_method", ""))
    if any(word in kind for word in ("spawn", "fork", "notebook")):
        raise ValueError(
            f"trainer.strategy starts each rank by the command line, as ddp does, got {kind}"
        )


def _check_num_devices(devices: Any) -> None:
    number = _number(devices)
    if number not in (None, -1):
        checks.count("trainer.devices", number, most=MAX_DEVICES)
    parts = devices.split(",") if isinstance(devices, str) and number is None else []
    if devices != "auto" and not all(part.strip().isdigit() for part in parts if part):
        raise ValueError(f"trainer.devices is a number, numbers as 0,1 or auto, got {devices}")


def _number(devices: Any) -> int | None:
    """How many; None for auto and for devices by their numbers."""
    try:
        return int(devices)
    except (TypeError, ValueError):
        return None


def _check_length(trainer: Mapping[str, Any]) -> None:
    steps, epochs = trainer["max_steps"], trainer["max_epochs"]
    if steps != -1:
        checks.count("trainer.max_steps", steps, most=1e12)
    elif epochs in (None, -1):
        raise ValueError(
            "trainer.max_steps is a whole number above 0, got -1: the learning rate needs an end"
        )
    if epochs not in (None, -1):
        checks.count("trainer.max_epochs", epochs, most=1e12)


def _sqlite_problem(path: Path) -> str | None:
    """Why the database in ``path`` cannot be written; None if it can, or can be made."""
    if not path.exists():
        folder = next(p for p in path.absolute().parents if p.exists())
        try:
            tempfile.TemporaryFile(dir=folder).close()  # /proc says that it may be written to
        except OSError:
            return f"{folder} is no folder that can be written"
        return None
    try:
        uri = f"file:{quote(str(path.absolute()))}?mode=rw"
        with closing(sqlite3.connect(uri, uri=True, timeout=PATIENCE_S)) as database:
            database.execute("BEGIN IMMEDIATE")
            database.execute("SELECT count(*) FROM sqlite_master").fetchone()
            database.rollback()
    except sqlite3.Error as error:
        return str(error)
    return None


def _server_problem(uri: str, port: int) -> str | None:
    parts = urlsplit(uri)
    place = parts.hostname or "", parts.port or port
    try:
        socket.create_connection(place, timeout=PATIENCE_S).close()
    except OSError as error:
        return error.strerror or str(error)
    return None
