"""Attacks and leaks: what files, addresses and names must not be able to do."""

import json
import os
import pickle
import subprocess
import sys
import tempfile
from pathlib import Path

import psutil
import pytest

from arch_search.attempt import Attempt
from arch_search.checkpoint import load_weights
from arch_search.integrity import read_progress, write_progress
from arch_search.journal import read_journal
from arch_search.model import LanguageModel
from arch_search.redaction import HidingStream, hide_secrets, keep_secret, with_secret
from arch_search.run_settings import LogSpec, ResourceSpec
from arch_search.scheduling.ray_folder import OWNER, clear, clear_abandoned, make_folder
from arch_search.scheduling.task import perform

from .conftest import FIRST, SMALL, plan_for, run_one

WORD = "hunter2-9f3c51d8"  # fixed: test processes must collect equal names


class Bomb:
    """Runs a command when it is unpickled."""

    def __init__(self, file):
        self.file = file

    def __reduce__(self):
        return os.system, (f"touch {self.file}",)


def refused(answer, says):
    code, _, err = answer
    assert says in err
    assert (code, len(err.strip().splitlines())) == (2, 1), err
    assert "Traceback" not in err


def experiment(tmp_path, text):
    file = tmp_path / "bad.yaml"
    file.write_text(text)
    return file


# What is loaded executes nothing.


def test_a_pickle_in_place_of_weights_is_not_executed(root, tmp_path):
    plan = plan_for(root)
    folder = run_one(root, plan, plan.runs[0])
    checkpoint = folder.latest_checkpoint()[2]
    for name in ("model.safetensors", "optimiser.safetensors"):
        (checkpoint / name).write_bytes(pickle.dumps(Bomb(tmp_path / "struck")))
    with pytest.raises(Exception, match=r"(?i)header|safetensor"):
        load_weights(checkpoint, LanguageModel(plan.runs[0].spec.model))
    write_progress(checkpoint, read_progress(checkpoint))  # whoever put it there mends the hashes
    (folder.path / "result.json").unlink()
    with pytest.raises(Exception, match=r"(?i)header|safetensor"):
        run_one(root, plan, plan.runs[0])
    assert not (tmp_path / "struck").exists()
    assert folder.attempts()[-1].end()["state"] == "FAILED"


def test_a_header_that_claims_more_than_there_is_is_refused(root, tmp_path):
    (tmp_path / "model.safetensors").write_bytes((2**62).to_bytes(8, "little") + b"{}")
    with pytest.raises(Exception, match=r"(?i)header|safetensor"):
        load_weights(tmp_path, LanguageModel(plan_for(root).runs[0].spec.model))


@pytest.mark.parametrize(
    "text",
    [
        "name: !!python/object/apply:os.system ['touch {struck}']\n",
        "name: !!python/object/new:subprocess.Popen [['touch', '{struck}']]\n",
        "name: x\nmodel: !!python/name:os.system\n",
    ],
)
def test_yaml_tags_make_no_objects(command, tmp_path, text):
    struck = tmp_path / "struck"
    refused(command("plan", experiment(tmp_path, text.format(struck=struck))), "bad.yaml")
    assert not struck.exists()


def test_hydras_target_is_an_unknown_key(command, tmp_path):
    override = "model._target_=os.system"
    refused(command("plan", FIRST, override), "unknown key")
    text = "defaults: [{hydra/launcher: basic}]\nname: x\n"
    refused(command("plan", experiment(tmp_path, text)), "bad.yaml")


def test_a_few_aliases_cannot_fill_the_memory(command, tmp_path):
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    for level in range(1, 20):
        lines.append(f"a{level}: &a{level} [{', '.join([f'*a{level - 1}'] * 9)}]")
    refused(command("plan", experiment(tmp_path, "\n".join(lines))), "YAML aliases")


def test_a_block_must_be_a_block(command):
    for kind in ("os:system", "subprocess:Popen", "builtins:eval"):
        blocks = f"model.blocks={{m: {{kind: '{kind}'}}}}"
        refused(command("plan", FIRST, blocks, "arms.with=m"), "expected a SequenceMixer")


# Names stay inside the root.


