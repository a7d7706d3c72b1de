"""`avatar-v weights`: open weights and LoRA of Wan to and from ours; ours joined, with adapters,
and in fewer bytes."""

import argparse
import warnings
from pathlib import Path

from avatar_v.base.stored import Count, Size, converted
from avatar_v.base.words import counted
from avatar_v.voices.shipped import SPEAKER_FILE
from avatar_v.weights.card import AdapterSpec, read_adapter_card, read_card, weights_folder


def add_parser(subparsers: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    """Register `weights` and its actions."""
    parser = subparsers.add_parser(
        "weights", help="convert Wan weights, join and compress ours", allow_abbrev=False
    )
    actions = parser.add_subparsers(dest="action", metavar="ACTION", required=True)
    add = actions.add_parser(
        "import-wan",
        help="weights of Wan → DiT folder",
        description="SRC is a folder in diffusers' or in the publisher's own layout (config.json "
        "and diffusion_pytorch_model.safetensors, one file or shards), a pipeline with a "
        "transformer/ folder, or one .safetensors file, as ComfyUI takes it. Matrices of 8 bits "
        "(fp8) become bf16, with their scales. Layouts of I2V and Wan 2.2 A14B, which is two "
        "networks, are refused.",
        allow_abbrev=False,
    )
    add.add_argument("source", metavar="SRC")
    add.add_argument("out", metavar="OUT", help="folder to create")
    add.add_argument("--audio-dim", type=int, default=768, help="audio feature width (768)")
    add.add_argument("--audio-every", type=int, default=3, help="audio in every k-th block (3)")
    export = actions.add_parser(
        "export-wan",
        help="DiT folder → diffusers' WanTransformer3DModel folder",
        allow_abbrev=False,
    )
    export.add_argument("source", metavar="SRC")
    export.add_argument("out", metavar="OUT", help="folder to create")
    export.add_argument(
        "--drop-extras",
        action="store_true",
        help="leave trained audio, motion and face modules out, and the mask of causal weights: "
        "Wan has none",
    )
    average = actions.add_parser(
        "average",
        help="pipeline folders of one ancestor → their mean",
        description="The mean is of DiT, encoders and motion network; VAE and card are those of "
        "the last folder.",
        allow_abbrev=False,
    )
    average.add_argument("sources", metavar="DIR", nargs="+")
    average.add_argument("--out", metavar="OUT", required=True, help="folder to create")
    _add_dtype(average)

    decoder = actions.add_parser(
        "decoder",
        help="pipeline folder → the same with the decoder of another VAE",
        description="The two VAEs have the same encoder (recipes with decoder_only: true).",
        allow_abbrev=False,
    )
    decoder.add_argument("source", metavar="DIR")
    decoder.add_argument("vae", metavar="VAE", help="folder of the VAE")
    decoder.add_argument("--out", metavar="OUT", required=True, help="folder to create")
    _add_adapter_actions(actions)
    _add_size_actions(actions)


def _add_dtype(action: argparse.ArgumentParser) -> None:
    action.add_argument(
        "--dtype",
        choices=("float32", "float16", "bfloat16"),
        default="float32",
        help="of the stored weights (float32)",
    )


def _add_size_actions(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    slim = actions.add_parser(
        "slim",
        help="pipeline folder, or voice model → the same in fewer bytes",
        description="With --base, OUT holds what DIR changes in the weights BASE beside it, and "
        "needs them there. A model of recipes/voices has the parts llama and codec.",
        allow_abbrev=False,
    )
    slim.add_argument("source", metavar="DIR")
    slim.add_argument("--base", metavar="BASE", help="weights with much in common, beside OUT")
    slim.add_argument(
        "--error",
        metavar="PART=E",
        nargs="+",
        required=True,
        help="parts to compress (vae, dit, text, audio, motion), and the part of its norm by which "
        "a tensor may differ: 8e-4; 0: none",
    )
    slim.add_argument("--out", metavar="OUT", required=True, help="folder to create")
    whole = actions.add_parser(
        "whole",
        help="pipeline folder of fewer bytes → one that is whole and needs no base",
        allow_abbrev=False,
    )
    whole.add_argument("source", metavar="DIR", help="folder, or the name of shipped weights")
    whole.add_argument("--out", metavar="OUT", required=True, help="folder to create")


def _add_adapter_actions(actions: "argparse._SubParsersAction[argparse.ArgumentParser]") -> None:
    add = actions.add_parser(
        "import-lora",
        help="LoRA of Wan by another trainer → adapter",
        description="SRC is a .safetensors file, or the folder of one, with the names of kohya, "
        "ComfyUI, diffusers, DiffSynth or peft. Keys that are of no matrix of BASE are an error.",
        allow_abbrev=False,
    )
    add.add_argument("source", metavar="SRC")
    add.add_argument("out", metavar="OUT", help="folder to create")
    add.add_argument(
        "--base", metavar="BASE", required=True, help="pipeline folder, or that of a DiT alone"
    )
    add.add_argument(
        "--drop-unmatched", action="store_true", help="leave such keys out, and say which"
    )
    merge = actions.add_parser(
        "merge",
        help="weights and adapters of LoRA → weights",
        description="BASE is a name that ships, a pipeline folder, or the folder of a DiT alone. "
        "The card is that of the last adapter.",
        allow_abbrev=False,
    )
    merge.add_argument("source", metavar="BASE", help="the weights that they were trained on")
    merge.add_argument(
        "adapters", metavar="ADAPTER[:SCALE]", nargs="+", help="runs/NAME/adapter; 1 is as trained"
    )
    merge.add_argument("--out", metavar="OUT", required=True, help="folder to create")
    merge.add_argument("--vae", metavar="DIR", help="a VAE in place of that of BASE")
    merge.add_argument(
        "--any-base", action="store_true", help="also on other weights than they were trained on"
    )
    _add_dtype(merge)
    export = actions.add_parser(
        "export-lora",
        help="adapter → diffusers' pytorch_lora_weights.safetensors",
        description="For WanTransformer3DModel.load_lora_adapter and pipelines of Wan.",
        allow_abbrev=False,
    )
    export.add_argument("source", metavar="ADAPTER")
    export.add_argument("out", metavar="OUT", help="folder to create")
    export.add_argument(
        "--drop-extras",
        action="store_true",
        help="leave audio, motion and what was trained whole out: Wan has none",
    )


def _slim_voice(args: argparse.Namespace) -> int:
    from avatar_v.voices.slim import PARTS, make_slim_voice
    from avatar_v.weights.slim import parse_errors

    if args.base is not None:
        raise ValueError("--base: a voice model has none")
    make_slim_voice(args.source, args.out, parse_errors(args.error, PARTS))
    print(f"wrote {args.out}")
    return 0


def run(args: argparse.Namespace) -> int:
    """Carry out the parsed command. A missing folder is an error before torch is imported."""
    if args.action == "whole":
        args.source = weights_folder(args.source)
    if args.action == "slim" and (Path(args.source) / SPEAKER_FILE).is_file():
        return _slim_voice(args)
    if args.action in ("average", "decoder", "slim", "whole"):
        for folder in args.sources if args.action == "average" else [args.source]:
            read_card(folder)
    elif args.action == "export-lora":
        read_adapter_card(args.source)
    elif args.action == "merge":
        args.adapters = [AdapterSpec.of(word) for word in args.adapters]
        if not (Path(args.source) / "config.json").is_file():  # that of a DiT alone
            args.source = weights_folder(args.source)
            read_card(args.source)
    elif not Path(args.source).exists():
        raise ValueError(f"{args.source}: no such folder or file; expected weights of Wan")
    if args.action == "import-wan":
        converted(args.audio_dim, Size, where="--audio-dim")
        converted(args.audio_every, Count, where="--audio-every")
    import torch

    from avatar_v.weights.adapter import merge_to
    from avatar_v.weights.average import average_pipelines, replace_decoder
    from avatar_v.weights.slim import make_slim, make_whole, parse_errors
    from avatar_v.weights.wan import export_wan, import_wan
    from avatar_v.weights.wan_lora import export_lora, few, import_lora

    if args.action == "average":
        average_pipelines(args.sources, args.out, dtype=getattr(torch, args.dtype))
    elif args.action == "decoder":
        replace_decoder(args.source, args.vae, args.out)
    elif args.action == "slim":
        make_slim(args.source, args.out, parse_errors(args.error), args.base)
    elif args.action == "whole":
        make_whole(args.source, args.out)
    elif args.action == "merge":
        merge_to(
            args.source,
            args.adapters,
            args.out,
            any_base=args.any_base,
            vae=args.vae,
            dtype=getattr(torch, args.dtype),
        )
    elif args.action == "export-lora":
        export_lora(args.source, args.out, drop_extras=args.drop_extras)
    elif args.action == "import-lora":
        left = import_lora(args.source, args.base, args.out, drop_unmatched=args.drop_unmatched)
        if left:
            warnings.warn(f"{counted(len(left), 'key')} left out: {few(left)}", stacklevel=2)
    elif args.action == "import-wan":
        import_wan(args.source, args.out, audio_dim=args.audio_dim, audio_every=args.audio_every)
    else:
        export_wan(args.source, args.out, drop_extras=args.drop_extras)
    print(f"wrote {args.out}")
    return 0
