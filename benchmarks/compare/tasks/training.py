"""Compares training with JoeyNMT and with a loop around `torch.nn.Transformer`.

All train the same shape on the same tokens of Multi30k for the same number of steps, with Adam, the
same learning rates, label smoothing, and the same most tokens of a batch, padding included. JoeyNMT
and the loop draw the pairs of a batch at random; Dragoman's have similar lengths, and the loop runs
a second time with such batches.
"""

from __future__ import annotations

import json
import random
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np

from dragoman.errors import DragomanError

from ...processes import HERE, Interpreter
from .. import options
from ..record import Record, Table, table_of
from ..rounds import Contender, count, unchanged
from ..task import Options, Run, Task

PAD, START, END = 0, 1, 2
VOCABULARY, WIDTH, INNER, HEADS, LAYERS, DROPOUT, SMOOTHING = 10_000, 128, 256, 4, 4, 0.3, 0.1
BATCH_TOKENS, LONGEST = 2048, 64
SOURCES = 100
"""Held-out sources that are translated greedily in the end."""

Trainer = tuple[Callable[[], int], Callable[[list[list[int]]], list[list[int]]]]
"""Takes a step and returns its target tokens; translates sources."""
Work = tuple[str, int]
"""A number of steps to take, or of sources to translate."""


def _load(kind: Callable[[list[Any]], Trainer], directory: Path, threads: int) -> Any:
    import torch

    torch.set_num_threads(threads)
    torch.manual_seed(1)
    data = json.loads((directory / "pairs.json").read_text(encoding="utf-8"))
    step, translate = kind(data["train"])
    outputs: list[list[int]] = []

    def perform(work: Work) -> int | list[list[int]]:
        what, number = work
        if what == "steps":
            return sum(step() for _ in range(number))
        if not outputs:  # only once, in the warm-up
            outputs.extend(translate(data["sources"][:number]))
        return outputs

    return perform


def _dragoman(precision: str, pairs: list[Any]) -> Trainer:
    import tempfile

    import torch

    from dragoman.reference_model import ModelConfig, Transformer
    from dragoman.reference_model.decoding import decoded
    from dragoman.reference_model.training import TrainingOptions
    from dragoman.reference_model.training.run import Judge
    from dragoman.reference_model.training.run import Run as Training

    sizes = {"d_model": WIDTH, "d_ff": INNER, "num_heads": HEADS, "dropout": DROPOUT}
    layers = dict.fromkeys(("encoder_layers", "decoder_layers"), LAYERS)
    places = dict.fromkeys(("max_source_positions", "max_target_positions"), LONGEST)
    vocabularies = dict.fromkeys(("source_vocab_size", "target_vocab_size"), VOCABULARY)
    kind = {"norm_order": "pre", "tie_source_target": True}
    config = {**sizes, **layers, **places, **vocabularies, **kind}
    model = Transformer(ModelConfig.from_dict(config))
    steps: dict[str, Any] = {"epochs": 1000, "learning_rate": 2e-3, "warmup_steps": 100}
    steps |= {"batch_tokens": BATCH_TOKENS, "label_smoothing": SMOOTHING, "precision": precision}
    made = TrainingOptions(**steps)
    data = Path(tempfile.mkdtemp()), pairs, pairs[:1]
    judge = Judge[Transformer](lambda _: 0.0, "")
    run = Training(model, made, *data, judge, "", torch.device("cpu"))
    run.begin_epoch()

    def step() -> int:
        if run.done == len(run.steps):
            run.end_epoch(0.0, 0.0)
            run.begin_epoch()
        return run.take_step().tokens

    return step, lambda sources: decoded(model.eval(), sources)


def _padded(pairs: list[Any], similar: bool = False) -> Iterator[tuple[Any, Any]]:
    """Yield batches of pairs, random or of similar length, padded to tensors [B, S] and [B, T]."""
    import torch

    generator = random.Random(1)
    while True:
        generator.shuffle(pairs)
        if similar:
            batches = list(_batches(sorted(pairs, key=lambda pair: (len(pair[1]), len(pair[0])))))
            generator.shuffle(batches)
        else:
            batches = list(_batches(pairs))
        for batch in batches:
            sides = zip(*((s, [START, *t]) for s, t in batch), strict=True)
            tensors = ([torch.tensor(ids) for ids in side] for side in sides)
            sources, targets = (torch.nn.utils.rnn.pad_sequence(t, True, PAD) for t in tensors)
            yield sources, targets


def _batches(pairs: Iterable[Any]) -> Iterator[list[Any]]:
    """Yield successive batches of at most BATCH_TOKENS tokens a side, padding included."""
    batch: list[Any] = []
    widest = 0
    for pair in pairs:
        widest = max(widest, *(len(side) + 1 for side in pair))
        if batch and widest * (len(batch) + 1) > BATCH_TOKENS:
            yield batch
            batch, widest = [], max(len(side) + 1 for side in pair)
        batch.append(pair)


