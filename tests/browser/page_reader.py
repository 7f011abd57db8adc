"""How a test reads what the page shows: real tables, and the sentence about a cell."""

from math import inf, isclose

MINUS, TIMES = "\N{MINUS SIGN}", "\N{MULTIPLICATION SIGN}"


def number(text):
    """A number as the page writes it."""
    return {"-inf": -inf, "inf": inf}.get(text) or float(text.replace(MINUS, "-"))


def read_table(table):
    """The heads of the columns, the names of the rows, and the texts of the cells."""
    heads = table.locator("thead th").all_inner_texts()
    rows = table.locator("tbody tr")
    told = rows.evaluate_all(
        "rows => rows.map(row => [...row.children].map(cell => cell.innerText))"
    )
    return heads, [row[0] for row in told], [row[1:] for row in told]


def matrix_of(page, place=".attention-panel"):
    """The numbers of a matrix, from its table view."""
    view = page.locator(place)
    if not view.locator("table").count():
        view.get_by_role("button", name="Show as table").click()
    heads, names, cells = read_table(view.locator("table"))
    numbers = [[number(cell) for cell in row] for row in cells]
    return heads[1:], names, numbers


def alike(shown, wanted, within=2e-5):
    """Whether two tables of numbers agree, number by number."""
    return len(shown) == len(wanted) and all(
        len(a) == len(b)
        and all(isclose(x, y, rel_tol=1e-3, abs_tol=within) for x, y in zip(a, b, strict=True))
        for a, b in zip(shown, wanted, strict=True)
    )
