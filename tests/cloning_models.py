"""Models that clone a voice, tiny and of random weights, in the layout of the published folders."""

from pathlib import Path

import torch
from tokenizers import Tokenizer
from tokenizers.decoders import ByteLevel as ByteDecoder
from tokenizers.models import BPE
from tokenizers.pre_tokenizers import ByteLevel
from transformers import (
    CsmConfig,
    CsmForConditionalGeneration,
    CsmProcessor,
    DacConfig,
    DacFeatureExtractor,
    DacModel,
    DiaConfig,
    DiaFeatureExtractor,
    DiaForConditionalGeneration,
    DiaTokenizer,
    EncodecFeatureExtractor,
    HiggsAudioV2Config,
    HiggsAudioV2ForConditionalGeneration,
    HiggsAudioV2Processor,
    HiggsAudioV2TokenizerConfig,
    HiggsAudioV2TokenizerModel,
    PocketTTSAudioTokenizerConfig,
    PocketTTSAudioTokenizerModel,
    PocketTTSConfig,
    PocketTTSFeatureExtractor,
    PocketTTSForConditionalGeneration,
    PocketTTSProcessor,
    PreTrainedTokenizerFast,
)

from avatar_v.engines.checks import CODEC

SMALL = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
HEADS = {"num_attention_heads": 2, "num_key_value_heads": 1}
TURNS = (
    "{% for m in messages %}{{ '<|begin_of_text|>[' + m['role'] + ']' }}{% for c in m['content'] %}"
    "{% if c['type'] == 'text' %}{{ c['text'] }}<|end_of_text|>{% else %}<|AUDIO|><|audio_eos|>"
    "{% endif %}{% endfor %}{% endfor %}"
)
ROLES = (
    "{% if messages[0]['role'] != 'system' %}{{ raise_exception('no system message') }}{% endif %}"
    "{% for m in messages %}{{ '[' + m['role'] + ']' }}{% for c in m['content'] %}"
    "{% if c['type'] == 'text' %}{{ c['text'] }}{% else %}<|bos|><|OUT|><|eos|>{% endif %}"
    "{% endfor %}{% endfor %}{% if add_generation_prompt %}[assistant]<|bos|>{% endif %}"
)
VOICE_FIRST = (
    "{% for m in messages %}<|voice_bos|><|voice|>{% for c in m['content'] %}"
    "{% if c['type'] == 'text' %}{{ c['text'] }}{% endif %}{% endfor %}{% endfor %}<|audio_bos|>"
)


def save_csm(folder: Path) -> None:
    names = ["<|begin_of_text|>", "<|end_of_text|>", "<|AUDIO|>", "<|audio_eos|>", "<pad>"]
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(names), bos_token=names[0], eos_token=names[1],
        pad_token=names[4], additional_special_tokens=names[2:4],
    )  # fmt: skip
    codec = {
        **SMALL, **HEADS, "model_type": "mimi", "num_key_value_heads": 2, "head_dim": 8,
        "num_filters": 4, "upsampling_ratios": [8, 6, 5, 4], "codebook_size": 32,
        "codebook_dim": 8, "vector_quantization_hidden_dimension": 8, "upsample_groups": 16,
        "num_quantizers": 4, "sliding_window": 50,
    }  # fmt: skip
    books = {"num_codebooks": 4, "vocab_size": 32}
    torch.manual_seed(0)
    model = CsmForConditionalGeneration(
        CsmConfig(
            **SMALL, **HEADS, **books, text_vocab_size=len(tokenizer), pad_token_id=4,
            codebook_pad_token_id=31, bos_token_id=0, audio_token_id=2, audio_eos_token_id=3,
            initializer_range=1.0,
            depth_decoder_config={
                **SMALL, **HEADS, **books, "backbone_hidden_size": 16, "max_position_embeddings": 5
            },
            codec_config=codec,
        )
    )  # fmt: skip
    for name, buffer in model.codec_model.named_buffers():
        if name.endswith("embed_sum"):  # codebooks begin at 0
            buffer.normal_()
    model.save_pretrained(folder)
    extractor = EncodecFeatureExtractor(sampling_rate=24_000)
    CsmProcessor(extractor, tokenizer, chat_template=TURNS).save_pretrained(folder)


def save_dia(folder: Path) -> None:
    heads = {**HEADS, "head_dim": 8}
    crossed = {"cross_num_attention_heads": 2, "cross_num_key_value_heads": 2, "cross_head_dim": 8}
    torch.manual_seed(0)
    DiaForConditionalGeneration(
        DiaConfig(
            encoder_config={**SMALL, **heads, "num_key_value_heads": 2},
            decoder_config={**SMALL, **heads, **crossed, "cross_hidden_size": 16},
        )
    ).save_pretrained(folder)
    DacModel(
        DacConfig(
            encoder_hidden_size=4, decoder_hidden_size=16, hidden_size=64, codebook_dim=4,
            sampling_rate=44_100,
        )
    ).save_pretrained(folder / CODEC)  # fmt: skip
    DiaTokenizer().save_pretrained(folder)
    DiaFeatureExtractor(sampling_rate=44_100).save_pretrained(folder)


