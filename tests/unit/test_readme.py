"""The README says what the code does."""

from gateway import errors
from tests.readme import README, filled


def test_its_tables_are_those_of_the_code() -> None:
    """Options and metrics stand as declared; `python -m tests.readme` writes them."""
    text = README.read_text()
    assert filled(text) == text


def test_every_error_code_is_explained() -> None:
    """A code that a client may get stands in the table of errors."""
    text = README.read_text()
    kinds = [errors.GatewayError]
    for kind in kinds:
        kinds += kind.__subclasses__()
    codes = {kind.code for kind in kinds} - {"internal_error"}
    assert len(codes) > 15
    assert not [code for code in codes if f"`{code}`" not in text]


def test_its_map_names_every_module() -> None:
    """A file that the tables of "How it is built" do not name is one that a newcomer stumbles over."""
    _, _, text = README.read_text().partition("## How it is built")
    places = [path for package in ("gateway", "policies") for path in (README.parent / package).iterdir()]
    names = {path.stem if path.suffix == ".py" else f"{path.name}/" for path in places}
    assert not sorted(name for name in names if not name.startswith("__") and f"`{name}`" not in text)
