"""What a recipe may name: the classes that it builds, and the functions that it calls.

A recipe is read like any file of another person's: none of its words is imported unless it stands
here. That are this project's own stages, data, callbacks and rewards, those classes of Lightning
that call nothing and write only where `recipe/outputs.py` looks, and torch's optimisers. The user
adds modules by ``--trust MODULE``; their code is run.
"""

import importlib
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

OWN = ("avatar_v", "avatar_v_data", "avatar_v_eval")
REWARDS = tuple(f"avatar_v.rewards.{name}" for name in
                ("shipped", "metrics", "likeness", "preference", "scored"))  # fmt: skip
"""Modules whose names a reward may have."""
SCORERS = "avatar_v.scoring.scorers"
TORCH = ("torch.optim",)
LIGHTNING = {
    "lightning.pytorch.callbacks": (
        "BatchSizeFinder", "DeviceStatsMonitor", "EarlyStopping", "EMAWeightAveraging",
        "GradientAccumulationScheduler", "LearningRateFinder", "LearningRateMonitor",
        "ModelCheckpoint", "ModelSummary", "OnExceptionCheckpoint", "RichModelSummary",
        "RichProgressBar", "Timer", "TQDMProgressBar",
    ),
    "lightning.pytorch.callbacks.progress.rich_progress": ("RichProgressBarTheme",),
    "lightning.pytorch.loggers": ("CSVLogger", "MLFlowLogger", "TensorBoardLogger"),
    "lightning.pytorch.strategies": (
        "DDPStrategy", "ModelParallelStrategy", "SingleDeviceStrategy",
    ),
    "lightning.pytorch.plugins": (
        "AsyncCheckpointIO", "DoublePrecision", "HalfPrecision", "MixedPrecision",
        "TorchCheckpointIO", "TorchSyncBatchNorm",
    ),
    "lightning.pytorch.plugins.environments": (
        "LightningEnvironment", "SLURMEnvironment", "TorchElasticEnvironment",
    ),
    "lightning.pytorch.profilers": ("AdvancedProfiler", "PassThroughProfiler", "SimpleProfiler"),
}  # fmt: skip
"""Looked at one by one. Those that take functions (LambdaCallback, StochasticWeightAveraging …) or
talk to a service (WandbLogger …) are left out."""
BASES = {
    "lightning.pytorch.core.module.LightningModule",
    "lightning.pytorch.core.datamodule.LightningDataModule",
    "lightning.pytorch.callbacks.callback.Callback",
    "lightning.pytorch.strategies.strategy.Strategy",
    "lightning.pytorch.loggers.logger.Logger",
    "avatar_v.rewards.feature_part.FeaturePart",
    "avatar_v.objectives.critic.CriticTask",
}
"""Of the project's own classes only what is below one of these is built by name."""
HOOKS = ("ddp_comm_hook", "ddp_comm_wrapper", "ddp_comm_state", "dict_kwargs")
"""Arguments of allowed classes that would take a function, or pass on what is not looked at."""
_trusted: set[str] = set()


def trust(modules: Iterable[str]) -> None:
    """Let recipes name what is in ``modules``, for the life of this process."""
    for name in modules:
        if not all(part.isidentifier() for part in name.split(".")):
            raise ValueError(f"--trust is the dotted name of a module, such as mine.rewards, "
                             f"got {name!r}")  # fmt: skip
        if name.partition(".")[0] == "jsonargparse":
            raise ValueError(f"--trust {name}: it decides what is trusted")
        _trusted.add(name)


def split_trust(words: Sequence[str]) -> list[str]:
    """``words`` without each ``--trust MODULE``, whose modules are trusted from now on."""
    rest, stream = [], iter(words)
    for word in stream:
        option, equals, value = word.partition("=")
        if option != "--trust":
            rest.append(word)
            continue
        value = value if equals else next(stream, "")
        trust([value])
    return rest


def is_trusted(path: str) -> bool:
    """Whether the user has named the module, or a package that it is in."""
    return _is_in(path, _trusted)


def may_build(class_path: str) -> bool:
    """Whether a recipe may name this class. A word without a dot names one that is loaded."""
    package, dot, name = class_path.rpartition(".")
    listed = any(package.startswith(place) and name in names for place, names in LIGHTNING.items())
    return not dot or listed or _is_in(class_path, (*OWN, *TORCH, *_trusted))


def names_for_parser() -> list[str]:
    """All that the parser may import, as jsonargparse's list takes it: Lightning's classes by the
    module that they are defined in as well."""
    listed = []
    for place, names in LIGHTNING.items():
        for name in names:
            kind = getattr(importlib.import_module(place), name)
            listed += [f"{place}.{name}", f"{kind.__module__}.{kind.__qualname__}"]
    return [*OWN, *TORCH, *listed, *sorted(_trusted)]


def check_names(value: Any, where: str = "") -> None:
    """ValueError for the first class in a recipe, at any depth, that it may not name, before
    anything is imported; and for a reward or a scorer of another module."""
    if isinstance(value, Mapping):
        path = value.get("class_path")
        if isinstance(path, str) and not may_build(path):
            raise refusal(path, where)
        if "class_path" not in value and where.endswith("]") and isinstance(value.get("path"), str):
            check_reward(value["path"], where)
        for key, part in value.items():
            if key in ("scorer", "scorers"):
                check_scorers([part] if isinstance(part, str) else part, where)
            check_names(part, f"{where}.{key}" if where else str(key))
    elif isinstance(value, list | tuple):
        for i, part in enumerate(value):
            check_names(part, f"{where}[{i}]")


def check_reward(path: str, where: str) -> None:
    """ValueError for a reward that is none of the project's and not trusted."""
    module = path.rpartition(".")[0]
    if "." in path and module not in REWARDS and not is_trusted(path):
        raise refusal(path, where)


def check_scorers(names: Any, where: str) -> None:
    """ValueError for a scorer of a module (scoring/registry.py) that is not the project's and not
    trusted."""
    for name in names if isinstance(names, list | tuple) else ():
        module = str(name).partition("=")[0]
        if "." in module and not _is_in(module, (SCORERS,)) and not is_trusted(module):
            raise refusal(module, where)


def check_kind(kind: Any, class_path: str, where: str) -> None:
    """ValueError for something of the project's own that is no part of a run, imported by now."""
    if is_trusted(class_path) or not _is_in(class_path, OWN):
        return
    bases = kind.__mro__ if isinstance(kind, type) else ()
    if not {f"{base.__module__}.{base.__qualname__}" for base in bases} & BASES:
        raise ValueError(f"{where}: {class_path} is no stage, data, callback, strategy or logger")


def refusal(path: str, where: str) -> ValueError:
    """The error for a name that a recipe may not have."""
    return ValueError(f"{where}: {not_named(path)}")


def not_named(path: str) -> str:
    """What is said of a name that a recipe may not have."""
    return (
        f"{path} is not among what a recipe may name, for its code would be run; --trust {path} "
        "allows it"
    )


def _is_in(path: str, modules: Iterable[str]) -> bool:
    return any(path == module or path.startswith(f"{module}.") for module in modules)