@pytest.mark.parametrize("name", ["../../x", "/etc/x", "a/../b", ".hidden", "x\n", "-rf"])
def test_names_cannot_leave_the_root(command, root, name):
    before = sorted(root.path.parent.rglob("*"))
    code, _, err = command("plan", FIRST, *SMALL, f"name='{name}'")
    assert code == 2, err
    for verb in ("status", "stop", "resume", "compare", "results", "rebuild", "report"):
        code, _, err = command(verb, "--", name)
        assert code == 2, (verb, err)
        assert "Traceback" not in err
    assert sorted(root.path.parent.rglob("*")) == before


def test_a_plan_that_was_changed_from_outside_leads_nowhere(command, root):
    plan = plan_for(root)
    folder = root.experiment(plan.name)
    folder.write_plan(plan)
    text = (folder.path / "plan.json").read_text()
    (folder.path / "plan.json").write_text(text.replace(plan.runs[0].hash, "../../../etc"))
    with pytest.raises(ValueError, match="not a run's hash"):
        command("status", plan.name)


def test_only_our_own_temporary_folders_are_ever_cleared(tmp_path):
    (tmp_path / "precious").write_text("")
    for folder in (str(tmp_path), "/tmp", "", "/", f"{tmp_path}/arch-search-x/../.."):
        clear(folder)
    assert (tmp_path / "precious").exists()


def test_a_killed_owners_folder_is_cleared_by_who_comes_next(monkeypatch, tmp_path):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    killed, living, foreign, older = (Path(make_folder()) for _ in range(4))
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    gone = {"pid": child.pid, "pid_started": psutil.Process(child.pid).create_time()}
    for folder, changes in ((killed, gone), (foreign, {**gone, "host": "elsewhere#0"})):
        owner = json.loads((folder / OWNER).read_text()) | changes
        (folder / OWNER).write_text(json.dumps(owner))
    (older / OWNER).unlink()
    clear_abandoned()
    assert killed.exists(), "its owner still lives"
    child.kill()
    child.wait()
    clear_abandoned()
    assert [folder.exists() for folder in (killed, living, foreign, older)] == [False] + [True] * 3


def test_what_people_write_is_not_run_by_terminals_or_browsers(command, root, tmp_path):
    question = "[/bold] [link=http://x]y[/link] <script>alert(1)</script> :skull:"
    code, out, err = command("plan", FIRST, *SMALL, f'question="{question}"')
    assert (code, err) == (0, "")
    assert "[/bold] [link=http://x]y[/link]" in " ".join(out.split())
    text = FIRST.read_text().replace("question: ", 'question: "\\e]0;owned\\a" #')
    refused(command("plan", experiment(tmp_path, text)), "control characters")


# Secrets stay where they were given.

LEAKS = [
    (f"at https://me:{WORD}@host:5000/x?a=b", "at https://me:***@host:5000/x?a=b"),
    (f"postgresql+psycopg://me:{WORD}@h/db", "postgresql+psycopg://me:***@h/db"),
    (f"postgresql://h/db?user=me&password={WORD}", "postgresql://h/db?user=me&password=***"),
    (f"GET /x?token={WORD}&y=1", "GET /x?token=***&y=1"),
    (f"Authorization: Bearer {WORD}", "Authorization: Bearer ***"),
    (f"https://ghp_{'x' * 20}@github.com/a", "https://***@github.com/a"),
    ("http://127.0.0.1:5000/#/experiments/1", "http://127.0.0.1:5000/#/experiments/1"),
    ("step 3: loss 2.1 (see docs/data.md)", "step 3: loss 2.1 (see docs/data.md)"),
]


@pytest.mark.parametrize("text, shown", LEAKS)
def test_secrets_are_taken_out_of_texts_and_nothing_else(text, shown):
    assert hide_secrets(text) == shown


def test_values_of_secret_variables_are_taken_out(monkeypatch):
    for name in ("RAY_AUTH_TOKEN", "MLFLOW_TRACKING_PASSWORD", "WANDB_API_KEY", "MY_SECRET"):
        monkeypatch.setenv(name, f"{name}-{WORD}")
        assert hide_secrets(f"it was {name}-{WORD}!") == "it was ***!"
    harmless = {"RAY_AUTH_TOKEN_PATH": "/home/me/token", "TOKENIZERS_PARALLELISM": "sometimes"}
    for name, value in (harmless | {"MAX_TOKENS": "1000000"}).items():
        monkeypatch.setenv(name, value)
        assert hide_secrets(value) == value


