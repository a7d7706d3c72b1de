"""Language models that chat, and UMT5, tiny and of random weights, in published layouts."""

from pathlib import Path

import torch
from tokenizers import Tokenizer, models, pre_tokenizers
from transformers import (
    LlamaConfig,
    LlamaForCausalLM,
    PreTrainedTokenizerFast,
    Qwen2Config,
    Qwen2ForCausalLM,
    UMT5Config,
    UMT5EncoderModel,
)

from cloning_models import byte_tokenizer

TURNS = (
    "{% for m in messages %}<|im_start|>{{ m['role'] }}\n{{ m['content'] }}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)
NAMES = ["<|im_start|>", "<|im_end|>", "<|endoftext|>"]
KINDS = {"qwen2": (Qwen2Config, Qwen2ForCausalLM), "llama": (LlamaConfig, LlamaForCausalLM)}


def save_text_model(folder: Path, kind: str = "qwen2", *, room: int = 8192) -> str:
    """Of ``room`` tokens, a byte each; more logits than tokens, as published models have."""
    tokenizer = byte_tokenizer([])
    tokenizer.add_special_tokens(NAMES)
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, eos_token=NAMES[1], pad_token=NAMES[2], chat_template=TURNS
    )
    fast.save_pretrained(folder)
    config, network = KINDS[kind]
    torch.manual_seed(0)
    model = network(
        config(
            vocab_size=320, hidden_size=16, intermediate_size=16, num_hidden_layers=1,
            num_attention_heads=2, num_key_value_heads=1, max_position_embeddings=room,
            tie_word_embeddings=kind == "qwen2",
        )
    )  # fmt: skip
    model.generation_config.eos_token_id = [fast.eos_token_id, fast.pad_token_id]
    model.generation_config.temperature = 0.7
    model.generation_config.do_sample = True
    model.save_pretrained(folder)
    return str(folder)


def write_umt5(folder: Path) -> Path:
    """A tiny UMT5 of random weights as `UMT5TextEncoder` reads it, in a folder that is there."""
    words = {"<pad>": 0, "</s>": 1, "<unk>": 2, "a": 3, "person": 4, "speaks": 5}
    tokenizer = Tokenizer(models.WordLevel(words, unk_token="<unk>"))
    tokenizer.pre_tokenizer = pre_tokenizers.Whitespace()
    PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token="<pad>", eos_token="</s>", unk_token="<unk>"
    ).save_pretrained(folder / "tokenizer")
    config = UMT5Config(vocab_size=8, d_model=16, d_kv=4, d_ff=32, num_layers=2, num_heads=4)
    UMT5EncoderModel(config).save_pretrained(folder / "text_encoder")
    return folder
