"""What voices say: phonemes, languages and emotions, by name. Torch is not imported."""

SILENCE, BREATH = "SIL", "BR"
SILENT = (SILENCE, BREATH)
"""Phonemes that are pauses."""
_AS_ARPABET = {
    **{"b": "B", "d": "D", "dʒ": "JH", "ð": "DH", "f": "F", "ɡ": "G", "h": "HH", "j": "Y"},
    **{"k": "K", "l": "L", "m": "M", "n": "N", "ŋ": "NG", "p": "P", "s": "S", "ʃ": "SH"},
    **{"t": "T", "tʃ": "CH", "θ": "TH", "v": "V", "w": "W", "z": "Z", "ʒ": "ZH"},
    **{"aɪ": "AY", "aʊ": "AW", "eɪ": "EY", "oɪ": "OY", "ɔø": "OY", "ə": "AH", "ɛ": "EH"},
    **{"iː": "IY", "ɪ": "IH", "uː": "UW", "ʊ": "UH", "ɑ": "AA", "ɔ": "AO", "ɜ": "ER"},
}
_IPA = (
    *("a", "ɑː", "e", "eː", "ɛː", "eʊ", "i", "o", "oː", "øː", "œ", "u", "ʊɐ", "yː", "ʏ"),
    *("β", "ç", "dz", "ɣ", "ɲ", "pf", "r", "ɾ", "ts", "x", "ʎ", "ʝ"),
)
PHONEMES = (
    *SILENT,
    *("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW"),
    *("B", "CH", "D", "DH", "F", "G", "HH", "JH", "K", "L", "M", "N", "NG", "P", "R"),
    *("S", "SH", "T", "TH", "V", "W", "Y", "Z", "ZH"),
    *_IPA,
)
"""ARPAbet without stress, and what else German, Spanish and Italian have, in IPA."""
LANGUAGES = ("en", "de", "es", "it")
EMOTIONS = ("neutral", "glad", "sad", "angry")


def from_ipa(name: str) -> str | None:
    """The phoneme of a sign of espeak-ng, without stress; the nearest that is known; "" is silence.
    None for what has none."""
    if not name:
        return SILENCE
    for near in (name, name.rstrip("ː"), name[0]):
        if near in _AS_ARPABET or near in _IPA:
            return _AS_ARPABET.get(near, near)
    return None
