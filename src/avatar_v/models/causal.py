"""A DiT that makes its video block after block (Live Avatar §4.1).

The frames of a block see each other and blocks before it, never what comes after. What earlier
blocks leave are keys and values (models/cache.py), so a video has no end that has to be known.
"""

import dataclasses

from avatar_v.models.dit import AvatarDiT


def as_causal(dit: AvatarDiT, *, block: int, window: int | None) -> AvatarDiT:
    """A causal network with the weights of ``dit``, or ``dit`` itself where it is one already.

    Blocks have ``block`` latent frames and see ``window`` blocks before their own (None: all).
    ValueError for a causal network of other blocks, and for a refiner.
    """
    if dit.config.reads_low:
        raise ValueError("a refiner is local in time: it cannot become causal")
    config = dataclasses.replace(dit.config, causal_block=block, causal_window=window)
    if dit.config.is_causal and dit.config != config:
        raise ValueError(
            f"the weights are causal in blocks of {dit.config.causal_block} that see "
            f"{dit.config.causal_window} before them, asked for {block} and {window}"
        )
    if dit.config == config:
        return dit
    causal = AvatarDiT(config, dit.motion_stats).to(dit.patch_embed.weight)
    causal.load_state_dict(dit.state_dict())
    return causal.train(dit.training)
