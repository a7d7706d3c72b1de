"""What `avatar-v launch` and the run that it starts know of each other."""

import os

RUN = "AVATAR_V_RUN"
"""In the environment of a run that an engine may stop and start again: its id, which its starts and
MLflow share."""
TRY_AGAIN = os.EX_TEMPFAIL
"""The exit status, 75, of such a run that was told to end and has a checkpoint: start it again."""


def run_id() -> str | None:
    """The id of this run; None where it was not launched."""
    return os.environ.get(RUN) or None
