"""Corpora on the disk: their pairs after cleaning, the tokens of these, and a record of both."""

from __future__ import annotations

import hashlib
import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from itertools import chain, compress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.console import Console

from dragoman.errors import DragomanError, shown
from dragoman.files.regular_files import check_regular, write_whole
from dragoman.files.text_lines import UnknownCharacters

from ..config import ModelConfig
from ..settings import check_settings
from .examples import FILES_OF_PAIRS, Cleaner, Cleaning, Example, read_pairs, reading, spaced
from .recipe import Data, Recipe, Tokenizers
from .tokenizers import SPECIAL_TOKENS, digests_of, read_tokenizers, write_tokenizers

if TYPE_CHECKING:
    from ..training.loss import Pair, TokenPairs


@dataclass(frozen=True)
class Corpus:
    """Files of pairs to train on.

    Raises:
        DragomanError: on construction, naming every field that is out of range.
    """

    files: tuple[Path, ...]
    """One file of pairs, or one of sources and one of targets; see `read_pairs`."""
    weight: float = 1.0
    """How often each pair occurs in an epoch. For a weight with a fraction, such as 2.25, that
    share of the pairs, which is drawn anew for each epoch, occurs once more."""
    prefix: str = ""
    """A text that is put before each source, with a space between them, such as a tag for
    back-translated sources (Caswell et al. 2019). It is one token of the vocabulary, and may occur
    in the texts at the beginning of sources only."""

    def __post_init__(self) -> None:
        check_settings(self, self._out_of_range)

    def _out_of_range(self) -> Iterator[str]:
        if len(self.files) > 2:
            yield f"files: expected {FILES_OF_PAIRS}, found {len(self.files)} files"
        if not 0 < self.weight <= MOST_OFTEN:
            yield f"weight: expected more than 0, up to {MOST_OFTEN}, found {shown(self.weight)}"
        if " " in self.prefix or not self.prefix.isprintable():
            yield (
                "prefix: expected a text without spaces and invisible characters, found "
                f"{shown(self.prefix)}"
            )
        if self.prefix in SPECIAL_TOKENS:
            yield f"prefix: expected a text that is no special token, found {shown(self.prefix)}"


MOST_OFTEN = 1000
"""The largest weight of a corpus."""


def prefixes_of(corpora: Iterable[Corpus]) -> list[str]:
    """Return the different prefixes of corpora."""
    return [*dict.fromkeys(corpus.prefix for corpus in corpora if corpus.prefix)]


class Corpora:
    """The pairs of files that remain after cleaning, which are read anew for each iteration.

    Attributes:
        counts: the number of remaining pairs of each corpus
        dropped: the number of dropped pairs by reason
        record: what identifies the contents of the files and the rules, and the numbers, as plain
            data
        known: the record of a directory, if it is about the same contents and rules
    """

    def __init__(
        self, corpora: Sequence[Corpus], rules: Cleaning, directory: Path | None = None
    ) -> None:
        """Read and clean the files once, unless a directory has the record of an earlier training.

        Raises:
            DragomanError: a file cannot be read, no pair remains, or a prefix occurs within texts.
        """
        self.corpora = tuple(corpora)
        self._rules = rules
        self._kept: list[bytearray] = []
        known = None if directory is None else _read_record(directory)
        self.record: dict[str, Any] = {
            "files": [[_identity(file, known) for file in corpus.files] for corpus in corpora],
            "prefixes": [corpus.prefix for corpus in corpora],
            "weights": [float(corpus.weight) for corpus in corpora],
            "cleaning": asdict(rules),
        }
        same = known is not None and _contents(known) == _contents(self.record)
        self.known = known if same else None
        if self.known is None:
            self._read()
        else:
            self.counts, self.dropped = self.known["counts"], self.known["dropped"]
        self.record |= {"counts": self.counts, "dropped": self.dropped}

    def _read(self) -> None:
        cleaner, prefixes = Cleaner(self._rules), self.prefixes
        self._kept = []
        for corpus in self.corpora:
            kept = bytearray()
            for pair in map(spaced, read_pairs(corpus.files)):
                kept.append(cleaner.keeps(pair, corpus.prefix))
                if kept[-1]:
                    _check_prefixes(prefixes, pair, corpus.files)
            self._kept.append(kept)
        self.counts, self.dropped = [sum(kept) for kept in self._kept], dict(cleaner.dropped)
        cleaner.check(sum(self.counts))
        self.check_unchanged()

    def known_in(self, directory: Path) -> Corpora:
        """Return the same corpora with the record that a directory has of them."""
        found = Corpora(self.corpora, self._rules, directory)
        if found.known is not None:
            found.record["files"] = found.known["files"]
        return found

    def check_same(self, directory: Path, config: ModelConfig, vocabulary: str) -> None:
        """Check that the training of a directory began with these data, if it has their record.

        `vocabulary` has the settings that tokenizers are trained with.

        Raises:
            DragomanError: it began with others; names the differences.
        """
        from ..training.state import STATE_FILE, check_same_training

        known = _read_record(directory)
        if known is None:
            return
        here = {
            "positions": [config.max_source_positions, config.max_target_positions],
            "vocabulary": known["vocabulary"] and vocabulary,
        }
        paths = {file["sha256"]: file["path"] for file in chain(*self.record["files"])}
        state = directory / STATE_FILE  # without one, there are epochs, which are to be finished
        path = state if state.exists() else directory / RECORD_FILE
        check_same_training(path, _named(self.record | here, paths), _named(known, paths))

    def check_unchanged(self) -> None:
        """Check that no file changed since its contents were identified.

        Raises:
            DragomanError: one did.
        """
        for file in chain.from_iterable(self.record["files"]):
            try:
                same = _status(Path(file["path"])) == file["status"]
            except OSError:
                same = False
            if not same:
                raise DragomanError(
                    f"{file['path']}: expected a file that stays as it is, found that it changed "
                    "while it was read; start again"
                )

    def __len__(self) -> int:
        return sum(self.counts)

    def __iter__(self) -> Iterator[Example]:
        return (Example(source, (target,)) for _, source, target in self._pairs())

    @property
    def prefixes(self) -> list[str]:
        """The different prefixes of sources."""
        return prefixes_of(self.corpora)

    def with_prefixes(self) -> Iterator[tuple[int, Example]]:
        """Read the pairs with their prefixes, each with the index of its corpus."""
        for number, source, target in self._pairs():
            prefix = self.corpora[number].prefix
            yield number, Example(f"{prefix} {source}" if prefix else source, (target,))

    def described(self) -> list[dict[str, object]]:
        """Describe several corpora, or one with a weight or a prefix, as plain data."""
        if self.corpora == (Corpus(self.corpora[0].files),):
            return []
        return [
            asdict(corpus) | {"files": [file.name for file in corpus.files], "pairs": count}
            for corpus, count in zip(self.corpora, self.counts, strict=True)
        ]

    def _pairs(self) -> Iterator[tuple[int, str, str]]:
        if not self._kept:
            self._read()
        for number, (corpus, kept) in enumerate(zip(self.corpora, self._kept, strict=True)):
            for source, target in map(spaced, compress(read_pairs(corpus.files), kept)):
                yield number, source, target


