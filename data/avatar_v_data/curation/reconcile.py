"""Desired minus observed: which results a plan asks for, and making those that are not there.

All keys follow from plan and recordings alone, so what is missing is a difference of sets, and any
number of workers that look at the same folder come to the same end, whoever of them is killed
(Avatar V §6.2.3: observe, diff, reconcile).
"""

import time
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass

from avatar_v_data.curation.plan import CurationPlan
from avatar_v_data.curation.stages import (
    FootageRecording,
    Result,
    Stage,
    result_key,
    stage_identity,
)
from avatar_v_data.curation.store import FAILED, MOST_DEATHS, CurationStore, DamagedError

WAIT_S = 0.5


@dataclass(frozen=True)
class CurationTask:
    """One stage of one recording."""

    stage: Stage
    recording: FootageRecording
    key: str
    inputs: Mapping[str, str]  # stage → key of its result

    def is_ready(self, finished: Collection[str]) -> bool:
        """Whether all that it needs is there."""
        return all(key in finished for key in self.inputs.values())


def desired(plan: CurationPlan, recordings: Sequence[FootageRecording]) -> list[CurationTask]:
    """All tasks, a recording's together and in an order in which each finds its inputs."""
    tasks, identities = [], [stage_identity(stage) for stage in plan.stages]
    for recording in recordings:
        keys: dict[str, str] = {}
        for stage, identity in zip(plan.stages, identities, strict=True):
            inputs = {name: keys[name] for name in stage.needs}
            keys[stage.name] = result_key(identity, recording, list(inputs.values()))
            tasks.append(CurationTask(stage, recording, keys[stage.name], inputs))
    return tasks


def reconcile(
    tasks: Sequence[CurationTask],
    store: CurationStore,
    *,
    is_stopping: Callable[[], bool] = lambda: False,
    on_progress: Callable[[int, int], None] = lambda num_done, num: None,
) -> int:
    """Make what is missing until all ``tasks`` are finished; the number that were made here.

    Where the rest is in other workers' hands, or waits for what they make, this one waits, too:
    they may die.
    """
    num_made = 0
    while not is_stopping():
        finished, before = store.finished(), num_made
        num_done = sum(task.key in finished for task in tasks)
        on_progress(num_done, len(tasks))
        for task in tasks:
            if is_stopping() or task.key in finished or not task.is_ready(finished):
                continue
            num_made += _make(task, store)
            if store.is_finished(task.stage.name, task.key):
                finished.add(task.key)
                num_done += 1
                on_progress(num_done, len(tasks))
        if num_done == len(tasks):
            break
        if num_made == before:
            time.sleep(WAIT_S)
    return num_made


def _make(task: CurationTask, store: CurationStore) -> bool:
    """Make a result unless another worker has it or is at it."""
    with store.claim(task.key) as mine:
        if not mine or store.is_finished(task.stage.name, task.key):
            return False
        if store.deaths(task.key) >= MOST_DEATHS:
            reason = f"{task.stage.name}: its worker died {MOST_DEATHS} times (memory?)"
            result: Result = {FAILED: reason}
        else:
            try:
                inputs = {name: store.result(name, key) for name, key in task.inputs.items()}
            except DamagedError:
                store.forget_damaged()
                return False
            result = _result(task, inputs)
        try:
            store.commit(task.stage.name, task.key, result)
        except (TypeError, ValueError) as error:  # no JSON: a measure that is not a finite number
            reason = f"{task.stage.name}: its result cannot be kept: {error}"
            store.commit(task.stage.name, task.key, {FAILED: reason})
    return True


def _result(task: CurationTask, inputs: Mapping[str, Result]) -> Result:
    """What the stage says, or why it, or one before it, has nothing to say."""
    for result in inputs.values():
        if FAILED in result:
            return {FAILED: result[FAILED]}
    try:
        return task.stage.run(task.recording, inputs)
    except (OSError, ImportError, MemoryError):
        raise  # of this machine and not of the recording
    except Exception as error:  # a decoder's or a model's, too: one recording never ends a run
        reason = str(error).removeprefix(f"{task.recording.path}: ")
        kind = "" if isinstance(error, ValueError) else f"{type(error).__name__}: "
        return {FAILED: f"{task.stage.name}: {kind}{reason}"}
