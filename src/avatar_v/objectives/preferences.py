"""What preference training (Flow-DPO) of motion and of video has in common.

A pair is two samples of one condition. Both are noised by the same noise at the same times, and
the loss is of how much better than the frozen network of the start the student denoises the winner,
less the same of the loser (Liu et al., 2501.13918). Rows of a batch: all winners, then all losers;
of a tie the first sample stands among the winners.
"""

from dataclasses import dataclass

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from avatar_v import flow
from avatar_v.base import checks
from avatar_v.flow import State
from avatar_v.losses.align import flow_dpo_loss, per_latent
from avatar_v.sampling.solver import VelocityFn
from avatar_v.shards.pair_data import PairData
from avatar_v.shards.pairs import WINNERS
from avatar_v.training.batch import Logs
from avatar_v.training.policies import repeated, without_gradient
from avatar_v.types import Batch, PreferencePairs

FROZEN = "frozen"
"""The role of the weights that the stage starts from."""
TIE, SECOND = WINNERS.index("tie"), WINNERS.index("second")


@dataclass(frozen=True)
class Preferences:
    """Numbers of preference training."""

    beta: float = 100.0  # of the difference of mean squared flow errors
    ties: float = 1.0  # k of losses/align.preference_loss; 1 knows no ties
    hold: float = 0.0
    """Weight of the squared distance from the velocities of the start: β holds the network where
    its errors of winner and loser differ, this holds it wherever it moves."""

    def __post_init__(self) -> None:
        checks.positive("beta", self.beta)
        checks.number("ties", self.ties, least=1, most=checks.MOST)
        checks.weight("hold", self.hold)


@dataclass(frozen=True)
class NoisedPairs:
    """Inputs of both networks for p pairs, and the velocity they should predict."""

    x_t: State  # "2p l *rest"
    t: Float[Tensor, "b l"]  # b = 2p; 0 where latents are given clean
    velocity: State
    scored: Bool[Tensor, "b l"]
    tied: Bool[Tensor, " p"]


def require_pairs(batch: Batch) -> PreferencePairs:
    """ValueError for a batch of clips that are no pairs."""
    if batch.preferences is None:
        raise ValueError("preferences need pairs: set data to avatar_v.shards.pair_data.PairData")
    return batch.preferences


def winners_first(judged: PreferencePairs, first: Tensor, second: Tensor) -> tuple[Tensor, Tensor]:
    """Tensors of the two samples of each pair, as those of the winner and of the loser."""
    second_won = (judged.winner == SECOND).to(first.device).reshape(-1, *[1] * (first.dim() - 1))
    return torch.where(second_won, second, first), torch.where(second_won, first, second)


def check_ties(data: object, numbers: Preferences) -> None:
    """ValueError for training pairs that are ties where the loss knows none."""
    if isinstance(data, PairData) and numbers.ties == 1:
        said = [judgment.winner for judgment in data.judgments(data.train_folder)]
        if "tie" in said:
            raise ValueError(
                f"{said.count('tie')} of {len(said)} pairs are ties: set dpo.ties above 1, or "
                "data.init_args.ties to false"
            )


def noised_pairs(
    clean: State,
    noise: Float[Tensor, "p l *rest"],
    t: Float[Tensor, "p l"],
    scored: Bool[Tensor, "p l"],
    tied: Bool[Tensor, " p"],
) -> NoisedPairs:
    """Winner and loser of each pair with one noise and the same times."""
    t, noise, scored = (repeated(x, 2).to(clean.device) for x in (t, noise, scored))
    x_t, velocity = flow.interpolate(clean, noise, t), flow.velocity(clean, noise)
    return NoisedPairs(x_t, t, velocity, scored, tied.to(clean.device))


def preference(
    student: VelocityFn,
    frozen: VelocityFn,
    pairs: NoisedPairs,
    numbers: Preferences,
    weight: Float[Tensor, "..."] | None = None,
) -> tuple[Tensor, Logs]:
    """Flow-DPO of the pairs, and its terms. ``weight``, of mean 1, counts numbers of the state; it
    broadcasts to it. ``accuracy``: the share of decided pairs in which the student gained more on
    the winner than on the loser, one half by chance."""
    v = student(pairs.x_t, pairs.t).float()
    with without_gradient():
        start = frozen(pairs.x_t, pairs.t).float()
    ours, theirs = (
        _errors(of - pairs.velocity, pairs.scored, weight).chunk(2) for of in (v, start)
    )
    losses = flow_dpo_loss(
        *ours, *theirs, beta=numbers.beta, tied=pairs.tied, ties=numbers.ties
    )  # fmt: skip
    moved = _errors(v - start, pairs.scored).mean()
    won, lost = (of - at for of, at in zip(ours, theirs, strict=True))
    gained = (lost - won).detach()
    right = torch.where(gained == 0, 0.5, (gained > 0).float())
    decided = (~pairs.tied).float()
    logs = {
        "dpo": losses.mean(),
        "moved": moved,
        "accuracy": (right * decided).sum() / decided.sum().clamp_min(1),
        "won": won.mean(),
        "lost": lost.mean(),
    }
    return logs["dpo"] + numbers.hold * moved, logs


def validation_logs(loss: Tensor, logs: Logs) -> Logs:
    """The loss and its terms on pairs that are not trained on, by the names that they are logged
    under."""
    return {"val/loss": loss, **{f"val/{name}": value for name, value in logs.items()}}


def _errors(
    difference: State, scored: Bool[Tensor, "b l"], weight: Float[Tensor, "..."] | None = None
) -> Float[Tensor, " b"]:
    """The mean square over the latents that are scored."""
    squared = difference.square()
    each = per_latent(squared if weight is None else squared * weight) * scored
    return each.sum(1) / scored.sum(1).clamp_min(1)
