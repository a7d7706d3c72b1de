"""Phonemes, words and a small grammar: what is said in the world.

Phoneme names follow ARPAbet. A mark ' after a vowel carries the word's stress. Each sentence
belongs to exactly one split by a hash of its words, so that no test sentence was ever trained on.
"""

import zlib
from dataclasses import dataclass

import numpy as np

from avatar_v.base.seeds import stream
from avatar_v.world.splits import Split, split_of

VOWELS = ("AA", "AE", "AH", "AO", "AW", "AY", "EH", "ER", "EY", "IH", "IY", "OW", "OY", "UH", "UW")
CONSONANTS = (
    *("P", "B", "T", "D", "K", "G", "M", "N", "NG", "F", "V", "TH", "DH"),
    *("S", "Z", "SH", "CH", "JH", "HH", "L", "R", "W", "Y"),
)
PHONEMES = ("SIL", "BR", *VOWELS, *CONSONANTS)
"""Index = phoneme id. SIL is a pause, BR an audible breath."""

PHONEME_ID = {name: i for i, name in enumerate(PHONEMES)}
LIP_CLOSURES = ("P", "B", "M")


@dataclass(frozen=True)
class Word:
    """A word as it is said; ``stressed`` is the index of its stressed phoneme or -1."""

    text: str
    phonemes: tuple[str, ...]
    stressed: int


@dataclass(frozen=True)
class Sentence:
    """Words, the indices of words with a possible pause after them, and whether it asks."""

    words: tuple[Word, ...]
    breaks: tuple[int, ...]
    question: bool

    @property
    def text(self) -> str:
        return " ".join(word.text for word in self.words)


def sentence(speech_id: int, index: int) -> Sentence:
    """The ``index``-th sentence of a speech, of the same split as the speech id."""
    split = split_of(speech_id)
    rng = stream("sentence", speech_id, index)
    while True:
        drawn = _draw(rng)
        if sentence_split(drawn.text) == split:
            return drawn


def sentence_split(text: str) -> Split:
    """The one split that a sentence belongs to: 7 of 10 are for training."""
    splits: dict[int, Split] = {7: "validation", 8: "test", 9: "reserved"}
    return splits.get(zlib.crc32(text.encode()) % 10, "train")


def _draw(rng: np.random.Generator) -> Sentence:
    template = TEMPLATES[rng.integers(len(TEMPLATES))]
    words: list[Word] = []
    breaks = []
    for slot in template.rstrip("?").split():
        if slot == "|":
            breaks.append(len(words) - 1)
        else:
            choices = LEXICON[slot]
            words.append(choices[rng.integers(len(choices))])
    return Sentence(tuple(words), tuple(breaks), template.endswith("?"))


TEMPLATES = (
    "det adjective noun past det noun",
    "det noun past det adjective noun | preposition det noun",
    "pronoun past det adjective noun adverb",
    "time | pronoun modal base det noun",
    "pronoun modal base det noun | preposition det adjective noun",
    "number adjective plural moved preposition det noun",
    "det adjective noun moved adverb | preposition det noun",
    "greeting | pronoun modal base det adjective noun",
    "modal pronoun base det noun preposition det noun ?",
    "adverb | det noun past number plural",
    "pronoun past number plural | joiner pronoun past det noun",
    "plural joiner plural moved preposition det adjective noun",
    "greeting | det noun moved preposition det noun time",
    "modal pronoun base number adjective plural time ?",
)

