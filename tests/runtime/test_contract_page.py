"""The page that explains the graph contract says what the code says."""

from __future__ import annotations

from pathlib import Path

from dragoman.runtime.format.contract import ROLES, RoleDefinition

PAGE = Path(__file__).parents[2] / "docs" / "contract.md"


def row(role: str, definition: RoleDefinition) -> str:
    shape = ", ".join(definition.axes)
    cells = (
        f"`{role}`",
        definition.owner,
        definition.change,
        f"[{shape}]",
        definition.dtype or "float",
        "each" if definition.layered else "",
        definition.description,
    )
    return f"| {' | '.join(cells)} |"


def test_the_table_of_roles_is_the_codes() -> None:
    text = PAGE.read_text(encoding="utf-8")
    table = text.partition("<!-- roles: begin -->")[2].partition("<!-- roles: end -->")[0]
    rows = [line for line in table.strip().splitlines()[2:] if line]
    assert rows == [row(role, definition) for role, definition in ROLES.items()]


def test_every_owner_change_and_axis_is_explained() -> None:
    text = PAGE.read_text(encoding="utf-8")
    for definition in ROLES.values():
        assert f"| {definition.owner} |" in text
        assert f"| {definition.change} |" in text
        for axis in definition.axes:
            assert f"`{axis}`" in text
