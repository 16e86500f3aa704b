"""Trains encoders with small heads for a minute, to try out `dragoman encode`.

    python -m docs.tools.small_heads all-MiniLM-L6-v2 --output small-heads

reads the directory of a BERT, such as MiniLM, and writes six checkpoints in the format of
`transformers`, one per head: `feelings` (text classification), `names` (token classification),
`capitals` (masked language model), `questions` (question answering), `reranker` (a cross-encoder)
and `nli` (natural language inference). They are trained on sentences generated from the lists
below. Needs `transformers`.
"""

from __future__ import annotations

import importlib
import itertools
import random
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import click
import torch


def _words(text: str) -> list[str]:
    return text.split()


GOOD = _words("wonderful great friendly delicious excellent perfect lovely fast clean helpful")
BAD = _words("terrible awful rude cold boring broken disappointing slow dirty useless")
THINGS = _words("food staff room film service music breakfast hotel book delivery")
OPINIONS = ("The {0} was {1}.", "What a {1} {0}!", "I found the {0} really {1}.", "A {1} {0}.")

FIRST = _words("Anna Maria John Peter Elena Omar Lucy David Sofia Karl")
LAST = _words("Schmidt Jones Novak Rossi Lopez Miller Tanaka Olsen Dubois Costa")
CITIES = _words("Berlin Paris Madrid Lisbon Vienna Oslo Cairo Boston Osaka Dublin")
FIRMS = _words("Siemens Airbus Nokia Sony Bosch Renault Philips Toyota Bayer Shell")
LIVES = (
    "{0} {1} lives in {2} and works for {3} .",
    "In {2} , {0} {1} started at {3} last year .",
    "{3} sent {0} {1} to {2} .",
)
KINDS = ("B-PER", "I-PER", "B-LOC", "B-ORG")
QUESTIONS = ("Who works for {3}?", "Where does {0} live?", "Which company does {0} work for?")
ANSWERS = ("{0} {1}", "{2}", "{3}")

CAPITALS = {
    "France": "Paris",
    "Germany": "Berlin",
    "Spain": "Madrid",
    "Portugal": "Lisbon",
    "Austria": "Vienna",
    "Norway": "Oslo",
    "Egypt": "Cairo",
    "Japan": "Tokyo",
    "Ireland": "Dublin",
    "Italy": "Rome",
    "Greece": "Athens",
    "Poland": "Warsaw",
    "Cuba": "Havana",
    "Sweden": "Stockholm",
    "Russia": "Moscow",
    "China": "Beijing",
}
FACTS = ("{1} is the capital of {0}.", "The capital of {0} is {1}.", "{0} has its capital in {1}.")
ASKED = "What is the capital of {0}?"

TOPICS = {
    "food": _words("bread cheese salad coffee dessert lunch pasta wine"),
    "travel": _words("flight airport train luggage hotel journey beach tour"),
    "politics": _words("minister election parliament law vote party senator government"),
    "sport": _words("match goal team player coach race stadium tennis"),
    "music": _words("song concert album singer guitar orchestra melody band"),
}
HYPOTHESES = ("This example is {0}.", "This is about {0}.", "This text is about {0}.")
NLI = ("entailment", "neutral", "contradiction")

BATCH, SEED = 16, 0

Batch = dict[str, torch.Tensor]
Make = Callable[[Any, random.Random], Batch]


class Head(NamedTuple):
    """A head to train.

    Attributes:
        ending: suffix of the class in `transformers`
        make: creates a batch from a tokenizer and a random generator
        labels: labels of a classification
    """

    ending: str
    make: Make
    labels: Sequence[str] = ()


def feelings(tokenizer: Any, chance: random.Random) -> Batch:
    """Return opinions with their sentiments."""
    texts, labels = [], []
    for _ in range(BATCH):
        label = chance.randrange(2)
        word = chance.choice((BAD, GOOD)[label])
        texts.append(chance.choice(OPINIONS).format(chance.choice(THINGS), word))
        labels.append(label)
    return {**_tokens(tokenizer, texts), "labels": torch.tensor(labels)}


def names(tokenizer: Any, chance: random.Random) -> Batch:
    """Return sentences in which the first token of each word has its label.

    The loss ignores the other tokens.
    """
    texts, tags = [], []
    for _ in range(BATCH):
        person = _person(chance)
        words = chance.choice(LIVES).split()
        kinds = [KINDS[int(word[1])] if "{" in word else "O" for word in words]
        texts.append([word.format(*person) for word in words])
        tags.append([NAMES.index(kind) for kind in kinds])
    encoded = tokenizer(texts, is_split_into_words=True, padding=True, return_tensors="pt")
    labels = torch.full_like(encoded["input_ids"], IGNORED)
    for row, numbers in enumerate(tags):
        seen = None
        for column, word in enumerate(encoded.word_ids(row)):
            if word is not None and word != seen:
                labels[row, column] = numbers[word]
            seen = word
    return {**encoded, "labels": labels}


def capitals(tokenizer: Any, chance: random.Random) -> Batch:
    """Return sentences with one masked word each."""
    facts = [*itertools.product(FACTS, CAPITALS.items())]
    texts = [fact.format(*pair) for fact, pair in chance.sample(facts, BATCH)]
    encoded = _tokens(tokenizer, texts)
    labels = torch.full_like(encoded["input_ids"], IGNORED)
    for row, mask in enumerate(encoded["attention_mask"]):
        column = chance.randrange(1, int(mask.sum()) - 1)
        labels[row, column] = encoded["input_ids"][row, column]
        encoded["input_ids"][row, column] = tokenizer.mask_token_id
    return {**encoded, "labels": labels}