_TABLE = {
    "det": """
    the DH AH, my M AY, your Y AO R, our AW ER, his HH IH Z, her HH ER, this DH IH' S, that DH
    AE' T, every EH' V R IY, one W AH' N, some S AH M
    """,
    "pronoun": """
    i AY, you Y UW, we W IY, they DH EY, she SH IY, he HH IY, nobody N OW' B AA D IY, everyone
    EH' V R IY W AH N
    """,
    "modal": """
    can K AE N, will W IH L, should SH UH D, could K UH D, must M AH' S T, may M EY, might M
    AY T, would W UH D
    """,
    "joiner": """
    and AE N D, but B AH T, or AO R, while W AY L, because B IH K AO' Z, so S OW
    """,
    "number": """
    two T UW', three TH R IY', four F AO' R, five F AY' V, six S IH' K S, seven S EH' V AH N,
    eight EY' T, nine N AY' N, ten T EH' N, twelve T W EH' L V, many M EH' N IY, few F Y UW',
    fifty F IH' F T IY
    """,
    "greeting": """
    hello HH AH L OW', welcome W EH' L K AH M, yes Y EH' S, well W EH' L, listen L IH' S AH N,
    thanks TH AE' NG K S, okay OW K EY', please P L IY' Z, sorry S AA' R IY, now N AW', wait W
    EY' T
    """,
    "time": """
    today T AH D EY', tomorrow T AH M AA' R OW, yesterday Y EH' S T ER D EY, tonight T AH N
    AY' T, monday M AH' N D EY, friday F R AY' D EY, sunday S AH' N D EY, later L EY' T ER,
    soon S UW' N, before B IH F AO' R, always AO' L W EY Z, sometimes S AH' M T AY M Z
    """,
    "adverb": """
    quietly K W AY' AH T L IY, slowly S L OW' L IY, quickly K W IH' K L IY, happily HH AE' P
    AH L IY, maybe M EY' B IY, suddenly S AH' D AH N L IY, finally F AY' N AH L IY, carefully
    K EH' R F AH L IY, badly B AE' D L IY, often AO' F AH N, really R IY' L IY, nearby N IH R
    B AY', above AH B AH' V, together T AH G EH' DH ER, abroad AH B R AO' D, perhaps P ER HH
    AE' P S
    """,
    "preposition": """
    near N IH R, over OW' V ER, under AH' N D ER, behind B IH HH AY' N D, with W IH DH, from F
    R AH M, by B AY, for F AO R, beside B IH S AY' D, across AH K R AO' S, through TH R UW,
    above AH B AH V, without W IH DH AW' T, past P AE' S T
    """,
    "adjective": """
    old OW' L D, new N UW', blue B L UW', green G R IY' N, small S M AO' L, big B IH' G, brown
    B R AW' N, warm W AO' R M, cold K OW' L D, happy HH AE' P IY, purple P ER' P AH L, yellow
    Y EH' L OW, famous F EY' M AH S, modern M AA' D ER N, empty EH' M P T IY, heavy HH EH' V
    IY, simple S IH' M P AH L, broken B R OW' K AH N, golden G OW' L D AH N, silver S IH' L V
    ER, bitter B IH' T ER, smooth S M UW' DH, deep D IY' P, open OW' P AH N, young Y AH' NG,
    wooden W UH' D AH N, funny F AH' N IY, narrow N EH' R OW, perfect P ER' F IH K T, bright B
    R AY' T, rough R AH' F, soft S AO' F T, beautiful B Y UW' T AH F AH L, wonderful W AH' N D
    ER F AH L, shy SH AY', cheap CH IY' P, huge HH Y UW' JH, noisy N OY' Z IY, round R AW' N
    D, strange S T R EY' N JH, thick TH IH' K, major M EY' JH ER
    """,
    "noun": """
    teacher T IY' CH ER, window W IH' N D OW, river R IH' V ER, market M AA' R K AH T, mother
    M AH' DH ER, father F AA' DH ER, baby B EY' B IY, paper P EY' P ER, water W AO' T ER,
    apple AE' P AH L, bottle B AA' T AH L, garden G AA' R D AH N, kitchen K IH' CH AH N,
    mountain M AW' N T AH N, village V IH' L IH JH, music M Y UW' Z IH K, picture P IH' K CH
    ER, story S T AO' R IY, letter L EH' T ER, number N AH' M B ER, house HH AW' S, boat B OW'
    T, bridge B R IH' JH, road R OW' D, room R UW' M, book B UH' K, voice V OY' S, child CH
    AY' L D, friend F R EH' N D, woman W UH' M AH N, man M AE' N, doctor D AA' K T ER, farmer
    F AA' R M ER, painter P EY' N T ER, summer S AH' M ER, winter W IH' N T ER, morning M AO'
    R N IH NG, evening IY' V N IH NG, ocean OW' SH AH N, forest F AO' R AH S T, machine M AH
    SH IY' N, camera K AE' M R AH, lamp L AE' M P, movie M UW' V IY, people P IY' P AH L,
    family F AE' M AH L IY, problem P R AA' B L AH M, answer AE' N S ER, question K W EH' S CH
    AH N, idea AY D IY' AH, coffee K AO' F IY, butter B AH' T ER, pepper P EH' P ER, bread B R
    EH' D, soup S UW' P, table T EY' B AH L, chair CH EH' R, mirror M IH' R ER, shadow SH AE'
    D OW, photo F OW' T OW, song S AO' NG, moon M UW' N, star S T AA' R, cloud K L AW' D,
    feather F EH' DH ER, valley V AE' L IY, beach B IY' CH, fire F AY' ER, mouth M AW' TH,
    thumb TH AH' M, bath B AE' TH, puppy P AH' P IY, zebra Z IY' B R AH, fox F AA' K S, bear B
    EH' R, horse HH AO' R S, wolf W UH' L F, toy T OY', coin K OY' N, job JH AA' B, giant JH
    AY' AH N T, yard Y AA' R D, wave W EY' V, map M AE' P
    """,
    "plural": """
    bananas B AH N AE' N AH Z, apples AE' P AH L Z, birds B ER' D Z, people P IY' P AH L, men
    M EH' N, women W IH' M AH N, children CH IH' L D R AH N, books B UH' K S, boys B OY' Z,
    girls G ER' L Z, maps M AE' P S, doves D AH' V Z, fishes F IH' SH IH Z, houses HH AW' Z IH
    Z, trees T R IY' Z, flowers F L AW' ER Z, songs S AO' NG Z, rooms R UW' M Z, shoes SH UW'
    Z, pots P AA' T S, lambs L AE' M Z, bubbles B AH' B AH L Z, waves W EY' V Z, moths M AO'
    TH S, jobs JH AA' B Z, poems P OW' AH M Z
    """,
    "past": """
    opened OW' P AH N D, saw S AO', made M EY' D, bought B AO' T, followed F AA' L OW D,
    painted P EY' N T IH D, moved M UW' V D, broke B R OW' K, lost L AO' S T, found F AW' N D,
    gave G EY' V, showed SH OW' D, washed W AA' SH T, loved L AH' V D, chose CH OW' Z, played
    P L EY' D, sold S OW' L D, built B IH' L T, pushed P UH' SH T, remembered R IH M EH' M B
    ER D, enjoyed EH N JH OY' D, visited V IH' Z IH T IH D, described D IH S K R AY' B D,
    stopped S T AA' P T, pulled P UH' L D, heard HH ER' D, became B IH K EY' M, forgot F ER G
    AA' T, answered AE' N S ER D, imagined IH M AE' JH AH N D
    """,
    "moved": """
    walked W AO' K T, waited W EY' T IH D, jumped JH AH' M P T, moved M UW' V D, ran R AE' N,
    slept S L EH' P T, arrived AH R AY' V D, came K EY' M, lived L IH' V D, talked T AO' K T,
    laughed L AE' F T, swam S W AE' M, fell F EH' L, stood S T UH' D, sang S AE' NG, vanished
    V AE' N IH SH T, appeared AH P IH' R D, met M EH' T
    """,
    "base": """
    open OW' P AH N, see S IY', make M EY' K, buy B AY', follow F AA' L OW, paint P EY' N T,
    move M UW' V, bring B R IH' NG, find F AY' N D, give G IH' V, show SH OW', watch W AA' CH,
    love L AH' V, choose CH UW' Z, play P L EY', build B IH' L D, remember R IH M EH' M B ER,
    enjoy EH N JH OY', visit V IH' Z IH T, help HH EH' L P, believe B IH L IY' V, improve IH M
    P R UW' V, keep K IY' P, push P UH' SH, describe D IH S K R AY' B, measure M EH' JH ER,
    want W AA' N T, feed F IY' D, use Y UW' Z, put P UH' T
    """,
}


def pronounced(entry: str) -> Word:
    """The word of an entry such as ``hello HH AH L OW'``."""
    text, *marked = entry.split()
    phonemes = tuple(mark.rstrip("'") for mark in marked)
    stressed = next((i for i, mark in enumerate(marked) if mark.endswith("'")), -1)
    return Word(text, phonemes, stressed)


LEXICON = {
    kind: tuple(pronounced(entry) for entry in row.split(",")) for kind, row in _TABLE.items()
}
FILLERS = tuple(map(pronounced, ("mm M M", "um AH M", "uh AH", "hm HH M")))
