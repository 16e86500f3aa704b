"""The page: whole HTML that needs nothing else, with every number of the report."""

from __future__ import annotations

import base64
import dataclasses
import functools
import html
import itertools
import json
import re
from html.parser import HTMLParser

import pytest

from dragoman.runtime.format.parity import Divergence, Parity, TaskParity
from dragoman.runtime.format.plain_data import to_plain
from dragoman.verification.report.contents import BundleReport, Report
from dragoman.verification.report.page import MOST_DIVERGENCES, render

from .conftest import HOSTILE, bundle_report, divergence, parity, report, sensitivity

VOID = {"meta", "br", "hr", "img", "input", "link"}


class Page(HTMLParser):
    """Reads a page, and fails where it is not well-formed."""

    def __init__(self, text: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.ids: list[str] = []
        self.scripts: list[dict[str, str | None]] = []
        self.tags: list[tuple[str, dict[str, str | None]]] = []
        self.texts: list[str] = []
        self.data = ""
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        named = dict(attrs)
        assert len(named) == len(attrs)
        self.tags.append((tag, named))
        if "id" in named:
            self.ids.append(named["id"] or "")
        if tag == "script":
            self.scripts.append(named)
        if tag not in VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.handle_starttag(tag, attrs)
        if tag not in VOID:
            self.open.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["script"]:
            self.data += data
        elif self.open[-1:] != ["style"]:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())

    def of(self, attribute: str) -> list[str]:
        return [named[attribute] or "" for _, named in self.tags if attribute in named]


def several() -> Report:
    """A bundle with everything, one that failed, one of which nothing is known."""
    return report(
        bundle_report(),
        bundle_report("failed", parity(passed=False, divergences=60)),
        unknown(),
    )


def unknown() -> BundleReport:
    return dataclasses.replace(
        bundle_report("unknown"),
        parity=None,
        checks=(),
        tasks=(),
        licences=(),
        training=None,
        sensitivity=None,
        speed=None,
        attention=(),
        passes=(),
        missing={
            "parity": "not verified: dragoman verify unknown CHECKPOINT",
            "licences": "no licence file: --checkpoint",
            "training": "known from the checkpoint: --checkpoint CHECKPOINT",
            "sensitivity": "not measured: dragoman sensitivity unknown CHECKPOINT",
            "speed": "not measured, as requested",
            "attention": "no graph that shows it: build --with-attention",
        },
    )


REPORTS = {"one": report(), "several": several(), "unknown": report(unknown())}


@functools.cache
def rendered(name: str) -> str:
    return render(REPORTS[name])


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_is_whole(name: str) -> None:
    text = rendered(name)
    page = Page(text)
    assert text.startswith("<!doctype html>")
    assert len(page.ids) == len(set(page.ids))
    targets = [ref.removeprefix("#") for ref in page.of("href") if ref.startswith("#")]
    targets += [ref.removeprefix("#") for ref in page.of("xlink:href") if ref.startswith("#")]
    targets += [label for labels in page.of("aria-labelledby") for label in labels.split()]
    targets += re.findall(r"url\(#([^)]*)\)", text)
    assert set(targets) <= set(page.ids)
    headings = [int(tag[1]) for tag, _ in page.tags if re.fullmatch("h[1-6]", tag)]
    assert headings[0] == 1 and headings.count(1) == 1
    assert all(after <= before + 1 for before, after in itertools.pairwise(headings))


