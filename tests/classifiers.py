"""Tiny models of transformers with random weights, in folders, as users supply them."""

import json
from pathlib import Path
from typing import Any

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    BertConfig,
    BertForSequenceClassification,
    BertTokenizer,
    BlipConfig,
    BlipForConditionalGeneration,
    BlipProcessor,
    CLIPConfig,
    CLIPImageProcessorPil,
    CLIPModel,
    CLIPVisionConfig,
    LlamaConfig,
    LlavaConfig,
    LlavaForConditionalGeneration,
    LlavaProcessor,
    PreTrainedTokenizerFast,
    VideoMAEConfig,
    VideoMAEModel,
    ViTConfig,
    ViTForImageClassification,
    Wav2Vec2Config,
    Wav2Vec2CTCTokenizer,
    Wav2Vec2FeatureExtractor,
    Wav2Vec2ForCTC,
    Wav2Vec2ForSequenceClassification,
    Wav2Vec2Processor,
    WhisperConfig,
    WhisperFeatureExtractor,
    WhisperForConditionalGeneration,
    WhisperProcessor,
    WhisperTokenizer,
)
from transformers.convert_slow_tokenizer import bytes_to_unicode
from transformers.models.blip.image_processing_pil_blip import BlipImageProcessorPil

SIZES: dict[str, Any] = {
    "hidden_size": 16,
    "num_hidden_layers": 1,
    "num_attention_heads": 2,
    "intermediate_size": 16,
}


