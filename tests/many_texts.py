"""Texts that tokenizers split in many ways."""
# ruff: noqa: RUF001

from __future__ import annotations

import random
from collections.abc import Iterator

LANGUAGES = [
    "The quick brown fox; don't, I'll, we've, you'RE, IT'S, 'll'llama's 'ſ",
    "Das ist ein Häuschen. Ça va bien, n'est-ce pas ? Ñandú, İstanbul, ŒUVRE",
    "Привет, мир! Καλημέρα κόσμε. שלום עולם مَرحبا بالعالم",
    "日本語のテキストです。中文字符，한국어 각 \u1100\u1161\u11a8 ภาษาไทย हिन्दी में ሰላም",
]
ODD = [
    "",
    " ",
    "\n",
    "   \n \r\n\t  ",
    "ends in a space ",
    "ends in a line\n",
    "ends in both  \n  ",
    "def f(x):\n    return x  \n\n\n\t\tif x != 1:\r\n        /* no */ pass;\n",
    "1 12 123 1234 12345678901 1,234.56 ١٢٣٤ ½ Ⅷ ² 3rd",
    "...!!!???///\n\n--- =====\r\n [x](y)#z",
    "emoji 😀 👩\u200d👩\u200d👧 🇫🇷! e\u0301 a\u0308\u0323 o\u0302 \u0301\u0301",
    "\x00\x01\x1f\x7f\x80\x85\u00a0\u2003\u2028\u3000\u200b\ufeff\ufffd\ufdd0\U0010ffff",
    "ß ẞ ſs ﬁ ﬆ Ǆǅǆ ʰª K Å Ａａ １",
    "<|endoftext|> a<|endoftext|>b </s><s> <mask><pad>",
    *(symbol * count for symbol in "a =\n0.あ😀\u0301" for count in (2, 3, 17, 64, 101, 257)),
    *(text * 60 for text in ("ab", "aab", "  a", " \n", "\n ", "12a", "=-", "éa")),
]
TEXTS = [*LANGUAGES, *ODD]

_SPACES = " \t\n\r\v\f\x1c\x85\u00a0\u1680\u2003\u2028\u202f\u3000"
_COMMON = sorted({symbol for text in TEXTS for symbol in text})


def random_texts(count: int, seed: int = 0) -> Iterator[str]:
    """Of whole characters of Unicode, assigned or not; of common ones; of runs of them."""
    generator = random.Random(seed)
    for i in range(count):
        length = generator.randint(1, 40)
        match i % 4:
            case 0:
                yield "".join(map(_character, (generator.random() for _ in range(length))))
            case 1:
                yield "".join(generator.choices(_COMMON, k=length))
            case 2:
                yield "".join(generator.choices("absStT'’lLdD 12\n\r.,/é中\u0301😀  ", k=length))
            case _:
                runs = generator.choices(_SPACES + "aA1.=-'", k=length // 2)
                yield "".join(symbol * generator.choice([1, 1, 2, 3, 9]) for symbol in runs)


def _character(fraction: float) -> str:
    """Of all planes but surrogates; every other one of the first 0x600 characters."""
    code = int(2 * fraction * 0x600) if fraction < 0.5 else int((2 * fraction - 1) * 0x10F800)
    return chr(code if code < 0xD800 else code + 0x800)