@pytest.mark.parametrize("name", REPORTS)
def test_the_page_needs_nothing_else(name: str) -> None:
    text = rendered(name)
    page = Page(text)
    assert page.scripts == [{"type": "application/json", "id": "report"}]
    refs = [*page.of("href"), *page.of("xlink:href"), *page.of("src")]
    assert all(ref.startswith(("#", "data:")) for ref in refs)
    namespaces = {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    written = text.replace(json.dumps(page.data), "")
    assert set(re.findall(r"https?://[^\s\"'<]+", written)) <= namespaces
    assert "@import" not in text and "@font-face" not in text
    policies = [n["content"] for tag, n in page.tags if tag == "meta" and "http-equiv" in n]
    assert policies == ["default-src 'none'; style-src 'unsafe-inline'; img-src data:"]


def test_texts_are_texts() -> None:
    """Texts of models, licences and manifests are not elements, and do not end the data early."""
    text = render(several())
    page = Page(text)
    assert "alert(1)</script>" not in text and "<b>" not in text
    assert page.text.count(" ".join(HOSTILE.split())) >= 5
    assert json.loads(page.data)["bundles"][0]["facts"][1]["value"] == HOSTILE
    labels = [label for label in page.of("aria-label") if "<" in label]
    assert labels == [] or html.escape(labels[0]) in text


@pytest.mark.parametrize("name", REPORTS)
def test_json_in_the_page_is_the_report(name: str) -> None:
    page = Page(rendered(name))
    (link,) = [named for tag, named in page.tags if "download" in named]
    kind, _, data = (link["href"] or "").partition(",")
    assert kind == "data:application/json;base64"
    expected = json.loads(json.dumps(to_plain(REPORTS[name])))
    assert json.loads(base64.b64decode(data)) == expected == json.loads(page.data)


def test_every_number_of_the_data_is_on_the_page() -> None:
    """Read from the JSON in the page, and formatted by hand."""
    page = Page(render(report()))
    (bundle,) = json.loads(page.data)["bundles"]
    text = page.text
    for check in bundle["checks"]:
        assert f"{check['level']} {check['what']} {check['found']}" in text
    for file in bundle["files"]:
        assert f"{file['path']} {file['size']:,} {file['sha256']}" in text
    for licence in bundle["licences"]:
        assert licence["name"] in text and licence["sha256"] in text
    for step in bundle["passes"][::2]:
        refused = len(step["refusals"])
        nodes = f"{step['nodes_before']} → {step['nodes_after']}"
        assert f"{step['name']} {step['matches']} {refused} {nodes}" in text
        assert all(refusal["reason"] in text for refusal in step["refusals"])
    assert "Without anything to do: query-scale (encoder)" in text
    found = bundle["sensitivity"]
    for product in found["products"]:
        row = f"{product['name']} {product['layer']} {product['parameters']:,} "
        row += f"{product['error']:.2%} {product['allowed']:.2%}"
        if product["alone"]:
            row += f" {trimmed(product['alone']['mean'])} {trimmed(product['alone']['largest'])}"
        assert row in text
    for step in found["keeping"][1:-1]:
        effect = step["effect"]
        row = f"{step['count']} {trimmed(effect['mean'])} {trimmed(effect['largest'])} "
        assert f"{row}{effect['same_choice']:.2%} {step['weight_bytes'] / 1e6:.2f}" in text
    for t in bundle["speed"]["timings"]:
        milliseconds = " ".join(
            f"{t[part]['p50']:.4g} ({t[part]['p90']:.4g})"
            for part in ("encoder", "step", "sentence")
        )
        row = f"{t['source_length']} {t['batch_size']} 64 {milliseconds} "
        assert f"{row}{round(t['tokens_per_second']):,}" in text
    found = bundle["training"]
    assert "data 28,896 train, 612 validation, 1,400 held out left out 163 a duplicate, 5 " in text
    assert "corpus news.en and news.de: 1,200 pairs after cleaning, weight 0.25 unknown" in text
    both = ("held out source: 3 of 40", "held out target: 1 of 9")
    assert " ".join(f"unknown characters {line}" for line in both) in text
    assert "epochs 3, in 1:01:50 held-out chrF 53.22 held-out exact match 71.00%" in text
    for candidate in found["candidates"]:
        loss, metric = (f"{candidate[name]:.4f}" for name in ("validation_loss", "metric"))
        row = f"{candidate['name']} {candidate['description']} {loss} {metric}"
        assert row + " delivered" * candidate["delivered"] in text
    assert "precision bf16" in text
    assert bundle["manifest_sha256"] in text
    assert f"{bundle['speed']['load_seconds']:.2f} s" in text
    assert f"{bundle['speed']['peak_memory_mb']:.0f} MB" in text


def trimmed(value: float) -> str:
    return f"{value:.3g}".replace("e-0", "e-")


def test_divergences_are_side_by_side() -> None:
    page = Page(render(report()))
    source = " ".join(HOSTILE.split())
    assert f"held_out.tsv, line 5 {source} T R AE N S T R AE M Z 2 0.1" in page.text
    assert page.text.index("line 7") < page.text.index("line 5")  # by margin
    marks = [page.texts[i] for i, text in enumerate(page.texts) if text in ("N S", "M Z")]
    assert marks == ["N S", "M Z"] * 2
    assert "number 17 not recorded token 27 token 3 4 0.071" in page.text
    assert "Texts are recorded by dragoman verify." not in page.text


def test_texts_that_no_divergence_has_are_explained() -> None:
    page = Page(render(report(bundle_report("old", with_divergences(divergence(1))))))
    assert "Texts are recorded by dragoman verify." in page.text


def test_an_output_without_text_is_named() -> None:
    silent = dataclasses.replace(divergence(0), found="")
    page = Page(render(report(bundle_report("silent", with_divergences(silent)))))
    assert "T R AE N S an empty text 2 0.1" in page.text


def with_divergences(*divergences: Divergence) -> Parity:
    found = parity()
    tokens = dataclasses.replace(found.tokens, divergences=divergences)
    return dataclasses.replace(found, tokens=tokens)


def test_the_largest_margins_are_shown_and_all_are_counted() -> None:
    """They grow with the line of the input."""
    page = Page(render(report(bundle_report("failed", parity(passed=False, divergences=60)))))
    assert f"The {MOST_DIVERGENCES} with the largest margins of 60." in page.text
    shown = re.findall(r"held_out\.tsv, line (\d+) ", page.text)
    assert shown == [str(line) for line in range(64, 14, -1)]
    recorded = json.loads(page.data)["bundles"][0]["parity"]["tokens"]["divergences"]
    assert [d["input"] for d in recorded[2:]] == [*range(2, 60)]


def test_several_bundles_are_compared_first() -> None:
    made = several()
    page = Page(render(made))
    assert page.text.index("Comparison") < page.text.index("What it is")
    rows = {
        "g2p-int8": "cpu int8 passed 97 of 100 5.93e-5 31.44% 2.21 0.07 115 5.413",
        "failed": "cpu int8 failed 40 of 100 5.93e-5 31.44% 2.21 0.07 115 5.413",
        "unknown": "cpu int8 passed 2.21 not measured",
    }
    for label, row in rows.items():
        assert f"{label} {row}" in page.text
    assert [named for tag, named in page.tags if named.get("id") == "speed"]
    assert "speed" not in Page(render(report())).ids  # of one, in its section


def test_the_task_is_compared_where_there_is_one() -> None:
    bare = unknown()
    words, bleu = (
        dataclasses.replace(bare, tasks=(TaskParity(metric, 0.25, figure, True),))
        for metric, figure in (("word error", 0.3144), ("BLEU", 41.25))
    )
    for bundles, header, rows in (
        ((words, bare), "divergence, nats word error size, MB", ["passed 31.44% 2.21"]),
        (
            (words, bleu),
            "divergence, nats task size, MB",
            ["passed 31.44% word error 2.21", "passed 41.25 BLEU 2.21"],
        ),
        ((bare, bare), "divergence, nats size, MB", ["passed 2.21"]),
    ):
        page = Page(render(report(*bundles)))
        assert all(text in page.text for text in (header, *rows))


def test_a_part_that_is_missing_besides_others_is_named() -> None:
    made = dataclasses.replace(bundle_report(), missing={"licences": "those of the checkpoint"})
    assert made.licences
    assert "those of the checkpoint" in Page(render(report(made))).text


def test_what_is_missing_is_said() -> None:
    made = unknown()
    page = Page(render(report(made)))
    for problem in made.missing.values():
        assert problem in page.text
    assert "None: the graphs are as exported." in page.text
    assert not [tag for tag, named in page.tags if tag == "svg"]


def test_nothing_differs() -> None:
    same = parity(divergences=0)
    page = Page(render(report(bundle_report("same", same))))
    assert "None: all 100 outputs are the trained model's." in page.text
    assert "b1-margins" not in render(report(bundle_report("same", same)))


def test_verdicts_come_first() -> None:
    made = several()
    page = Page(render(made))
    for bundle in made.bundles:
        assert f"{bundle.label}: {bundle.verdict.state} {bundle.verdict.sentence}" in page.text
    assert page.text.index("Verdict") < page.text.index("Comparison")


def test_a_sensitivity_without_measurable_products() -> None:
    found = sensitivity()
    found = dataclasses.replace(
        found, products=found.products[-1:], layers=(), keeping=found.keeping[:1]
    )
    bundle = dataclasses.replace(bundle_report(), sensitivity=found)
    page = Page(render(report(bundle)))
    assert "fp32, too inaccurate" in page.text
    assert "The worst product" not in page.text and "b1-products" not in page.ids


def test_other_weights_are_reported() -> None:
    found = dataclasses.replace(sensitivity(), differing=("a", "b"))
    page = Page(render(report(dataclasses.replace(bundle_report(), sensitivity=found))))
    assert "2 products are rounded differently from the bundle" in page.text


def test_a_model_without_a_decoder() -> None:
    found: Parity = dataclasses.replace(
        parity(divergences=0), tokens=dataclasses.replace(parity().tokens, sequences=0)
    )
    page = Page(render(report(bundle_report("encoder", found))))
    assert "Outputs that differ" not in page.text