def save_higgs(folder: Path) -> None:
    names = ["<pad>", "<|end|>", "<|OUT|>", "<|bos|>", "<|eos|>", "<|delay|>"]
    kinds = ("audio", "audio_bos", "audio_eos", "audio_delay")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(names), pad_token=names[0], eos_token=names[1],
        extra_special_tokens={f"{kind}_token": names[i] for i, kind in enumerate(kinds, 2)},
    )  # fmt: skip
    torch.manual_seed(0)
    HiggsAudioV2ForConditionalGeneration(
        HiggsAudioV2Config(
            **SMALL, **HEADS, head_dim=8, vocab_size=len(tokenizer), pad_token_id=0, bos_token_id=1,
            eos_token_id=1, num_codebooks=4, codebook_size=34, audio_stream_bos_id=32,
            audio_stream_eos_id=33, initializer_range=1.0,
            audio_token_id=2, audio_bos_token_id=3, audio_delay_token_id=5,
        )
    ).save_pretrained(folder)  # fmt: skip
    codec = HiggsAudioV2TokenizerModel(
        HiggsAudioV2TokenizerConfig(
            codebook_size=32, codebook_dim=8, target_bandwidths=[0.5], initializer_range=0.3,
            acoustic_model_config={
                "model_type": "dac", "encoder_hidden_size": 4, "decoder_hidden_size": 32,
                "hidden_size": 64, "sampling_rate": 24_000,
                "downsampling_ratios": [8, 5, 4, 2, 3], "upsampling_ratios": [8, 5, 4, 2, 3],
            },
            semantic_model_config={
                "model_type": "hubert", **SMALL, "num_attention_heads": 2,
                "conv_dim": (8,) * 7, "num_conv_pos_embeddings": 16,
                "num_conv_pos_embedding_groups": 2,
            },
        )
    )  # fmt: skip
    for name, buffer in codec.named_buffers():
        if name.endswith("codebook.embed"):  # which begin at 0
            buffer.normal_()
    codec.save_pretrained(folder / CODEC)
    extractor = DacFeatureExtractor(sampling_rate=24_000)
    tokens = {"audio_stream_bos_id": 32, "audio_stream_eos_id": 33}
    processor = HiggsAudioV2Processor(extractor, tokenizer, codec, ROLES, **tokens)
    processor.save_pretrained(folder)


def save_pocket(folder: Path) -> None:
    names = ["<unk>", "<pad>", "<|voice|>", "<|latent|>", "<|voice_bos|>", "<|audio_bos|>"]
    kinds = ("audio_prompt", "audio_latent", "audio_prompt_bos", "audio_bos")
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=byte_tokenizer(names), unk_token=names[0], pad_token=names[1],
        extra_special_tokens={f"{kind}_token": names[i] for i, kind in enumerate(kinds, 2)},
    )  # fmt: skip
    torch.manual_seed(0)
    model = PocketTTSForConditionalGeneration(
        PocketTTSConfig(
            **SMALL, num_attention_heads=2, vocab_size=len(tokenizer), latent_dim=8,
            pad_token_id=1, audio_bos_token_id=5,
            flow_head_config={
                "hidden_size": 16, "num_hidden_layers": 1, "latent_dim": 8, "condition_dim": 16
            },
            **{f"{kind}_token_id": i for i, kind in enumerate(kinds[:3], 2)},
        )
    )  # fmt: skip
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    codec = PocketTTSAudioTokenizerModel(
        PocketTTSAudioTokenizerConfig(
            **SMALL, num_attention_heads=2, num_key_value_heads=2, num_filters=4,
            upsample_groups=16, latent_dim=8, sliding_window=50,
        )
    )  # fmt: skip
    codec.save_pretrained(folder / CODEC)
    extractor = PocketTTSFeatureExtractor()
    PocketTTSProcessor(extractor, tokenizer, codec, VOICE_FIRST).save_pretrained(folder)


def byte_tokenizer(names: list[str]) -> Tokenizer:
    """A token for each byte, and those of ``names``."""
    words = dict.fromkeys([*names, *sorted(ByteLevel.alphabet())])
    tokenizer = Tokenizer(BPE({word: i for i, word in enumerate(words)}, []))
    tokenizer.pre_tokenizer, tokenizer.decoder = ByteLevel(add_prefix_space=False), ByteDecoder()
    return tokenizer
