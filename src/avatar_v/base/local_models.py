"""Models of transformers in local folders: only weights in safetensors, no code of a folder."""

from pathlib import Path
from typing import Any

from safetensors import SafetensorError

from avatar_v.base.outside import check_pulled

FAULTS = (ValueError, OSError, KeyError, TypeError, RuntimeError, SafetensorError)
"""What transformers raises for a folder that is damaged or of another kind."""


def load_part(loader: Any, folder: str | Path, source: str, **how: Any) -> Any:
    """What a ``loader`` of transformers (AutoTokenizer …) makes of a folder. ValueError, which says
    what to supply, for a fault."""
    check_pulled(folder)
    try:
        return loader.from_pretrained(folder, local_files_only=True, trust_remote_code=False, **how)
    except FAULTS as error:
        reason = str(error).partition("\n")[0]
        raise ValueError(f"{folder} cannot be loaded ({reason}); expected {source}") from error


def load_model(
    loader: Any, folder: str | Path, source: str, *, dtype: str = "float32"
) -> tuple[Any, list[str]]:
    """The same of a frozen network, and the names of weights that the folder lacks. ``dtype``
    "auto" is that of the file."""
    how = {"use_safetensors": True, "output_loading_info": True, "dtype": dtype}
    model, loaded = load_part(loader, folder, source, **how)
    return model.eval().requires_grad_(False), sorted(loaded["missing_keys"])


def load_whole(loader: Any, folder: str | Path, source: str, *, dtype: str = "float32") -> Any:
    """The same of a folder that has all weights, else ValueError; on a GPU where there is one."""
    import torch

    model, lacks = load_model(loader, folder, source, dtype=dtype)
    if lacks:
        raise ValueError(f"{folder} lacks {', '.join(lacks[:3])}; expected {source}")
    return model.to("cuda" if torch.cuda.is_available() else "cpu")
