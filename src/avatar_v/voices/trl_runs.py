"""What trl's trainers of voices share: settings, tokenizer, folders and the model that is left."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, TypeVar

import torch
from transformers import PreTrainedTokenizerFast

from avatar_v.base.paths import whole_folder
from avatar_v.base.progress import progress_bar
from avatar_v.voices.model import VoiceModel
from avatar_v.voices.tokens import END, PAD, START, Vocabulary

MODEL, CHECKPOINTS = "voice", "checkpoints"
Config = TypeVar("Config")


def folder_of(out: str, *, resume: bool) -> Path:
    """The folder of a run. ValueError for one that holds a run which shall not go on."""
    if (Path(out) / CHECKPOINTS).is_dir() and not resume:
        raise ValueError(f"{out} holds a run: --ckpt_path last goes on; or choose another --out")
    return Path(out)


def trl_config(kind: type[Config], out: Path, seed: int, fields: dict[str, Any]) -> Config:
    """Settings of a trainer, which is one process with one device. ValueError for fields that trl
    does not know or take, and for one process of several."""
    given = {
        "output_dir": str(out / CHECKPOINTS),
        "seed": seed,
        "report_to": "none",
        "use_cpu": not torch.cuda.is_available(),
    }
    try:
        config: Any = kind(**given | fields)
    except (TypeError, ValueError) as error:
        raise ValueError(f"trainer: {error}") from error
    if config.world_size > 1:
        raise ValueError(
            f"voices are trained by one process, and this is one of {config.world_size}: start it "
            "without torchrun"
        )
    # transformers would spread each batch over all GPUs of the machine, by threads of one process,
    # behind which neither rollouts nor the loss find their model
    config._n_gpu = min(config.n_gpu, 1)
    return config


def number_tokenizer(vocabulary: Vocabulary) -> PreTrainedTokenizerFast:
    """Tokens are their numbers: trl asks for a tokenizer, and sequences are tokens already."""
    from tokenizers import Tokenizer
    from tokenizers.models import WordLevel
    from tokenizers.pre_tokenizers import WhitespaceSplit

    tokenizer = Tokenizer(
        WordLevel({str(number): number for number in range(vocabulary.size)}, str(PAD))
    )
    tokenizer.pre_tokenizer = WhitespaceSplit()  # pyright: ignore[reportAttributeAccessIssue]
    return PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, pad_token=str(PAD), bos_token=str(START), eos_token=str(END)
    )


@contextmanager
def encoding_bar(name: str) -> Iterator[Callable[[int, int], None]]:
    """What shows how many files of a corpus are encoded."""
    with progress_bar() as progress:
        task = progress.add_task(name, total=None)
        yield lambda done, num: progress.update(task, completed=done, total=num)


def finished(folder: Path, model: VoiceModel) -> Path:
    """The folder, with the trained model. ValueError, and nothing is written, where weights are not
    finite."""
    if not all(bool(weight.isfinite().all()) for weight in model.llama.parameters()):
        raise ValueError(f"the weights are not finite, and nothing is written to {folder}")
    model.llama.float().eval()
    with whole_folder(folder) as partial:
        model.save(partial)
    return folder