def test_a_password_in_the_tracking_address_stands_in_one_private_file(command, root, tmp_path):
    uri = f"http://me:{WORD}@127.0.0.1:9"
    code, out, err = command("plan", FIRST, *SMALL, f"tracking.uri={uri}", "--json")
    assert code == 0, err
    plan = json.loads(out)
    assert plan["tracking_uri"] == "http://me:***@127.0.0.1:9"
    assert WORD not in out
    refused(command("submit", FIRST, *SMALL, f"tracking.uri={uri}"), "127.0.0.1:9")
    refused(command("submit", FIRST, *SMALL, f"tracking.uri=htp://me:{WORD}@h"), "expected http")
    holding = [p for p in root.path.rglob("*") if p.is_file() and WORD.encode() in p.read_bytes()]
    assert [p.name for p in holding] == ["credentials.json"]
    assert holding[0].stat().st_mode & 0o077 == 0
    assert with_secret(root.path, plan["tracking_uri"]) == uri


def test_a_secret_that_the_file_takes_from_the_environment_is_not_in_the_plan(
    command, root, tmp_path, monkeypatch
):
    monkeypatch.setenv("MLFLOW_TOKEN", WORD)
    monkeypatch.setenv("MLFLOW_ADDRESS", f"https://me:{WORD}@127.0.0.1:9")
    overrides = ("tracking.uri=${oc.env:MLFLOW_ADDRESS}", "question=${oc.env:MLFLOW_TOKEN}")
    code, out, err = command("plan", FIRST, *SMALL, *overrides, "--json")
    assert code == 0, err
    assert WORD not in out
    assert json.loads(out)["question"] == "***"


def test_an_address_of_a_cluster_with_a_password_is_not_repeated(command, root):
    address = f"http://me:{WORD}@127.0.0.1:9"
    code, out, err = command("submit", FIRST, *SMALL, "--address", address)
    assert code == 2
    assert WORD not in out + err
    assert not [p for p in root.path.rglob("*.json") if WORD in p.read_text()]


def print_and_fail(attempt, *_, **__):
    """What a run might do with a token it finds in its environment."""
    word = os.environ["HF_TOKEN"]
    print("my token is", word, end=" ")
    print("again", word, file=sys.stderr)
    attempt.event(f"downloaded with {word}")
    raise RuntimeError(f"403 for https://me:{word}@huggingface.co with {word}")


