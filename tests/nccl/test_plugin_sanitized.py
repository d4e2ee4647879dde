"""The profiler plugin under ASan with UBSan, and under TSan: driven as NCCL does, and in every way that it does not.

`make nccl-plugin` runs many seeds and rounds.
"""

import os

import pytest
from support.nccl.plugin_build import COMPILER, build, run_host

from goodput.rank_page.reader import Reader

SEEDS = int(os.environ.get("NCCL_PLUGIN_SEEDS", "1"))
ROUNDS = int(os.environ.get("NCCL_PLUGIN_ROUNDS", "3000"))
# -Wno-tsan: TSan does not know the fence between breaking a record's seal and writing it, which orders stores for readers
# in other processes.
SANITIZERS = {"address,undefined": [], "thread": ["-Wno-tsan"]}


@pytest.fixture(scope="module", params=SANITIZERS)
def built(request, tmp_path_factory):
    if COMPILER is None:
        pytest.skip("needs a C compiler")
    flags = ["-g1", f"-fsanitize={request.param}", "-fno-sanitize-recover=all", *SANITIZERS[request.param]]
    return build(tmp_path_factory.mktemp("sanitized"), *flags)


@pytest.mark.parametrize("version", (4, 5, 6))
@pytest.mark.parametrize("what", ("orderly", "wild"))
def test_sanitizers_find_nothing(built, tmp_path, version, what):
    for seed in range(1, SEEDS + 1):
        rounds = ROUNDS // 20 if what == "orderly" else ROUNDS
        done = run_host(built, tmp_path, version, what, seed=seed, rounds=rounds, GOODPUT_RUN=f"s{seed}")
        assert done.returncode == 0, done.stderr
        assert "Sanitizer" not in done.stderr and "runtime error" not in done.stderr
        (path,) = tmp_path.glob(f"s{seed}.*.nccl")
        with Reader(str(path)) as reader:
            found = reader.collectives(since=0)
        assert found is not None and found.written > 0
        path.unlink()
