"""The report pages, served beside MLflow: read only, to this machine alone."""

import html
import re
import threading
from http import HTTPStatus
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from urllib.parse import unquote, urlsplit

from arch_search.errors import UsageError
from arch_search.progress import read_status
from arch_search.storage import ExperimentFolder, Root
from arch_search.tracking.server import tracking_address
from dashboards.report import refresh_report
from dashboards.sweep_report import make_sweep_report, write_sweep_report

_HOSTS = re.compile(r"(localhost|127\.0\.0\.1)(:\d+)?")
_TYPES = {".html": "text/html; charset=utf-8", ".svg": "image/svg+xml",
          ".md": "text/plain; charset=utf-8", ".tex": "text/plain; charset=utf-8"}  # fmt: skip
_STYLE = (
    "body{font:16px/1.55 'Helvetica Neue',Helvetica,Arial,sans-serif;color:#1c2733;max-width:960px;"
    "margin:48px auto;padding:0 32px}a{color:#0072b2}table{border-collapse:collapse;width:100%}"
    "td,th{text-align:left;padding:8px 12px 8px 0;border-bottom:1px solid #dfe4e9}"
)


class PageServer(ThreadingHTTPServer):
    """Serves an index of the experiments and their reports, made anew when runs have come in."""

    daemon_threads = True

    def __init__(self, root: Root, port: int, mlflow_url: str) -> None:
        """Raises OSError if the port is taken."""
        super().__init__(("127.0.0.1", port), _Handler)
        self.root, self.mlflow_url = root, mlflow_url
        self.drawing = threading.Lock()  # one report at a time

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}"


class _Handler(BaseHTTPRequestHandler):
    server: PageServer  # type: ignore[assignment]

    def do_GET(self) -> None:
        """Answer the index, or one file of a report."""
        if not _HOSTS.fullmatch(self.headers.get("Host", "")):  # a foreign page asks (rebinding)
            self._answer(HTTPStatus.FORBIDDEN, _page("Forbidden", "Ask for it as 127.0.0.1."))
            return
        parts = [unquote(part) for part in urlsplit(self.path).path.split("/") if part]
        try:
            if not parts:
                self._answer(HTTPStatus.OK, _index(self.server))
            elif len(parts) == 2:
                self._file(self.server.root.experiment(parts[0]), parts[1])
            else:
                self._answer(HTTPStatus.NOT_FOUND, _page("Not found", "There is no such page."))
        except UsageError as error:
            self._answer(HTTPStatus.CONFLICT, _page("No report", str(error)))

    def _file(self, folder: ExperimentFolder, name: str) -> None:
        kind = _TYPES.get(Path(name).suffix)
        if kind is None or "/" in name or name.startswith("."):
            self._answer(HTTPStatus.NOT_FOUND, _page("Not found", "There is no such page."))
            return
        with self.server.drawing:
            _refresh(folder, self.server.root)
        path = folder.report / name
        if path.is_file():
            self._answer(HTTPStatus.OK, path.read_bytes(), kind)
        else:
            self._answer(HTTPStatus.NOT_FOUND, _page("Not found", "There is no such page."))

    def _answer(self, status: HTTPStatus, body: bytes, kind: str = _TYPES[".html"]) -> None:
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(body)))
        self.send_header("X-Content-Type-Options", "nosniff")
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        """Quiet: the terminal belongs to the addresses."""


def _refresh(folder: ExperimentFolder, root: Root) -> None:
    """A sweep's report is drawn at every visit, an ablation's when runs have come in."""
    plan = folder.plan()
    if plan.sweep is None:
        refresh_report(folder.name, root)
    else:
        write_sweep_report(make_sweep_report(root, plan), folder.report)


def charts_url(folder: ExperimentFolder, own_server: str) -> str | None:
    """Where MLflow charts an experiment's runs: on our own server, or the one it was sent to.

    None: it is not in MLflow yet, or in a database that no server of ours shows.
    """
    tracking = folder.read("tracking.json")
    root = Root(folder.path.parent.parent)
    uri = str(tracking.get("uri", ""))
    server = own_server if uri == tracking_address(root) else _without_password(uri)
    if "experiment_id" not in tracking or not server.startswith(("http://", "https://")):
        return None
    shown = "compareRunsMode=CHART&workflowType=machine_learning"
    return f"{server.rstrip('/')}/#/experiments/{tracking['experiment_id']}/runs?{shown}"


def _without_password(uri: str) -> str:
    parts = urlsplit(uri)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


def _index(server: PageServer) -> bytes:
    folders = server.root.experiments() if server.root.path.is_dir() else ()
    rows = [_row(server, folder) for folder in folders]
    listed = f"<table>{''.join(rows)}</table>" if rows else "<p>No experiment yet.</p>"
    everything = f'<p><a href="{server.mlflow_url}">Everything in MLflow</a></p>'
    return _document("Experiments", listed + everything)


def _row(server: PageServer, folder: ExperimentFolder) -> str:
    """An experiment in the index; one that cannot be read says why, and hides no other."""
    try:
        status, question = read_status(server.root, folder.name), folder.plan().question
        charts = charts_url(folder, server.mlflow_url)
    except UsageError as error:
        return f"<tr><td>{folder.name}</td><td colspan=3>{html.escape(str(error))}</td></tr>"
    link = f'<a href="/{folder.name}/report.html">{folder.name}</a>'
    curves = f'<a href="{html.escape(charts)}">curves</a>' if charts else "not in MLflow yet"
    return (
        f"<tr><td>{link}</td><td>{html.escape(question)}</td><td>{curves}</td>"
        f"<td>{status.count('FINISHED')} of {len(status.runs)} runs finished</td></tr>"
    )


def _page(title: str, text: str) -> bytes:
    return _document(title, f"<p>{html.escape(text)}</p>")


def _document(title: str, body: str) -> bytes:
    return (
        f'<!doctype html><html lang="en"><meta charset="utf-8"><title>{title}</title>'
        f"<style>{_STYLE}</style><h1>{title}</h1>{body}</html>"
    ).encode()