def test_what_a_run_prints_raises_and_logs_holds_no_token(root, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", WORD)
    monkeypatch.setitem(sys.modules, "leaky", sys.modules[__name__])
    plan = plan_for(root)
    planned = plan.runs[0]
    root.run(planned.hash).freeze(planned.spec)
    end = perform(str(root.path), planned.hash, plan.name, LogSpec(), ResourceSpec(), (),
                  "leaky:print_and_fail", False)  # fmt: skip
    attempt = root.run(planned.hash).attempts()[0]
    assert end["state"] == "FAILED"
    assert "403 for https://me:***@huggingface.co with ***" in end["reason"]
    assert "my token is *** again ***" in (attempt.path / "output.txt").read_text()
    assert [r.text for r in read_journal(attempt.journal)[0]] == ["downloaded with ***"]
    files = [p for p in attempt.path.rglob("*") if p.is_file()]
    assert {"output.txt", "traceback.txt", "journal.jsonl", "end.json"} <= {p.name for p in files}
    assert not [p for p in files if WORD.encode() in p.read_bytes()]


def test_a_token_split_over_two_writes_is_hidden(tmp_path, monkeypatch):
    monkeypatch.setenv("HF_TOKEN", WORD)
    with (tmp_path / "out").open("w") as file:
        stream = HidingStream(file)
        stream.write(f"a {WORD[:5]}")
        stream.write(f"{WORD[5:]} b\nunfinished")
        stream.close()
    assert (tmp_path / "out").read_text() == "a *** b\nunfinished"


def test_the_private_file_is_never_open_to_others(root, monkeypatch):
    modes = []
    replace = os.replace
    monkeypatch.setattr(
        "os.replace", lambda a, b: (modes.append(os.stat(a).st_mode), replace(a, b))
    )
    old = os.umask(0)
    try:
        keep_secret(root.path, f"http://me:{WORD}@h")
        keep_secret(root.path, f"http://you:{WORD}@h")
    finally:
        os.umask(old)
    assert [mode & 0o777 for mode in modes] == [0o600, 0o600]
    assert with_secret(root.path, "http://me:***@h") == f"http://me:{WORD}@h"


OWN_RAY = """
import json, os, stat
import psutil
from pathlib import Path
from arch_search.scheduling.session import start_local
session = start_local(1)
import ray
ray.get(ray.remote(lambda: 1).remote())
me = psutil.Process()
listening = []
for process in [me, *me.children(recursive=True)]:
    for c in process.net_connections():
        if c.status == "LISTEN":
            listening.append([process.name(), c.laddr.ip])
token = os.environ["RAY_AUTH_TOKEN"]
files = [p for p in Path(session.folder).rglob("*") if p.is_file()]
holding = [str(p) for p in files if token.encode() in p.read_bytes()]
lines = [" ".join(p.cmdline()) for p in me.children(recursive=True)]
print(json.dumps({
    "listening": listening, "holding": holding, "files": len(files),
    "mode": stat.S_IMODE(os.stat(session.folder).st_mode),
    "in_command_lines": any(token in line for line in lines),
    "address": ray.get_runtime_context().gcs_address,
}), flush=True)
input()
session.close()
"""
STRANGER = """
import os, ray
try:
    ray.init(address=os.environ["ADDRESS"], log_to_driver=False)
    print("in", ray.get(ray.remote(lambda: 1).remote()), flush=True)
except Exception as error:
    print("refused", type(error).__name__)
"""


def stranger(environment):
    """'in', 'refused', or 'waits' for one who tries in vain for 20 s: Ray does so for minutes."""
    try:
        answer = subprocess.run([sys.executable, "-c", STRANGER], env=environment, timeout=20,
                                capture_output=True, text=True)  # fmt: skip
    except subprocess.TimeoutExpired as error:
        return "in" if b"in 1" in (error.stdout or b"") else "waits"
    return answer.stdout.split()[0]


@pytest.mark.services
def test_our_ray_listens_to_this_machine_and_lets_no_stranger_in(tmp_path):
    environment = {k: v for k, v in os.environ.items() if not k.startswith("RAY_")}
    environment["HOME"] = str(tmp_path)
    ours = subprocess.Popen([sys.executable, "-c", OWN_RAY], env=environment, text=True,
                            stdin=subprocess.PIPE, stdout=subprocess.PIPE)  # fmt: skip
    try:
        said = json.loads(ours.stdout.readline())
        assert {name for name, _ in said["listening"]} >= {"raylet", "gcs_server"}
        assert {ip for _, ip in said["listening"]} <= {"127.0.0.1", "::ffff:127.0.0.1", "::1"}
        assert said["mode"] == 0o700
        assert said["files"] > 5
        assert (said["holding"], said["in_command_lines"]) == ([], False)
        assert not (tmp_path / ".ray").exists(), "Ray's own choice: a file that all can read"
        wrong = {"RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": "0" * 64}
        for token in ({"RAY_AUTH_MODE": "disabled"}, wrong):
            assert stranger(environment | token | {"ADDRESS": said["address"]}) != "in"
    finally:
        ours.communicate("\n", timeout=60)


def test_no_claim_can_be_made_over_a_link_out_of_the_root(root, tmp_path):
    """A run's folder that is a link elsewhere still gets its files through atomic renames only."""
    run_folder = root.run("0123456789abcdef")
    victim = tmp_path / "victim.json"
    victim.write_text("precious")
    with Attempt.claim(run_folder) as attempt:
        (attempt.folder.path / "end.json").symlink_to(victim)
    assert victim.read_text() == "precious"
