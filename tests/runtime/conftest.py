"""Storage roots for the tests of the runtime. Making a database takes seconds: one is copied."""

import shutil
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from arch_search.storage import Root

sys.path.insert(0, str(Path(__file__).parent))


@pytest.fixture(scope="session")
def database(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from arch_search.tracking.server import prepare

    path = tmp_path_factory.mktemp("mlflow") / "mlflow.db"
    prepare(f"sqlite:///{path}")
    return path


@pytest.fixture
def new_root(tmp_path: Path, database: Path) -> Callable[[str], Root]:
    """Makes a storage root whose MLflow database exists already."""

    def make(name: str = "root") -> Root:
        root = Root(tmp_path / name).make()
        shutil.copy(database, root.path / "mlflow.db")
        return root

    return make
