"""MLflow as an experiment log that training never waits for or dies of.

Lightning's logger calls the server in the training loop: one that has died hangs a run for minutes
a call, or ends it. Here a call that fails is kept, with all that follow; training goes on, and they
are sent in their order once the server answers again.

A run that `avatar-v launch` starts again goes on in its run of MLflow, which has its id as a tag.
"""

import fcntl
import os
import time
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Any

from lightning.fabric.loggers.logger import rank_zero_experiment
from lightning.fabric.utilities.rank_zero import rank_zero_only
from lightning.pytorch.loggers import MLFlowLogger
from mlflow.exceptions import MlflowException
from sqlalchemy.exc import SQLAlchemyError

from avatar_v.base.launched import run_id
from avatar_v.base.words import notice

PATIENCE = {"MLFLOW_HTTP_REQUEST_TIMEOUT": "5", "MLFLOW_HTTP_REQUEST_MAX_RETRIES": "0"}
"""Seconds, and tries after the first; MLflow's own are 120 and 7. The environment's come first."""
PAUSES_S = (15.0, 60.0, 300.0)
"""Between attempts, while the server does not answer; the last one repeats."""
SQLITE = "sqlite:///"
MOST_KEPT = 100_000
"""Calls that are kept; beyond, the oldest go."""
TAG = "avatar_v.run"
"""Of a run of MLflow: the id of the run that was launched."""
LOST = (MlflowException, SQLAlchemyError, OSError)


class PatientMLFlowLogger(MLFlowLogger):
    """Lightning's logger, whose calls wait while the server is away."""

    def __init__(self, *args: Any, **options: Any) -> None:
        for name, value in PATIENCE.items():
            os.environ.setdefault(name, value)
        with _alone(str(options.get("tracking_uri") or "")):
            super().__init__(*args, **options)
        self._kept: deque[Callable[[], Any]] = deque(maxlen=MOST_KEPT)
        self._num_failures = 0
        self._next_try_s = 0.0

    @property
    @rank_zero_experiment
    def experiment(self) -> Any:
        """MLflow's client, once the run is there."""
        launched = run_id()
        if not self._initialized and self._run_id is None and launched is not None:
            self.tags = {**(self.tags or {}), TAG: launched}
            self._run_id = self._run_before(launched)
        return super().experiment

    def _run_before(self, launched: str) -> str | None:
        """The run of MLflow that has the tag, which runs again."""
        client = self._mlflow_client
        place = client.get_experiment_by_name(self._experiment_name)
        if place is None:
            return None
        found = client.search_runs([place.experiment_id], f"tags.`{TAG}` = '{launched}'")
        for run in found:
            client.update_run(run.info.run_id, status="RUNNING")
            return run.info.run_id
        return None

    @rank_zero_only
    def log_metrics(self, metrics: Mapping[str, float], step: int | None = None) -> None:
        """Values keep the time at which they were logged, unless they had to wait."""
        values = dict(metrics)
        self._send(lambda: MLFlowLogger.log_metrics(self, values, step))

    @rank_zero_only
    def log_hyperparams(self, params: Any) -> None:
        self._send(lambda: MLFlowLogger.log_hyperparams(self, params))

    @rank_zero_only
    def log_file(self, path: Path, folder: str) -> None:
        """A file of the run as an artifact in ``folder``."""
        self._send(lambda: self.experiment.log_artifact(self.run_id, str(path), folder))

    @rank_zero_only
    def after_save_checkpoint(self, checkpoint_callback: Any) -> None:
        self._send(lambda: MLFlowLogger.after_save_checkpoint(self, checkpoint_callback))

    @rank_zero_only
    def finalize(self, status: str = "success") -> None:
        """One more attempt; what the server does not take then is lost to it, and is said."""
        self._next_try_s = 0.0
        self._send(lambda: MLFlowLogger.finalize(self, status))
        if self._kept:
            _warn(f"{len(self._kept)} calls did not reach MLflow; loss.csv has the losses")

    def _send(self, call: Callable[[], Any]) -> None:
        self._kept.append(call)
        if time.monotonic() < self._next_try_s:
            return
        try:
            while self._kept:
                self._kept[0]()
                self._kept.popleft()
        except LOST as error:
            self._wait_for_server(error)
            return
        if self._num_failures:
            self._num_failures = 0
            _warn("MLflow answers again, and has all that it missed")

    def _wait_for_server(self, error: Exception) -> None:
        pause = PAUSES_S[min(self._num_failures, len(PAUSES_S) - 1)]
        if not self._num_failures:
            why = " ".join(str(error).split())[:120]
            _warn(f"MLflow does not answer ({why}); training goes on, and its log is sent later")
        self._num_failures += 1
        self._next_try_s = time.monotonic() + pause


@contextmanager
def _alone(uri: str) -> Iterator[None]:
    """Within the block no other rank makes the tables of the same sqlite file: MLflow makes them as
    it is opened, and two at once end with an error."""
    if not uri.startswith(SQLITE):
        yield
        return
    path = Path(uri.removeprefix(SQLITE).partition("?")[0])
    with ExitStack() as stack:
        with suppress(OSError):  # a file system without locks, or where nothing can be written
            path.parent.mkdir(parents=True, exist_ok=True)
            file = stack.enter_context(open(path.with_name(f".{path.name}.lock"), "w"))
            fcntl.flock(file, fcntl.LOCK_EX)
        yield


def _warn(text: str) -> None:
    notice(f"warning: {text}")
