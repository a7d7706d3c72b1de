"""Models of transformers in local folders: only weights in safetensors, no code of a folder."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError

HERE: dict[str, Any] = {"local_files_only": True, "trust_remote_code": False}
FAULTS = (ValueError, OSError, KeyError, TypeError, RuntimeError, SafetensorError)
"""What transformers raises for a folder that is damaged or of another kind."""


def load_model(loader: Any, folder: Path, source: str) -> tuple[Any, list[str]]:
    """The network that a ``loader`` of transformers (AutoModel…) makes of a folder, in fp32, and
    the names of weights that it lacks. ValueError, which says what to supply, for a fault."""
    try:
        model, loaded = loader.from_pretrained(
            folder, use_safetensors=True, output_loading_info=True, **HERE
        )
    except FAULTS as error:
        raise ValueError(f"{folder} cannot be loaded ({error}); expected {source}") from error
    return model.float().eval().requires_grad_(False), sorted(loaded["missing_keys"])
