"""How an optional part of this project is installed, in one wording."""


def how_to_install(extra: str) -> str:
    """The command for an extra of pyproject.toml, within the tested bounds of constraints.txt."""
    return f"in the checkout: pip install -c constraints.txt -e '.[{extra}]'"