def text_classifier(folder: Path, *labels: str) -> str:
    """Reads words of one letter, which have a label of their own."""
    torch.manual_seed(0)
    names = {i: label for i, label in enumerate(labels)}
    vocabulary = {"[PAD]": 0, "[UNK]": 1, **{label[0]: i + 2 for i, label in names.items()}}
    tokenizer = Tokenizer(models.WordLevel(vocabulary, unk_token="[UNK]"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    words = {"unk_token": "[UNK]", "pad_token": "[PAD]", "model_max_length": 16}
    PreTrainedTokenizerFast(tokenizer_object=tokenizer, **words).save_pretrained(folder)
    config = BertConfig(vocab_size=16, max_position_embeddings=16, id2label=names, **SIZES)
    config.problem_type = "multi_label_classification"
    BertForSequenceClassification(config).save_pretrained(folder)
    return str(folder)


def picture_classifier(folder: Path, *labels: str) -> str:
    """Says something of pictures of 16 pixels."""
    torch.manual_seed(0)
    config = ViTConfig(image_size=16, patch_size=8, id2label=dict(enumerate(labels)), **SIZES)
    model = ViTForImageClassification(config)
    with torch.no_grad():
        for x in model.classifier.parameters():
            x.normal_()
    return _saved(model, folder)


def video_network(folder: Path, kind: str) -> str:
    """A "clip" or a "videomae" of pictures of 16 pixels."""
    torch.manual_seed(0)
    if kind == "clip":
        pictures = SIZES | {"image_size": 16, "patch_size": 8}
        model = CLIPModel(CLIPConfig(vision_config=pictures, text_config=SIZES, projection_dim=8))
    else:
        model = VideoMAEModel(VideoMAEConfig(image_size=16, patch_size=8, num_frames=4, **SIZES))
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)  # so that what is seen changes the vector
    return _saved(model, folder)


def _saved(model: Any, folder: Path) -> str:
    model.save_pretrained(folder)
    values = {"size": {"height": 16, "width": 16}, "image_mean": [0.5] * 3, "image_std": [0.5] * 3}
    (folder / "preprocessor_config.json").write_text(json.dumps(values))
    return str(folder)


def recogniser(folder: Path, letter: str) -> str:
    """Hears this letter whatever is said."""
    folder.mkdir()
    vocabulary = {"<pad>": 0, "<unk>": 1, "|": 2, letter: 3}
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    tokenizer = Wav2Vec2CTCTokenizer(str(folder / "vocab.json"))
    Wav2Vec2Processor(Wav2Vec2FeatureExtractor(), tokenizer).save_pretrained(folder)
    config = Wav2Vec2Config(
        vocab_size=4, conv_dim=(8, 8), conv_stride=(20, 16), conv_kernel=(20, 16),
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        **SIZES,
    )  # fmt: skip
    model = Wav2Vec2ForCTC(config)
    with torch.no_grad():
        model.lm_head.bias[3] = 1e3
    model.save_pretrained(folder)
    return str(folder)


def sound_classifier(folder: Path, *labels: str) -> str:
    """Says something of a sound."""
    torch.manual_seed(0)
    config = Wav2Vec2Config(
        conv_dim=(8, 8), conv_stride=(20, 16), conv_kernel=(20, 16), classifier_proj_size=8,
        num_conv_pos_embeddings=4, num_conv_pos_embedding_groups=2,
        id2label=dict(enumerate(labels)), **SIZES,
    )  # fmt: skip
    model = Wav2Vec2ForSequenceClassification(config)
    with torch.no_grad():
        for x in model.classifier.parameters():
            x.normal_()
    model.save_pretrained(folder)
    Wav2Vec2FeatureExtractor().save_pretrained(folder)
    return str(folder)


def whisper(folder: Path, *languages: str) -> str:
    """Hears a few letters, in one of some languages."""
    letters = list(bytes_to_unicode().values())
    words = ["<|endoftext|>", "<|startoftranscript|>", *(f"<|{code}|>" for code in languages)]
    words += [f"<|{name}|>" for name in ("translate", "transcribe", "nospeech", "notimestamps")]
    words += [f"<|{n / 50:.2f}|>" for n in range(1501)]
    place = {word: len(letters) + n for n, word in enumerate(words)}
    vocabulary = {letter: n for n, letter in enumerate(letters)} | {words[0]: place[words[0]]}
    tokenizer = WhisperTokenizer(vocab=vocabulary, merges=[])
    tokenizer.add_tokens(words[1:], special_tokens=True)
    ends = {"bos_token_id": place[words[0]], "eos_token_id": place[words[0]]}
    small: dict[str, int] = {"d_model": 16, "num_mel_bins": 80}
    for part in ("encoder", "decoder"):
        small |= {f"{part}_layers": 2, f"{part}_attention_heads": 2, f"{part}_ffn_dim": 16}
    torch.manual_seed(0)
    config = WhisperConfig(
        vocab_size=len(tokenizer), pad_token_id=place[words[0]],
        decoder_start_token_id=place[words[1]], **ends, **small,
    )  # fmt: skip
    model = WhisperForConditionalGeneration(config)
    for parameter in model.parameters():
        parameter.data.normal_(std=0.5)  # so that what is heard changes what is said
    vars(model.generation_config).update(
        lang_to_id={f"<|{code}|>": place[f"<|{code}|>"] for code in languages},
        task_to_id={name: place[f"<|{name}|>"] for name in ("translate", "transcribe")},
        no_timestamps_token_id=place["<|notimestamps|>"], max_initial_timestamp_index=50,
        _from_model_config=False, begin_suppress_tokens=None,
        is_multilingual=True, alignment_heads=[[0, 0], [1, 1]], max_length=20,
    )  # fmt: skip
    model.save_pretrained(folder)
    WhisperProcessor(WhisperFeatureExtractor(), tokenizer).save_pretrained(folder)
    return str(folder)


def chatting_captioner(folder: Path) -> str:
    """Says words of a dozen of pictures of 32 pixels and of a question about them."""
    said = "a person before the red blue wall says"
    names = ["<pad>", "<unk>", "<end>", "<image>", *said.split(" ")]
    words = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, "<unk>"))
    words.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", unk_token="<unk>", eos_token="<end>",
        extra_special_tokens={"image_token": "<image>"},
    )  # fmt: skip
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    small |= {"num_attention_heads": 2}
    torch.manual_seed(0)
    config = LlavaConfig(
        vision_config=CLIPVisionConfig(**small, image_size=32, patch_size=16),
        text_config=LlamaConfig(**small, vocab_size=len(names), pad_token_id=0, eos_token_id=2),
        image_token_index=names.index("<image>"), image_seq_length=4, vision_feature_layer=-1,
    )  # fmt: skip
    network = LlavaForConditionalGeneration(config)
    network.generation_config.suppress_tokens = [0, 1, 2, 3]  # it says words alone
    for parameter in network.parameters():
        parameter.data.normal_(std=0.5)  # so that what is seen changes what is said
    network.save_pretrained(folder)
    template = (
        "{% for part in messages[0]['content'] %}"
        "{{ '<image> ' if part['type'] == 'image' else part['text'] }}{% endfor %}"
    )
    size = {"height": 32, "width": 32}
    LlavaProcessor(
        CLIPImageProcessorPil(size=size, crop_size=size), tokenizer, patch_size=16,
        vision_feature_select_strategy="default", chat_template=template,
        num_additional_image_tokens=1,
    ).save_pretrained(folder)  # fmt: skip
    return str(folder)


def captioner(folder: Path) -> str:
    """Says words of a dozen of pictures of 32 pixels."""
    words = "[PAD] [UNK] [CLS] [SEP] [MASK] a person before the red blue wall [DEC] [ENC]"
    (folder / "vocab.txt").write_text("\n".join(words.split()))
    tokenizer = BertTokenizer(str(folder / "vocab.txt"))
    small = {"hidden_size": 16, "intermediate_size": 16, "num_hidden_layers": 1}
    small |= {"num_attention_heads": 2, "projection_dim": 16}
    text = {"vocab_size": len(tokenizer), "encoder_hidden_size": 16, "bos_token_id": 12}
    text |= {"eos_token_id": 3, "sep_token_id": 3, "pad_token_id": 0}
    vision = {"image_size": 32, "patch_size": 16}
    torch.manual_seed(0)
    config = BlipConfig(text_config=small | text, vision_config=small | vision)
    network = BlipForConditionalGeneration(config)
    for parameter in network.parameters():
        parameter.data.normal_(std=0.5)  # so that what is seen changes what is said
    network.save_pretrained(folder)
    pictures = BlipImageProcessorPil(size={"height": 32, "width": 32})
    BlipProcessor(pictures, tokenizer).save_pretrained(folder)
    return str(folder)
