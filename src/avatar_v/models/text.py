"""Prompt encoders: bytes (embedded, trained with the model) and UMT5 (full size, frozen).

Both turn a list of prompts into "b n d" with a fixed n, so that what a prompt means to the model
never depends on the other prompts of its batch. The empty prompt is the unconditional one.
Where the captions of shards were encoded ahead, training has a `StoredText` in place of either.
"""

from collections.abc import Callable, Sequence
from pathlib import Path

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn

from avatar_v.base.outside import check_pulled
from avatar_v.base.paths import indexed_weights
from avatar_v.base.states import hash_of
from avatar_v.base.stored import Count, Size
from avatar_v.models.attention import CrossAttention
from avatar_v.models.layers import MLP, LayerNorm

PAD = 256
"""The symbol behind the last byte of a prompt."""


class ByteTextEncoder(nn.Module):
    """UTF-8 bytes, a few of them to a token, through a small pre-norm transformer."""

    def __init__(
        self,
        dim: Size,
        *,
        num_layers: Count = 2,
        num_heads: Count = 4,
        byte_dim: Size = 32,
        bytes_per_token: Count = 4,
        num_bytes: Size = 256,
    ) -> None:
        super().__init__()
        if num_bytes % bytes_per_token:
            raise ValueError(f"{num_bytes} bytes do not fill tokens of {bytes_per_token}")
        if dim % num_heads:
            raise ValueError(f"dim is a multiple of num_heads, got {dim} and {num_heads}")
        self.config = {
            "dim": dim, "num_layers": num_layers, "num_heads": num_heads, "byte_dim": byte_dim,
            "bytes_per_token": bytes_per_token, "num_bytes": num_bytes,
        }  # fmt: skip
        self.dim = dim
        self.num_bytes = num_bytes
        self.bytes_per_token = bytes_per_token
        self.num_tokens = num_bytes // bytes_per_token
        self.byte_embed = nn.Embedding(PAD + 1, byte_dim)
        self.token_embed = nn.Linear(bytes_per_token * byte_dim, dim)
        self.position = nn.Parameter(torch.empty(self.num_tokens, dim))
        nn.init.normal_(self.position, std=0.02)
        self.layers = nn.ModuleList(_TextLayer(dim, num_heads) for _ in range(num_layers))
        self.norm = LayerNorm(dim, 1e-6)

    @classmethod
    def tiny(cls) -> "ByteTextEncoder":
        return cls(32, num_layers=1, num_heads=2, byte_dim=8)

    @classmethod
    def small(cls) -> "ByteTextEncoder":
        return cls(256, num_layers=1)

    def forward(self, texts: Sequence[str]) -> Float[Tensor, "b n d"]:
        """Encodings; ValueError for a prompt of more than ``num_bytes`` bytes."""
        symbols = self.symbols(texts).to(self.position.device)
        x = self.byte_embed(symbols).unflatten(1, (self.num_tokens, -1)).flatten(2)
        x = self.token_embed(x) + self.position
        for layer in self.layers:
            x = layer(x)
        return self.norm(x)

    def symbols(self, texts: Sequence[str]) -> Int[Tensor, "b num_bytes"]:
        """Bytes of each prompt, padded with ``PAD``."""
        rows = []
        for text in texts:
            data = text.encode()
            check_bytes(data, self.num_bytes)
            rows.append([*data, *[PAD] * (self.num_bytes - len(data))])
        return torch.tensor(rows, dtype=torch.long).reshape(len(rows), self.num_bytes)


def check_bytes(prompt: bytes, limit: int) -> None:
    """ValueError for a prompt of more than ``limit`` bytes."""
    if len(prompt) > limit:
        text = prompt[:60].decode(errors="ignore")
        raise ValueError(f"a prompt may have {limit} bytes, got {len(prompt)}: {text!r}…")