def _adam(model: Any) -> Callable[[], None]:
    """Return the function that takes a step of Adam with the common learning rate.

    It warms up over 100 steps to 0.002, and then falls with the inverse square root.
    """
    import torch

    adam = torch.optim.Adam(model.parameters(), lr=2e-3, betas=(0.9, 0.98), eps=1e-9)
    factors = [lambda done: min((done + 1) / 100, (100 / (done + 1)) ** 0.5)]
    schedule = torch.optim.lr_scheduler.LambdaLR(adam, factors)

    def step() -> None:
        adam.step()
        schedule.step()
        adam.zero_grad()

    return step


def _loop(similar: bool, pairs: list[Any]) -> Trainer:
    import torch
    from torch import nn

    from dragoman.reference_model.stacks import sinusoids

    tokens = nn.Embedding(VOCABULARY, WIDTH, padding_idx=PAD)
    nn.init.normal_(tokens.weight, std=WIDTH**-0.5)
    sizes = WIDTH, HEADS, LAYERS, LAYERS, INNER, DROPOUT
    stack = nn.Transformer(*sizes, batch_first=True, norm_first=True)
    positions, dropout = sinusoids(4 * LONGEST, WIDTH), nn.Dropout(DROPOUT)
    cross_entropy = nn.CrossEntropyLoss(ignore_index=PAD, label_smoothing=SMOOTHING)
    model, batches = nn.ModuleList([tokens, stack, dropout]), _padded(pairs, similar)
    update = _adam(model)

    def embedded(ids: Any) -> Any:
        return dropout(tokens(ids) * WIDTH**0.5 + positions[: ids.shape[1]])

    def logits(source: Any, target: Any) -> Any:
        causal = nn.Transformer.generate_square_subsequent_mask(target.shape[1], dtype=torch.bool)
        masks = {"src_key_padding_mask": source == PAD, "memory_key_padding_mask": source == PAD}
        hidden = stack(embedded(source), embedded(target), tgt_mask=causal, **masks)
        return hidden @ tokens.weight.T

    def step() -> int:
        model.train()
        source, target = next(batches)
        found = logits(source, target[:, :-1])
        cross_entropy(found.flatten(0, 1), target[:, 1:].flatten()).backward()
        update()
        return int((target[:, 1:] != PAD).sum())

    def translate(sources: list[list[int]]) -> list[list[int]]:
        model.eval()
        outputs = []
        with torch.inference_mode():
            for source in sources:
                target = [START]
                while target[-1] != END and len(target) < 2 * len(source) + 10:
                    found = logits(torch.tensor([source]), torch.tensor([target]))
                    target.append(int(found[0, -1].argmax()))
                outputs.append(target[1:])
        return outputs

    return step, translate


def _joeynmt(pairs: list[Any]) -> Trainer:
    import torch
    from joeynmt.batch import Batch
    from joeynmt.model import build_model
    from joeynmt.search import greedy
    from joeynmt.vocabulary import Vocabulary

    special: dict[str, Any] = {"sep_token": None, "lang_tags": []}
    for number, name in enumerate(("unk", "pad", "bos", "eos")):  # its vocabularies' first tokens
        special |= {f"{name}_token": f"<{name}>", f"{name}_id": number}
    sizes = {"num_layers": LAYERS, "num_heads": HEADS, "ff_size": INNER, "hidden_size": WIDTH}
    embeddings = {"embedding_dim": WIDTH, "scale": True, "dropout": DROPOUT}
    kind = {"type": "transformer", "dropout": DROPOUT, "layer_norm": "pre"}
    stack = {**sizes, **kind, "embeddings": embeddings}
    shared = {"encoder": stack, "decoder": stack, "tied_embeddings": True, "tied_softmax": True}
    tokens = [f"t{n}" for n in range(4, VOCABULARY)]
    vocabulary = Vocabulary(tokens, SimpleNamespace(**special))
    model = build_model(shared, vocabulary, vocabulary)
    model.loss_function = ("crossentropy", SMOOTHING)
    update, batches = _adam(model), _padded(pairs)

    def batch_of(source: Any, target: Any | None) -> Any:
        lengths, indices = (source != PAD).sum(1), torch.arange(len(source))
        source, target = (
            None if ids is None else torch.where(ids < 4, (ids + 1) % 4, ids)
            for ids in (source, target)
        )
        where = indices, torch.device("cpu"), PAD + 1, END + 1
        given = source, lengths, None, target, None
        return Batch(*given, *where, is_train=target is not None)

    def step() -> int:
        model.train()
        batch = batch_of(*next(batches))
        batch.sort_by_src_length()
        loss, *_ = model(return_type="loss", **vars(batch))
        batch.normalize(loss, "tokens").backward()
        update()
        return int(batch.ntokens)

    def translate(sources: list[list[int]]) -> list[list[int]]:
        model.eval()
        outputs = []
        with torch.no_grad():
            for source in sources:
                batch = batch_of(torch.tensor([source]), None)
                encoded, hidden, *_ = model(return_type="encode", **vars(batch))
                found, *_ = greedy(batch.src_mask, 2 * len(source) + 10, model, encoded, hidden)
                outputs.append([int(n + 3) % 4 if n < 4 else int(n) for n in found[0]])
        return outputs

    return step, translate


