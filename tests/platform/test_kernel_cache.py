"""The node's cache of compiled and tuned kernels: private, kept with results, pinned by a hash."""

import json

import pytest

from arch_search.errors import UsageError
from arch_search.kernel_cache import (
    VARIABLE,
    chosen,
    keep_tuned,
    pin_tuned,
    tuned_files,
    use_kernel_cache,
)
from arch_search.warm_up import Kernels


def write_tuned(cache, folder, kernel, **timings):
    path = cache / folder / f"{kernel}.autotune.json"
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = [
        [{"kwargs": {"BK": int(name[1:])}, "num_warps": 4, "num_stages": 2}, [time, time, time]]
        for name, time in timings.items()
    ]
    path.write_text(json.dumps({"key": [64, "torch.bfloat16"], "configs_timings": rows}))


def test_compilers_are_pointed_to_a_private_folder_unless_they_are_pointed_elsewhere(tmp_path):
    environment = {VARIABLE: str(tmp_path / "cache")}
    assert use_kernel_cache(environment) == tmp_path / "cache" / "triton"
    assert environment["TORCHINDUCTOR_CACHE_DIR"] == str(tmp_path / "cache" / "inductor")
    assert environment["TRITON_CACHE_AUTOTUNING"] == "1"
    assert (tmp_path / "cache").stat().st_mode & 0o777 == 0o700
    given = {VARIABLE: str(tmp_path / "cache"), "TRITON_CACHE_DIR": str(tmp_path / "mine")}
    assert use_kernel_cache(given) == tmp_path / "mine"


def test_a_folder_that_others_may_write_to_is_refused(tmp_path):
    folder = tmp_path / "cache"
    folder.mkdir()
    folder.chmod(0o777)
    with pytest.raises(UsageError, match="others may write to it"):
        use_kernel_cache({VARIABLE: str(folder)})


def test_tuned_choices_are_read_kept_and_pinned(tmp_path):
    cache, other, kept = tmp_path / "cache", tmp_path / "other", tmp_path / "kept"
    write_tuned(cache, "A", "chunk_fwd", b32=0.4, b64=0.3)
    assert chosen(cache) == {"chunk_fwd[64]": "BK 64, warps 4, stages 2"}
    name = keep_tuned(cache, kept)
    assert keep_tuned(cache, kept) == name
    write_tuned(other, "A", "chunk_fwd", b32=0.1, b64=0.3)
    pin_tuned(other, kept, name)
    assert chosen(other) == chosen(cache)
    with pytest.raises(UsageError, match=rf"resources.tuned: 'nothing' is not in .*{name}"):
        pin_tuned(other, kept, "nothing")


def test_what_is_tuned_after_the_warm_up_is_told(tmp_path):
    cache = tmp_path / "cache"
    write_tuned(cache, "A", "chunk_fwd", b32=0.4)
    kernels = Kernels(cache=cache, kept=tmp_path / "kept", before=tuned_files(cache))
    assert kernels.tuned_since() == []
    write_tuned(cache, "B", "late_kernel", b32=0.4)
    assert kernels.tuned_since() == ["late_kernel"]
    assert set(kernels.record()["tuned_kernels"]) == {"chunk_fwd[64]", "late_kernel[64]"}
