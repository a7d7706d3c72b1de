"""Desired minus observed: which results a plan asks for, and which passes make those not there.

All keys follow from plan and recordings alone, so what is missing is a difference of sets, and a
run that is started again after any end comes to the same results (Avatar V §6.2.3: observe, diff,
reconcile). Nothing is read or made here.
"""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby

from avatar_v_data.curation.plan import CurationPlan, Resources
from avatar_v_data.curation.prints import PrintStage
from avatar_v_data.curation.stages import FootageRecording, Stage, result_key, stage_identity


@dataclass(frozen=True, slots=True)
class CurationTask:
    """One stage of one recording."""

    stage: Stage
    recording: FootageRecording
    key: str
    inputs: dict[str, str]  # stage → key of its result


@dataclass(frozen=True, slots=True)
class Pass:
    """What one worker does with one recording at a time: those of its stages that are missing and
    run on the same kind of worker, with one decode."""

    recording: FootageRecording
    kind: Resources
    keys: dict[str, str]  # stage → key of the result that is to be made
    inputs: dict[str, str]  # stage → key of a result that is needed and made elsewhere

    def lacks(self, finished: Collection[str]) -> str | None:
        """A result that it needs and that is not there."""
        return next((key for key in self.inputs.values() if key not in finished), None)


def desired(plan: CurationPlan, recordings: Iterable[FootageRecording]) -> list[CurationTask]:
    """All tasks, a recording's together and in an order in which each finds its inputs. Of one that
    is left out the first alone, which say so."""
    tasks, identities = [], [stage_identity(stage) for stage in plan.stages]
    named = {stage.name for stage in plan.stages} - ({PrintStage.name} - {*plan.first})
    inputs_of = [(*s.needs, *(name for name in s.uses if name in named)) for s in plan.stages]
    for recording in recordings:
        keys: dict[str, str] = {}
        for stage, identity, names in zip(plan.stages, identities, inputs_of, strict=True):
            if recording.why and stage.name not in plan.first:
                continue
            inputs = {name: keys[name] for name in names}
            words = list(inputs.values())
            if PrintStage.name in inputs:
                words += [f"{start}-{stop}" for start, stop in recording.left_out]
            keys[stage.name] = result_key(identity, recording, words)
            tasks.append(CurationTask(stage, recording, keys[stage.name], inputs))
    return tasks


def missing(
    plan: CurationPlan, tasks: Sequence[CurationTask], finished: Collection[str]
) -> Iterator[Pass]:
    """The passes that make what is not ``finished``, in the order of the recordings.

    A stage joins the pass of its kind unless it needs what workers of another kind make, who need
    that pass themselves: then it comes in a later one.
    """
    kinds = {stage.name: plan.kind_of(stage) for stage in plan.stages}
    for recording, own in groupby(tasks, key=lambda task: task.recording):
        left: dict[tuple[Resources, int], list[CurationTask]] = {}
        turn: dict[str, int] = {}  # of the stages that are missing
        for task in own:
            if task.key not in finished:
                kind = kinds[task.stage.name]
                later = [turn[n] + (kinds[n] != kind) for n in task.inputs if n in turn]
                turn[task.stage.name] = max(later, default=0)
                left.setdefault((kind, turn[task.stage.name]), []).append(task)
        for (kind, _), some in left.items():
            keys = {task.stage.name: task.key for task in some}
            inputs = {name: key for task in some for name, key in task.inputs.items()}
            others = {name: key for name, key in inputs.items() if name not in keys}
            yield Pass(recording, kind, keys, others)


def lacking(passes: Sequence[Pass], finished: Collection[str]) -> str:
    """A stage whose result some pass needs and which neither is there nor is made by another, ""
    where all are."""
    made = {*finished, *(key for one in passes for key in one.keys.values())}
    for one in passes:
        if lacks := one.lacks(made):
            return next(stage for stage, key in one.inputs.items() if key == lacks)
    return ""
