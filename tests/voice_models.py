"""Voices of random weights, as small as they go, for the tests of what is trained here."""

import torch

from avatar_v.critics import voice as network
from avatar_v.voices.codec import CodecConfig, VoiceCodec
from avatar_v.voices.model import SpeakerParts, VoiceModel, fresh_llama
from avatar_v.voices.tokens import SPEAKER_PARTS, SPEAKER_SIZE

TINY = CodecConfig(3, 16, 4, 16, 16, 2, 2, 8)


def tiny_codec() -> VoiceCodec:
    with torch.random.fork_rng():
        torch.manual_seed(0)
        made = VoiceCodec(TINY).eval().requires_grad_(False)
        torch.nn.init.normal_(made.head.weight, std=0.5)
    return made


def tiny_voice(codec: VoiceCodec) -> VoiceModel:
    llama = fresh_llama(codec, width=32, num_layers=1, num_heads=2, seed=0).eval()
    centres = torch.randn(SPEAKER_PARTS, SPEAKER_SIZE, network.WIDTH // SPEAKER_PARTS)
    return VoiceModel(llama, SpeakerParts(centres), codec)
