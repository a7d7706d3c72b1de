"""SIGTERM ends a run at once, on one rank and on several."""

import signal
import threading

import lightning as L

from avatar_v.base.interrupts import interrupted


class Terminated(L.Callback):
    """Answers SIGTERM like Ctrl-C while a run trains.

    Lightning, which sets a handler of its own right before, would go on to the end of the epoch,
    and on several ranks call a collective inside the handler, where ranks wait for each other for
    ever. An interrupted rank ends those that it started; where it did not start them, it leaves
    their collectives, which then fail. `RecipeCLI` adds this callback in front of all others.
    """

    def on_sanity_check_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._listen()

    def on_train_start(self, trainer: L.Trainer, pl_module: L.LightningModule) -> None:
        self._listen()

    def _listen(self) -> None:
        if threading.current_thread() is threading.main_thread():
            signal.signal(signal.SIGTERM, interrupted)