def _check_prefixes(prefixes: Iterable[str], pair: tuple[str, str], files: Iterable[Path]) -> None:
    source, target = pair
    for prefix in prefixes:
        for text in (source.removeprefix(f"{prefix} "), target):
            if prefix in text:
                raise DragomanError(
                    f"{' and '.join(map(str, files))}: prefix: expected a text that occurs at the "
                    f"beginning of sources only, found {shown(prefix)} within {shown(text)}; "
                    "choose another one, such as <BT>"
                )


RECORD_FILE = "corpora.json"
_ENTRIES = frozenset(
    {"files", "prefixes", "weights", "cleaning", "counts", "dropped"}
    | {"vocabulary", "tokenizers", "positions", "encoded", "tokens", "unknown"}
)


def _write_record(directory: Path, record: Mapping[str, object]) -> None:
    """Write the record of corpora, and of the tokens that were made of them."""
    assert record.keys() == _ENTRIES
    text = json.dumps(record, indent=2) + "\n"
    write_whole(directory / RECORD_FILE, lambda path: path.write_text(text, encoding="utf-8"))


def _read_record(directory: Path) -> dict[str, Any] | None:
    try:
        record = json.loads((directory / RECORD_FILE).read_bytes())
        _contents(record)
        return record if record.keys() == _ENTRIES else None
    except (OSError, ValueError, TypeError, KeyError, AttributeError):
        return None


def _contents(record: Mapping[str, Any]) -> object:
    digests = [[file["sha256"] for file in files] for files in record["files"]]
    return digests, record["prefixes"], record["cleaning"]


def _named(record: Mapping[str, Any], paths: Mapping[str, str]) -> dict[str, object]:
    """Return what identifies the data of a record, by name; files may have moved to `paths`."""
    names = ("max_source_positions", "max_target_positions")
    named = dict(zip(names, record["positions"], strict=True))
    named |= {f"cleaning.{name}": value for name, value in record["cleaning"].items()}
    columns = zip(record["files"], record["prefixes"], record["weights"], strict=True)
    for number, (files, prefix, weight) in enumerate(columns):
        corpus = f"corpora[{number}]"
        for place, file in enumerate(files):
            digest = file["sha256"]
            path = paths.get(digest, file["path"])
            named[f"{corpus}.files[{place}]"] = f"{path} (SHA-256 {digest})"
        named |= {f"{corpus}.prefix": shown(prefix), f"{corpus}.weight": weight}
    return named | {"vocabulary": record["vocabulary"]}


def _status(path: Path) -> list[int]:
    status = path.stat()
    return [status.st_size, status.st_mtime_ns, status.st_ctime_ns, status.st_ino]


SURELY_OLDER = 2_000_000_000
"""Nanoseconds after which a change of a file surely changes its times."""