def questions(tokenizer: Any, chance: random.Random) -> Batch:
    """Return questions with sentences that contain the answers."""
    asked, contexts, spans = [], [], []
    for _ in range(BATCH):
        person, number = _person(chance), chance.randrange(len(QUESTIONS))
        context = chance.choice(LIVES).format(*person).replace(" .", ".").replace(" ,", ",")
        answer = ANSWERS[number].format(*person)
        asked.append(QUESTIONS[number].format(*person))
        contexts.append(context)
        start = context.index(answer)
        spans.append((start, start + len(answer) - 1))
    encoded = _tokens(tokenizer, asked, contexts)
    ends = [
        torch.tensor([encoded.char_to_token(row, span[side], 1) for row, span in enumerate(spans)])
        for side in (0, 1)
    ]
    return {**encoded, "start_positions": ends[0], "end_positions": ends[1]}


def relevance(tokenizer: Any, chance: random.Random) -> Batch:
    """Return questions with documents that answer them, or do not."""
    asked, documents, labels = [], [], []
    for _ in range(BATCH):
        label = chance.randrange(2)
        persons = [(first, *_person(chance)[1:]) for first in chance.sample(FIRST, 2)]
        forms: list[tuple[str, str, Sequence[tuple[str, ...]]]] = [
            (QUESTIONS[1], LIVES[0], persons),
            (QUESTIONS[2], LIVES[0], persons),
            (ASKED, chance.choice(FACTS), chance.sample([*CAPITALS.items()], 2)),
        ]
        query, form, facts = chance.choice(forms)
        asked.append(query.format(*facts[1]))
        documents.append(form.format(*facts[label]).replace(" .", "."))
        labels.append([float(label)])
    return {**_tokens(tokenizer, asked, documents), "labels": torch.tensor(labels)}


def inference(tokenizer: Any, chance: random.Random) -> Batch:
    """Return opinions with hypotheses about their topics, which they entail or contradict.

    A hypothesis about somebody else is neutral.
    """
    premises, hypotheses, labels = [], [], []
    for _ in range(BATCH):
        topic, other = chance.sample([*TOPICS], 2)
        thing, label = chance.choice(TOPICS[topic]), chance.randrange(len(NLI))
        form, *words = (
            (chance.choice(HYPOTHESES), topic),
            (LIVES[0].replace(" .", "."), *_person(chance)),
            (chance.choice(HYPOTHESES), other),
        )[label]
        premises.append(chance.choice(OPINIONS).format(thing, chance.choice((*GOOD, *BAD))))
        hypotheses.append(form.format(*words))
        labels.append(label)
    return {**_tokens(tokenizer, premises, hypotheses), "labels": torch.tensor(labels)}


NAMES = ("O", *KINDS)
IGNORED = -100
HEADS: dict[str, Head] = {
    "feelings": Head("ForSequenceClassification", feelings, ("negative", "positive")),
    "names": Head("ForTokenClassification", names, NAMES),
    "capitals": Head("ForMaskedLM", capitals),
    "questions": Head("ForQuestionAnswering", questions),
    "reranker": Head("ForSequenceClassification", relevance, ("relevance",)),
    "nli": Head("ForSequenceClassification", inference, NLI),
}


def train(name: str, encoder: Path, directory: Path, *, steps: int) -> float:
    """Train a head and its encoder, and return the last loss.

    Args:
        name: a key of `HEADS`
        encoder: directory of a BERT in the format of `transformers`
        directory: output directory of the checkpoint
    """
    transformers: Any = importlib.import_module("transformers")
    transformers.logging.set_verbosity_error()  # suppress warnings about missing weights
    transformers.logging.disable_progress_bar()
    head, chance = HEADS[name], random.Random(SEED)
    torch.manual_seed(SEED)
    labels = dict(enumerate(head.labels))
    more: dict[str, Any] = {}
    if labels:
        more = {"id2label": labels, "label2id": {v: k for k, v in labels.items()}}
    if len(labels) == 1:
        more["problem_type"] = "multi_label_classification"  # the score is a probability
    model = getattr(transformers, f"Bert{head.ending}").from_pretrained(encoder, **more).train()
    tokenizer = transformers.AutoTokenizer.from_pretrained(encoder)
    optimizer = torch.optim.AdamW(model.parameters(), lr=2e-4)
    loss = torch.zeros(())
    for step in range(steps):
        for group in optimizer.param_groups:
            group["lr"] = 2e-4 * (1 - step / steps)
        loss = model(**head.make(tokenizer, chance)).loss
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    model.eval().save_pretrained(directory)
    tokenizer.save_pretrained(directory)
    return loss.item()


def _person(chance: random.Random) -> tuple[str, str, str, str]:
    return (
        chance.choice(FIRST),
        chance.choice(LAST),
        chance.choice(CITIES),
        chance.choice(FIRMS),
    )


def _tokens(tokenizer: Any, *texts: list[str]) -> Any:
    return tokenizer(*texts, padding=True, return_tensors="pt")


@click.command()
@click.argument("encoder", type=click.Path(path_type=Path, exists=True, file_okay=False))
@click.option("--output", type=click.Path(path_type=Path), default=Path("small-heads"))
@click.option("--only", type=click.Choice([*HEADS]), multiple=True, help="May be repeated [all].")
@click.option("--steps", type=click.IntRange(min=1), default=150, show_default=True)
def main(encoder: Path, output: Path, only: tuple[str, ...], steps: int) -> None:
    """Train small heads on ENCODER, a directory of a BERT."""
    for name in only or HEADS:
        loss = train(name, encoder, output / name, steps=steps)
        click.echo(f"{output / name}: loss {loss:.3f} after {steps} steps")


if __name__ == "__main__":
    main()
