"""Which tests pytest-xdist gives to which worker."""

from __future__ import annotations

from typing import Any

from xdist.scheduler import LoadScopeScheduling

SECONDS = {
    "tests/export/families/test_beams_of_hugging_face.py": 70,
    "tests/export/families/test_attention_of_hugging_face.py": 50,
    "tests/sensitivity/test_measuring.py": 45,
    "tests/verification/test_configurations.py": 45,
    "tests/optimize/fusions/test_foreign_models.py": 45,
    "tests/optimize/test_batch_invariance.py": 40,
    "tests/export/families/test_bart_relatives.py": 35,
    "tests/verification/test_settings.py": 30,
    "tests/cli/test_encode.py": 30,
    "tests/cli/test_refused_at_once.py": 30,
    "tests/sensitivity/test_keep_fp32.py": 25,
    "tests/cli/test_pipes_and_signals.py": 25,
    "tests/serving/test_fuzz.py": 25,
    "tests/export/families/test_generate_of_hugging_face.py": 20,
    "tests/mutants/test_mutants.py": 20,
    "tests/api/test_each_byte_once.py": 20,
    "tests/export/families/test_t5.py": 20,
    "tests/verification/test_damaged_bundles.py": 20,
    "tests/optimize/test_operators.py": 20,
    "tests/report/test_page.py": 15,
    "tests/report/test_report.py": 15,
    "tests/runtime/scoring/test_families.py": 15,
    "tests/export/families/test_torch_transformer.py": 15,
    "tests/export/families/test_gpt2_trained.py": 15,
    "tests/verification/test_bible_en_es.py": 15,
    "tests/cli/test_speech.py": 15,
    "tests/cli/test_documented_commands.py": 15,
    "tests/verification/test_one_pass.py": 13,
    "tests/cli/test_hub.py": 13,
    "tests/cli/test_verify.py": 13,
    "tests/cli/test_engines.py": 13,
    "tests/cli/test_attention.py": 12,
    "tests/optimize/precision/test_attention_graph.py": 12,
    "tests/optimize/tensorrt/test_engines.py": 12,
}
"""Processor time of the slowest files without a cache. Others take a hundredth of a second for each
test."""


class OnceEach(LoadScopeScheduling):  # type: ignore[misc]
    """No test is run again after a worker ended in it."""

    def remove_node(self, node: Any) -> str | None:
        """Return the test at which a worker ended, if any; its other tests go to other workers.

        pytest-xdist 3.8 gives that test away, too, so that it ends the next worker, and waits for
        ever once workers have ended twice.
        """
        work = self.assigned_work.pop(node)
        ended = next(
            (test for unit in work.values() for test, done in unit.items() if not done), None
        )
        for scope, unit in work.items():
            left = {test: False for test, done in unit.items() if not done and test != ended}
            if left:
                self.workqueue[scope] = left
        for other in self.assigned_work:
            self._reschedule(other)
        return ended

    def _reschedule(self, node: Any) -> None:
        """Give a worker two tests at least: it runs one once it knows the next.

        Not while tests are collected, which a worker that replaces another does, too.
        """
        if self.collection is None or node not in self.registered_collections:
            return
        super()._reschedule(node)
        while self.workqueue and not node.shutting_down and self._tests_of(node) < 2:
            super()._reschedule(node)

    def _tests_of(self, node: Any) -> int:
        return int(self._pending_of(self.assigned_work[node]))


class LongestFirst(OnceEach):
    """A file goes to one worker, which makes its fixtures once. Long ones begin first."""

    def _split_scope(self, nodeid: str) -> str:
        return nodeid.partition("::")[0]

    def _assign_work_unit(self, node: Any) -> None:
        longest = max(self.workqueue, key=self._seconds)
        self.workqueue.move_to_end(longest, last=False)
        super()._assign_work_unit(node)

    def _seconds(self, scope: str) -> float:
        return SECONDS.get(scope, 0.01 * len(self.workqueue[scope]))


class ModelByModel(OnceEach):
    """Tests that differ in their last parameter only go to one worker, which exports their model
    once.

    The marker `xdist_group` does this no more: pytest 9 ignores the group that pytest-xdist 3.8
    writes into the names of tests.
    """

    def _split_scope(self, nodeid: str) -> str:
        function, _, parameters = nodeid.partition("[")
        return f"{function}[{parameters.rpartition('-')[0]}"
