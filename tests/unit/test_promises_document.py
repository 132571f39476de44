"""Every test that docs/promises.md names exists."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]


def test_the_tests_that_guard_promises_exist() -> None:
    page = (ROOT / "docs" / "promises.md").read_text(encoding="utf-8")
    cells = [line.split("|")[3] for line in page.splitlines() if line.startswith("| ") and "test" in line]
    sources = {path.name: path.read_text(encoding="utf-8") for path in (ROOT / "tests").rglob("test_*.py")}
    assert len(cells) > 20
    for cell in cells:
        files = re.findall(r"(test_\w+)\.py", cell)
        assert set(files) <= {name.removesuffix(".py") for name in sources}, cell
        for file, names in re.findall(r"(test_\w+\.py)((?:::\w+)+)", cell):
            for name in names.strip(":").split("::"):
                assert re.search(rf"(class|def) {name}\b", sources[file]), name
        for name in re.findall(r"`((?:Test\w+|test_\w+)(?:::test_\w+)?)`", cell):
            for part in name.split("::"):
                assert any(re.search(rf"(class|def) {part}\b", source) for source in sources.values()), part
