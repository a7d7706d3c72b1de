"""How much sampling a video takes, known before any network is loaded."""

from avatar_v.models.config import DiTConfig
from avatar_v.sampling.blocks import split_blocks
from avatar_v.sampling.chunks import plan
from avatar_v.sampling.guidance import streams
from avatar_v.sampling.settings import Settings


def num_passes(
    settings: Settings, config: DiTConfig, num_video_frames: int, *, has_reference: bool
) -> int:
    """Passes of the network: chunks, or blocks of a causal network, by steps, by the passes that
    guidance takes. The encoding of the reference and I chunks are not among them."""
    chunks = plan(num_video_frames, chunk_latents=settings.chunk_latents).chunks
    runs, block, guided = len(chunks), config.causal_block, 1
    if block is not None:
        runs = sum(len(split_blocks(chunk, block)) for chunk in chunks)
    if not config.has_guidance_inside:
        guided = len(
            streams(
                text=settings.guidance_text,
                audio=settings.guidance_audio,
                reference=settings.guidance_reference,
                has_reference=has_reference,
            )
        )
    return runs * settings.num_steps * guided