class UMT5TextEncoder(nn.Module):
    """Wan's text encoder: UMT5 through transformers, frozen, zeros behind the prompt's last token.

    ``folder`` is local: either a transformers folder with model and tokenizer, or a diffusers
    pipeline with `text_encoder/` and `tokenizer/`. Nothing is downloaded.
    """

    def __init__(self, folder: str | Path, *, num_tokens: Size = 512) -> None:
        super().__init__()
        from transformers import AutoTokenizer, UMT5EncoderModel

        folder = Path(folder)
        if not folder.is_dir():
            raise ValueError(f"no folder {folder} to load UMT5 from")
        split = (folder / "text_encoder").is_dir()
        model_folder = folder / "text_encoder" if split else folder
        indexed_weights(model_folder)
        if split:
            check_pulled(folder / "tokenizer")
        self.tokenizer = AutoTokenizer.from_pretrained(
            folder / "tokenizer" if split else folder,
            local_files_only=True,
            trust_remote_code=False,
        )
        self.model = UMT5EncoderModel.from_pretrained(model_folder, local_files_only=True)
        self.model.requires_grad_(False).eval()
        self.num_tokens = num_tokens
        self.dim = int(self.model.config.d_model)

    @property
    def config(self) -> dict[str, int]:
        return {"num_tokens": self.num_tokens}

    def train(self, mode: bool = True) -> "UMT5TextEncoder":
        """Stays in evaluation mode: it is frozen."""
        return super().train(False)

    @torch.no_grad()
    def forward(self, texts: Sequence[str]) -> Float[Tensor, "b n d"]:
        """Hidden states of the last layer; ValueError for a prompt longer than ``num_tokens``."""
        tokens = self.tokenizer(
            [" ".join(text.split()) for text in texts], padding="longest", return_tensors="pt"
        )
        # model.device is that of the embedding, which may travel (parallel/offload.py)
        tokens = tokens.to(self.model.encoder.final_layer_norm.weight.device)
        longest = int(tokens.attention_mask.sum(1).max())
        if longest > self.num_tokens:
            raise ValueError(f"a prompt may have {self.num_tokens} tokens, got {longest}")
        hidden = self.model(tokens.input_ids, tokens.attention_mask).last_hidden_state
        hidden = (hidden * tokens.attention_mask[..., None])[:, : self.num_tokens]
        padding = self.num_tokens - hidden.shape[1]
        return torch.nn.functional.pad(hidden.float(), (0, 0, 0, padding))

    def save_backbone(self, folder: Path) -> None:
        """The model and its tokenizer in transformers' layout."""
        self.model.save_pretrained(folder)
        self.tokenizer.save_pretrained(folder)


class StoredText(nn.Module):
    """In place of an encoder whose encodings of captions lie beside the clips (`avatar-v shards
    encode --text`): it knows the empty prompt alone.

    Args:
        empty: the encoding of "", of all tokens.
        hash: of the encoder.
        trained: whether the encoder has weights that want a gradient.
        reload: gives the encoder, for the weights that a run leaves.
    """

    def __init__(
        self,
        empty: Float[Tensor, "n d"],
        hash: str,
        reload: Callable[[], ByteTextEncoder | UMT5TextEncoder],
        *,
        trained: bool,
    ) -> None:
        super().__init__()
        self.empty = nn.Parameter(empty, requires_grad=trained)
        self.num_tokens, self.dim = empty.shape
        self.hash, self.reload = hash, reload

    @classmethod
    def of(
        cls,
        encoder: ByteTextEncoder | UMT5TextEncoder,
        reload: Callable[[], ByteTextEncoder | UMT5TextEncoder],
    ) -> "StoredText":
        with torch.no_grad():
            empty = encoder([""])[0].float().clone()
        trained = any(p.requires_grad for p in encoder.parameters())
        return cls(empty, text_hash(encoder), reload, trained=trained)

    def forward(self, texts: Sequence[str]) -> Float[Tensor, "b n d"]:
        """ValueError for a prompt that is not empty."""
        if text := next(filter(None, texts), ""):
            raise ValueError(f"models.stored_text leaves the encoder out that {text[:60]!r} needs")
        return self.empty.float().repeat(len(texts), 1, 1)  # a copy: FSDP2 takes its own back

    def padded(self, states: Float[Tensor, "b k d"]) -> Float[Tensor, "b n d"]:
        """Stored encodings as the encoder gives them."""
        padding = self.num_tokens - states.shape[1]
        return torch.nn.functional.pad(states.float(), (0, 0, 0, padding))

    def require_frozen(self) -> None:
        """ValueError where the encoder would be trained."""
        if self.empty.requires_grad:
            raise ValueError(
                "models.stored_text: this stage trains its text encoder, so captions cannot be "
                "encoded ahead; it goes with UMT5, LoRA and stages that train the DiT alone"
            )


def text_hash(encoder: ByteTextEncoder | UMT5TextEncoder) -> str:
    """16 hex digits that say which encoder made some encodings."""
    kind = UMT5TextEncoder if isinstance(encoder, UMT5TextEncoder) else ByteTextEncoder
    return hash_of({"class": kind.__name__, **encoder.config}, encoder.named_parameters())


def without_padding(states: Float[Tensor, "n d"]) -> Float[Tensor, "k d"]:
    """The encoding of a prompt without the zeros behind its last token."""
    return states[: int(states.any(1).nonzero().max()) + 1]


class _TextLayer(nn.Module):
    def __init__(self, dim: int, num_heads: int) -> None:
        super().__init__()
        self.attention_norm = LayerNorm(dim, 1e-6)
        self.attention = CrossAttention(dim, num_heads, 1e-6)
        self.ffn_norm = LayerNorm(dim, 1e-6)
        self.ffn = MLP(dim, 4 * dim, dim)

    def forward(self, x: Float[Tensor, "b n d"]) -> Float[Tensor, "b n d"]:
        y = self.attention_norm(x)
        x = x + self.attention(y, y)
        return x + self.ffn(self.ffn_norm(x))
