"""Where MLflow's data go: the address, whether it answers, and the making of a database."""

import contextlib
import fcntl
import logging
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from urllib.parse import parse_qsl, urlencode, urlsplit

from arch_search.errors import UsageError
from arch_search.redaction import hide_secrets, with_secret
from arch_search.storage import Root

PROBE_SECONDS = 10.0
LOCK_KEY = 0x61726368  # any number that other users of the database are unlikely to lock
SQLITE = "sqlite:///"
SERVERS = ("http", "https")
DATABASES = ("postgresql", "mysql", "mssql")


def tracking_address(root: Root, uri: str = "") -> str:
    """The URI to use: the root's own database if none is given; SQLite by absolute path
    (a relative one starts at the root).

    SQLite gets a timeout of 60 s, without which a second reader makes writes fail.
    Raises UsageError for a scheme that cannot hold an experiment.
    """
    uri = with_secret(root.path, uri) or f"{SQLITE}{root.path / 'mlflow.db'}"
    scheme = urlsplit(uri).scheme.split("+")[0]
    if scheme == "sqlite":
        path, _, query = uri.removeprefix(SQLITE).partition("?")
        options = {"timeout": "60", **dict(parse_qsl(query))}
        return f"{SQLITE}{root.path / Path(path).expanduser()}?{urlencode(options)}"
    if scheme not in (*SERVERS, *DATABASES):
        raise UsageError(
            f"tracking address {hide_secrets(uri)!r}: expected http(s)://server, sqlite:///path or "
            "another database; leave it out for a database under the storage root"
        )
    return uri


def probe(uri: str) -> None:
    """Raise UsageError, in one line and within about 10 s, if MLflow cannot be reached there."""
    scheme = urlsplit(uri).scheme.split("+")[0]
    if scheme == "sqlite":
        _probe_file(_sqlite_path(uri))
    elif scheme in SERVERS:
        _bounded(uri, lambda: _search(uri))
    else:
        _bounded(uri, lambda: _connect(uri))


def prepare(uri: str) -> None:
    """Make a database's tables, or bring them up to date, once: a second maker waits for the first.

    An MLflow server does so for itself.
    """
    if is_server(uri):
        return
    for chatty in ("alembic", "mlflow.store.db.utils"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    if not uri.startswith(SQLITE):
        with _database_lock(uri):
            _search(uri)
        return
    path = _sqlite_path(uri)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.with_name(path.name + ".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        _search(uri)


def is_server(uri: str) -> bool:
    """Whether MLflow is reached through a server of its own, which also holds the artifacts."""
    return urlsplit(uri).scheme in SERVERS


@contextlib.contextmanager
def _database_lock(uri: str) -> Iterator[None]:
    """PostgreSQL's advisory lock while the block runs; other databases have none of the kind."""
    from sqlalchemy import NullPool, create_engine, text

    engine = create_engine(uri, poolclass=NullPool)  # closing it gives the lock back
    with engine.connect() as connection:
        if engine.dialect.name == "postgresql":
            connection.execute(text("SELECT pg_advisory_lock(:key)"), {"key": LOCK_KEY})
        yield


def _sqlite_path(uri: str) -> Path:
    return Path(uri.removeprefix(SQLITE).partition("?")[0])


def _probe_file(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryFile(dir=path.parent):
            pass
        beginning = _beginning(path)
    except OSError as error:
        raise UsageError(
            f"tracking database {path} cannot be written ({error.strerror}); choose another "
            "with tracking.uri"
        ) from None
    if beginning and beginning != b"SQLite format 3\0":
        raise UsageError(f"tracking database {path} is no SQLite file")


def _beginning(path: Path) -> bytes:
    if not path.exists():
        return b""
    with path.open("rb") as file:
        return file.read(16)


def _search(uri: str) -> None:
    from mlflow import MlflowClient

    MlflowClient(tracking_uri=uri).search_experiments(max_results=1)


def _connect(uri: str) -> None:
    from sqlalchemy import create_engine

    create_engine(uri).connect().close()


def _bounded(uri: str, reach: Callable[[], None]) -> None:
    """Call `reach`; give up after PROBE_SECONDS, whatever the library below would wait for."""
    failed: list[Exception] = []

    def attempt() -> None:
        try:
            reach()
        except Exception as error:
            failed.append(error)

    thread = threading.Thread(target=attempt, daemon=True)
    thread.start()
    thread.join(PROBE_SECONDS)
    where = hide_secrets(uri)
    if thread.is_alive():
        raise UsageError(f"tracking server {where} gives no answer within {PROBE_SECONDS:g} s")
    if failed:
        why = reason(failed[0])
        raise UsageError(
            f"tracking server {where} cannot be used ({why}); start it, or leave tracking.uri out "
            "for a database under the storage root"
        )


def reason(error: Exception) -> str:
    """What MLflow, a database or the network raised, in a few words."""
    text = hide_secrets(" ".join(str(error).split()))
    for known in ("Connection refused", "Name or service not known", "No route to host"):
        if known in text:
            return known.lower()
    return f"{type(error).__name__}: {text[:200]}"
