"""`docs/memories.md` has the memories of every chip file."""

from tests.memory_tables import PAGE, page_with_table


def test_the_page_is_what_the_chip_files_say():
    text = PAGE.read_text(encoding="utf-8")
    assert text == page_with_table(text), "run: python -m tests.memory_tables"
