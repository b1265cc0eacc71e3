"""What the README says of results is what is in expected/."""

import re


def table(text: str) -> list[dict[str, str]]:
    """The first Markdown table whose header has a Method column."""
    lines = text[text.index("| Method") :].split("\n")
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    end = next(i for i, line in enumerate(lines) if not line.startswith("|"))
    return [dict(zip(cells[0], row, strict=True)) for row in cells[2:end]]


def test_the_table_of_results_is_the_accepted_one(repo):
    ours = table((repo / "README.md").read_text())
    accepted = {row["Method"]: row for row in table((repo / "expected/mini/paper_tables/masc/table1.md").read_text())}
    assert len(ours) >= 9
    for row in ours:
        assert row == {column: accepted[row["Method"]][column] for column in row}


def test_every_linked_file_exists(repo):
    for page in ("README.md", "CONTRIBUTING.md"):
        links = re.findall(r"\]\(([^)#:]+)\)", (repo / page).read_text())
        assert [link for link in links if not (repo / link).exists()] == []