def _identity(path: Path, known: Mapping[str, Any] | None) -> dict[str, Any]:
    """Identify the contents of a file by their SHA-256.

    It is not computed again for a file with the size, the times and the inode of a known one.
    """
    with reading(path):
        status = _status(path)
        check_regular(path, 1 << 62)
        resolved = str(path.resolve())
        for file in chain.from_iterable(known["files"] if known else ()):
            if (file["path"], file["status"]) == (resolved, status) and file["settled"]:
                return dict(file)
        settled = time.time_ns() - max(status[1], status[2]) > SURELY_OLDER
        with path.open("rb") as opened:
            digest = hashlib.file_digest(opened, "sha256").hexdigest()
    return {"path": resolved, "status": status, "settled": settled, "sha256": digest}


def find_tokenizers(
    recipe: Recipe, data: Data, work: Path, given: Tokenizers | None, *, begun: bool
) -> Tokenizers:
    """Return the tokenizers of an interrupted training, or write new ones in process 0.

    Training a unigram vocabulary again gives the same tokens with other ids. New tokenizers are
    read back from their files, which round scores.

    Args:
        given: those of the user's files, or of the model to start from; None: they are trained
        begun: whether the training is to go on, or to be finished

    Raises:
        DragomanError: the training began with others than `given`, or has none.
    """
    # PyTorch, which commands load late
    from ..training.processes import rank
    from ..training.state import epoch_file, kept_epochs

    if begun:
        found = read_tokenizers(work)
        if given is not None and digests_of(found) != digests_of(given):
            where = "vocabulary.files" if recipe.own_tokenizers else "the model to start from"
            raise DragomanError(
                f"{work}: expected the vocabulary that this training began with, found another one "
                f"in {where}; go on with the same one, or choose another directory"
            )
        return found
    known = data.train.known if isinstance(data.train, Corpora) else None
    digests = None if given is None else digests_of(given)
    if given is None and known is not None and known["vocabulary"] == recipe.vocabulary:
        digests = known["tokenizers"]
    with suppress(DragomanError):  # they are missing or damaged
        found = read_tokenizers(work)
        if digests_of(found) == digests:
            return found
    if not rank():
        with Console(stderr=True).status("training the vocabulary"):
            made = given or recipe.make_tokenizers(data)
        for number in kept_epochs(work):  # their vocabulary is about to be replaced
            epoch_file(work, number).unlink()
        write_tokenizers(made, work)
    return read_tokenizers(work)


Unknown = tuple[UnknownCharacters, UnknownCharacters]
"""The characters of sources, and of targets, that the vocabularies lack."""


def encoded_pairs(
    corpora: Corpora,
    tokenizers: Tokenizers,
    config: ModelConfig,
    work: Path,
    vocabulary: str | None,
    encode: Callable[[Iterator[tuple[int, Example]]], Iterator[Pair]],
    fitting: Counter[int],
    unknown: Unknown,
) -> TokenPairs:
    """Encode the pairs of files, or read what an earlier training made of the same ones in `work`.

    Args:
        vocabulary: the settings that the tokenizers were trained with; None: unknown
        encode: encodes examples, each with the index of its corpus; adds to `fitting` and `unknown`
        fitting: receives the number of pairs of each corpus that fit the positions
        unknown: receives the characters that the vocabularies lack

    Raises:
        DragomanError: a prefix is no token, or a file changed or cannot be read or written.
    """
    from ..training.state import read_tokens, write_tokens  # PyTorch, which commands load late

    made_of = {
        "tokenizers": digests_of(tokenizers),
        "positions": [config.max_source_positions, config.max_target_positions],
    }
    for prefix in corpora.prefixes:
        if tokenizers.source.encode(prefix).tokens[:-1] != [prefix]:
            lacks = tokenizers.source.token_to_id(prefix) is None
            raise DragomanError(
                f"prefix: expected a token of the vocabulary, found {shown(prefix)}, which "
                f"{'it lacks' if lacks else 'is a special token or a subword'}: choose one of its "
                "tokens, or train a vocabulary in a new directory"
            )
    weights = [corpus.weight for corpus in corpora.corpora]
    known = corpora.known
    if known is not None and made_of.items() <= known.items():
        with suppress(OSError, ValueError, KeyError, TypeError):  # missing or damaged
            counts = known["encoded"]
            pairs = read_tokens(work, list(zip(counts, weights, strict=True)))
            if pairs.digest == known["tokens"]:
                for each, (characters, found) in zip(unknown, known["unknown"], strict=True):
                    each.characters, each.found = characters, Counter(found)
                fitting.update(dict(enumerate(counts)))
                if not corpora.record.items() <= known.items():
                    _write_record(work, known | corpora.record)
                return pairs
    largest = max(config.source_vocab_size or 0, config.target_vocab_size)
    with Console(stderr=True).status("encoding the pairs"):
        write_tokens(work, encode(corpora.with_prefixes()), largest)
    corpora.check_unchanged()
    counts = [fitting[number] for number in range(len(weights))]
    pairs = read_tokens(work, list(zip(counts, weights, strict=True)))
    made = {"vocabulary": vocabulary, "encoded": counts, "tokens": pairs.digest}
    lacked = {"unknown": [(each.characters, each.found) for each in unknown]}
    _write_record(work, corpora.record | made_of | made | lacked)
    return pairs
