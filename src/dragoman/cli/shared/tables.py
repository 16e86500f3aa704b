"""Tables of passes, parity and engines."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence

import click
from rich.console import Console
from rich.markup import escape
from rich.table import Table

from dragoman.api.verify import AnswersVerification
from dragoman.files.text_lines import printable
from dragoman.metrics import describe_undecided, shown_figure
from dragoman.optimize.tensorrt.profiles import describe
from dragoman.optimize.tensorrt.request import describe_capabilities
from dragoman.runtime import Bundle
from dragoman.runtime.backends.cuda import find_gpu
from dragoman.runtime.backends.interface import BackendError
from dragoman.runtime.backends.tensorrt.engines import device_memory
from dragoman.runtime.format.manifest import Manifest, PassRecord, Range, TensorRTEngines
from dragoman.runtime.format.parity import Parity
from dragoman.verification.verdict import compared_embeddings, describe_proof

MOST_SHOWN = 100
"""Nats: a perplexity beyond its exponential says nothing."""

Row = tuple[str, ...]
FAILED, PASSED = "[red]failed[/red]", "[green]passed[/green]"
UNDECIDED = "[yellow]undecided[/yellow]"


def print_passes(passes: Sequence[PassRecord]) -> None:
    """Print the passes, and then the nodes that they left unchanged."""
    if not passes:
        return
    table = Table(title="passes", title_justify="left")
    table.add_column("graph")
    table.add_column("pass", no_wrap=True)
    for heading in ("matches", "refused", "nodes", "difference", "allowed"):
        table.add_column(heading, justify="right")
    for record in passes:
        table.add_row(
            record.graph,
            record.name,
            str(record.matches),
            str(len(record.refusals)),
            f"{record.nodes_before} -> {record.nodes_after}",
            "not measured" if record.difference is None else f"{record.difference:.2g}",
            f"{record.tolerance:.3g}",
        )
    console = Console()
    console.print(table)
    branches = dict.fromkeys(b for record in passes for b in record.not_compared)
    remarks = [
        *(f"not compared: {b}: no input was found that executes it" for b in branches),
        *(
            f"{record.graph}: {record.name} left {refusal.operator} {refusal.node} unchanged: "
            f"{refusal.reason}"
            for record in passes
            for refusal in record.refusals
        ),
    ]
    for remark in remarks:
        console.print(remark, markup=False, highlight=False, soft_wrap=True)


def print_parity(parity: Parity) -> None:
    """Print the parity figures, failed ones first, and a conclusion."""
    rows = [row for rows_of in ROWS for row in rows_of(parity)]
    title = escape(f"parity with {parity.oracle}, on {parity.inputs}")
    table = Table(*("level", "what", "found", "allowed", ""), title=title, title_justify="left")
    for row in sorted(rows, key=lambda row: row[-1] != FAILED):
        table.add_row(*row)
    console = Console()
    console.print(table)
    if proof := describe_proof(parity):
        console.print(proof, markup=False, highlight=False)


def print_answers(verification: AnswersVerification) -> None:
    """Print the outcome of each known answer in each run, with the largest gap."""
    title = escape(f"known answers on {verification.machine}")
    headings = ("input", *verification.runs, "largest gap")
    table = Table(*headings, title=title, title_justify="left")
    problems = zip(*verification.runs.values(), strict=True)
    for name, each, gap in zip(verification.inputs, problems, verification.gaps, strict=True):
        cells = [PASSED if problem is None else FAILED for problem in each]
        table.add_row(escape(printable(name)), *cells, f"{gap:.2g}")
    Console(emoji=False).print(table)


def print_engines(manifest: Manifest) -> None:
    """Print the engines, their GPUs and sizes; nothing for graphs."""
    engines = manifest.executable
    if not isinstance(engines, TensorRTEngines):
        return
    click.echo(f"engines of {manifest.target} {engines.version} (CUDA {engines.cuda_version})")
    what = "new tokens" if manifest.model.has_encoder else "positions"
    most = f", at most {engines.capacity} {what}" if engines.capacity else ""
    for index, profile in enumerate(engines.profiles):
        click.echo(f"  profile {index}: {describe(profile)}{most}")
    click.echo(f"  run on {describe_capabilities(manifest.target, engines.compute_capabilities)}")
    sizes = {file.path: file.size for file in manifest.files}
    for name, report in engines.reports.items():
        weights = sum(report.weights.values())
        size = sizes[manifest.graphs[name].file]
        click.echo(
            f"  {name}: {size / 1e6:.1f} MB, including {weights / 1e6:.1f} MB of weights; "
            f"attention: {report.attentions}, {'fused in ' if report.fused else ''}"
            f"{_fused(report.fused)}"
        )


def verdict(passed: bool, *, undecided: bool = False) -> str:
    """Return the outcome of a check as a table cell."""
    return UNDECIDED if undecided else PASSED if passed else FAILED


def _check_rows(parity: Parity) -> Iterator[Row]:
    for check in parity.checks:
        found = f"{check.differing} of {check.compared:,} {check.unit} differ"
        if not check.differing:
            found = f"{check.compared:,} {check.unit} compared, none differs"
        if check.note:
            found = escape(check.note)
        if check.worst is not None:
            found += f"; at most {check.worst:.2g} of what is allowed"
        yield check.name, "see docs: parity", found, "none", verdict(check.passed)


def _tensor_rows(parity: Parity) -> Iterator[Row]:
    cross = [t for t in parity.tensors if t.name.startswith("cross_")]
    outputs = [t for t in parity.tensors if t not in cross]
    worst = [max(cross, key=lambda t: t.difference)] if cross else []
    for tensor in (*worst, *outputs):
        beyond = max(t.positions_beyond for t in ([tensor] if tensor in outputs else cross))
        found = (
            f"{tensor.difference:.2g} (absolute {tensor.largest_absolute:.2g}, "
            f"relative {tensor.largest_relative:.2g})"
        )
        if beyond:
            found += f"; more than allowed at {beyond} of {tensor.positions} positions"
        name = tensor.name if tensor in outputs else f"cross keys and values, worst {tensor.name}"
        allowed = "finite" if tensor.tolerance is None else f"{tensor.tolerance:g}"
        yield "tensors", name, found, allowed, verdict(tensor.passed)


def _distribution_rows(parity: Parity) -> Iterator[Row]:
    distributions = parity.distributions
    if distributions is None:
        return
    distance, rounded, allowed = distributions.bundle, distributions.rounded, ""
    found = (
        f"mean {distance.mean:.2g} (median {distance.median:.2g}, 99 % below "
        f"{distance.percentile_99:.2g}, largest {distance.largest:.2g}); same choice at "
        f"{distance.same_choice:.2%} of {distributions.positions}"
    )
    if distributions.ties:
        found += f", {distributions.ties} as good"
    if distributions.allowed is not None:
        alone = "" if rounded is None else f" (rounding alone {rounded.mean:.2g})"
        allowed = f"{distributions.allowed:.2g}{alone}"
    what = "divergence, nats" + (" a token" if parity.tokens.sequences else "")
    yield "distributions", what, found, allowed, verdict(distributions.passed)


def _embedding_rows(parity: Parity) -> Iterator[Row]:
    for what, found, allowed, passed in compared_embeddings(parity):
        if passed is None:
            yield "ranks", what, found, allowed, ""
        else:
            yield "embeddings", what, found, allowed, verdict(passed)


def _token_rows(parity: Parity) -> Iterator[Row]:
    tokens = parity.tokens
    if not tokens.sequences:
        return
    found, allowed = f"{tokens.identical} of {tokens.sequences} identical", "all identical"
    if tokens.allowed_margin is not None:
        allowed = f"margins up to {tokens.allowed_margin:.2g}"
    if tokens.expected_identical is not None and tokens.least_identical is not None:
        found += f", {tokens.expected_identical:.0f} expected"
        allowed = f"at least {tokens.least_identical} identical, {allowed}"
    if tokens.divergences:
        largest = max(tokens.divergences, key=lambda d: d.margin)
        found += (
            f"; largest margin lost {largest.margin:.2g} ({escape(largest.named)}, step "
            f"{largest.step}: token {largest.found_token} for {largest.expected_token})"
        )
    judged = verdict(tokens.passed, undecided=tokens.undecided)
    yield "tokens", "free-running greedy", found, allowed, judged
    one_pass = tokens.one_pass
    if one_pass is None:
        return
    chosen = one_pass.tokens - one_pass.other_choices
    found = f"{chosen} of {one_pass.tokens} tokens are the choice of one pass"
    if one_pass.worst is not None:
        found += f" (the worst: {escape(one_pass.worst.named)}, step {one_pass.worst.step})"
    apart = one_pass.largest_difference
    if apart is None:
        apart = one_pass.mean_difference
    found += f"; log-probabilities differ by {apart:.2g}"
    what = f"{one_pass.sequences} outputs by the bundle's own scores"
    yield "tokens", what, found, f"{one_pass.allowed:.2g}", verdict(one_pass.passed)


def _shortlist_rows(parity: Parity) -> Iterator[Row]:
    cost = parity.shortlist
    if cost is None:
        return
    found = f"{cost.identical} of {cost.sequences} identical"
    for task in cost.tasks:
        oracle, bundle = (shown_figure(task.metric, x) for x in (task.oracle, task.bundle))
        found += f"; {escape(task.metric)} {bundle}, of the whole vocabulary {oracle}"
    what = f"the shortlist's cost, with {cost.allowed:,.0f} tokens a source"
    yield "tokens", what, found, "", "stated only"


def _beam_rows(parity: Parity) -> Iterator[Row]:
    beams = parity.beams
    if beams is None:
        return
    found = f"{beams.identical} of {beams.sequences} identical"
    if beams.ties:
        found += f", {beams.ties} as good"
    found += f"; scores differ by {beams.score_difference:.2g}"
    found += f", from own scores by {beams.own_difference:.2g}"
    what, allowed = f"the best of {beams.beams} beams", f"own scores {beams.own_allowed:.2g}"
    yield "tokens", what, found, allowed, verdict(beams.passed, undecided=beams.undecided)


def _task_rows(parity: Parity) -> Iterator[Row]:
    for task in parity.tasks:
        bundle, oracle = (shown_figure(task.metric, x) for x in (task.bundle, task.oracle))
        found, allowed = f"{bundle}, oracle {oracle}", "see docs: parity"
        if task.chance is not None and task.bundle != task.oracle:
            found += f" (by chance with p = {task.chance:.2g})"
        if task.allowed is not None:
            sign = "-" if task.higher_is_better else "+"
            allowed = f"{sign}{shown_figure(task.metric, task.allowed)}"
        if task.undecided:
            reason = describe_undecided(
                task.metric, task.loss, task.allowed or 0.0, task.pairs, task.more_inputs
            )
            found += f"; {reason}"
        of_texts = f"{task.metric} of {task.pairs} texts" if task.pairs else task.metric
        yield "task", of_texts, found, allowed, verdict(task.passed, undecided=task.undecided)


def _reference_rows(parity: Parity) -> Iterator[Row]:
    references = parity.references
    if references is None:
        return
    difference = references.bundle - references.oracle
    found = f"{references.bundle:.4f}, oracle {references.oracle:.4f} ({difference:+.2g})"
    if max(references.bundle, references.oracle) < MOST_SHOWN:
        perplexities = (math.exp(nats) for nats in (references.bundle, references.oracle))
        found += "; perplexity {:.4g}, oracle {:.4g}".format(*perplexities)
    what = f"nats per token of {references.pairs} references"
    yield "references", what, found, f"+{references.tolerance:g}", verdict(references.passed)


ROWS: tuple[Callable[[Parity], Iterator[Row]], ...] = (
    _check_rows,
    _tensor_rows,
    _distribution_rows,
    _embedding_rows,
    _token_rows,
    _beam_rows,
    _shortlist_rows,
    _task_rows,
    _reference_rows,
)
"""The functions that yield the rows of a kind of figures, in order."""


def engine_table(bundle: Bundle, engines: TensorRTEngines) -> Table:
    """Return the table of engines; values that need a GPU are marked."""
    manifest = bundle.manifest
    sizes = {file.path: file.size for file in manifest.files}
    reports = list(engines.reports.values())
    files = [manifest.graphs[name].file for name in engines.reports]
    title = f"engines of {manifest.target} {engines.version}, CUDA {engines.cuda_version}"
    table = Table("", *engines.reports, title=title, title_justify="left")
    table.add_row("size", *(f"{sizes[file]:,} bytes" for file in files))
    table.add_row("weights", *(_counts(r.weights, " bytes of ") for r in reports))
    table.add_row("layers", *(_counts(r.layers, " ") for r in reports))
    table.add_row("attention", *(f"{r.attentions}, {_fused(r.fused)}" for r in reports))
    dequantized = (
        "unknown" if r.dequantizations is None else str(r.dequantizations) for r in reports
    )
    table.add_row("dequantized by separate kernels", *dequantized)
    table.add_row("memory while running", *(_memory(bundle, file) for file in files))
    for index, profile in enumerate(engines.profiles):
        batch, source = _range(profile.batch), _range(profile.source)
        limits = {
            "encoder": f"batch {batch}\nsource {source}",
            "decoder": f"batch {batch}\nsource {source}\nat most {engines.capacity} new tokens",
            "candidates": f"batch {batch}",
        }
        table.add_row(f"profile {index}", *(limits[name] for name in engines.reports))
    capabilities = ", ".join(engines.compute_capabilities) or "the package's default"
    table.add_row("compute capabilities", *([capabilities] * len(reports)))
    table.add_row("refittable", *(["yes" if engines.refittable else "no"] * len(reports)))
    return table


def _counts(counts: dict[str, int], between: str) -> str:
    return "\n".join(f"{count:,}{between}{name}" for name, count in counts.items())


def _fused(kernels: dict[str, int] | None) -> str:
    if kernels is None:
        return "unknown whether fused"
    return ", ".join(f"{count} {name}" for name, count in kernels.items()) or "none fused"


def _range(sizes: Range) -> str:
    return f"{sizes.smallest} to {sizes.largest} (best {sizes.best})"


def _memory(bundle: Bundle, file: str) -> str:
    try:
        find_gpu()
    except BackendError:
        return "known only on a GPU"
    try:
        return f"{device_memory(bundle, file):,} bytes"
    except BackendError as error:
        return str(error)