def contenders(joeynmt: Interpreter = HERE) -> list[Contender[Work, Any]]:
    """Return the contenders, Dragoman first."""
    kinds: dict[str, Callable[[list[Any]], Trainer]] = {
        "Dragoman fp32": partial(_dragoman, "fp32"),
        "Dragoman bf16": partial(_dragoman, "bf16"),
        "torch.nn.Transformer": partial(_loop, False),
        "torch.nn.Transformer, similar lengths": partial(_loop, True),
        "JoeyNMT": _joeynmt,
    }
    return [
        Contender(
            *(name, unchanged, partial(_load, kind), "bf16" if "bf16" in name else "fp32"),
            peer=not name.startswith("Dragoman"),
            needs_torch=True,
            interpreter=joeynmt if kind is _joeynmt else HERE,
        )
        for name, kind in kinds.items()
    ]


def measure(run: Run, given: Options) -> dict[str, Any]:
    """Train all contenders in turns, then translate with each."""
    from dragoman.metrics import find_metric
    from dragoman.reference_model.recipes import multi30k_en_de
    from dragoman.reference_model.recipes.tokenizers import Vocabulary, train_tokenizers

    each = given.steps // (given.rounds + 1)
    if each < 1:
        raise DragomanError(
            f"--steps: expected at least {given.rounds + 1}, one for each of {given.rounds} rounds "
            f"and one before them, found {given.steps}"
        )
    data = multi30k_en_de.load_data(given.data)
    train = list(data.train)
    tokenizer, _ = train_tokenizers(Vocabulary(size=VOCABULARY, tokenized=True), train)
    sides = ((example.source, example.references[0]) for example in train)
    pairs = [[tokenizer.encode(text).ids for text in pair] for pair in sides]
    pairs = [pair for pair in pairs if max(map(len, pair)) < LONGEST]
    held_out = data.held_out[:SOURCES]
    sources = [tokenizer.encode(example.source).ids for example in held_out]
    run.checkpoint.mkdir()
    text = json.dumps({"train": pairs, "sources": sources})
    (run.checkpoint / "pairs.json").write_text(text, encoding="utf-8")
    joeynmt = Interpreter.of_environment(given.joeynmt_python) if given.joeynmt_python else HERE
    chosen = run.chosen(contenders(joeynmt))
    work: dict[str, Work] = {"training": ("steps", each), "translation": ("sources", SOURCES)}
    results = run.take_turns(chosen, work, rounds=given.rounds, threads=[given.threads])
    memory = {f.contender: f.peak_memory_mb for f in results.footprints}
    chrf, references = find_metric("chrf"), [example.references for example in held_out]
    rows = []
    for entrant, turns in results.turns["training"].items():
        rates = [turn.outcome / turn.seconds for turn in turns.counted]
        texts = tokenizer.decode_batch(results.turns["translation"][entrant].outcome)
        rows.append(
            {
                "contender": entrant.contender,
                "tokens_per_second": [float(f(rates)) for f in (np.median, np.min, np.max)],
                "memory_mb": memory[entrant.contender],
                "chrf": chrf.figure(texts, references),
            }
        )
    steps = each * (given.rounds + 1)
    return {"rows": rows, "steps": steps, "threads": given.threads, "failures": results.failures}


COLUMNS = (
    ("", "{contender}"),
    ("target tokens / s", "{tokens_per_second[0]:,.0f}"),
    ("lowest - highest", "{tokens_per_second[1]:,.0f} - {tokens_per_second[2]:,.0f}"),
    ("memory, MB", "{memory_mb:,.0f}"),
    ("chrF", "{chrf:.1f}"),
)


def tables(record: Record) -> Iterator[Table]:
    """Yield the table of all contenders."""
    title = f"Multi30k, {record['steps']} steps, {count(record['threads'], 'thread')}"
    yield table_of(record["rows"], COLUMNS, title=title)


TRAINING = Task(
    name="training",
    help="Compare training with JoeyNMT and with a loop around torch.nn.Transformer.",
    options=(
        options.option("--data", "The folder data/task1 of Multi30k.", kind=Path, required=True),
        options.option("--steps", "Steps of each contender.", 300),
        options.option("--joeynmt-python", "Python of an environment with JoeyNMT.", kind=Path),
        options.option("--threads", "Threads of every contender.", 1),
        options.rounds(),
        options.ONLY,
    ),
    measure=measure,
    rows="rows",
    file=lambda record, options: f"training-{record['threads']}-threads",
    tables=tables,
)
