"""Options of the whole test suite."""


def pytest_addoption(parser):
    parser.addoption(
        "--update-golden", action="store_true", help="rewrite the golden training traces"
    )
