"""The identity of a rank: its fields, their bounds, and their values from the launcher's environment.

launched = from_environment(os.environ)    # {"run": "4711", "rank": 3, "world_size": 8, "attempt": 1, ...}
"""

from __future__ import annotations

_NS_MAX = 1 << 62

RUN_CHARACTERS_MAX = 128
# The variables of rank, world size and local rank: our own, torchrun, Open MPI, MVAPICH, MPICH and Intel MPI (PMI),
# Slurm, Kubernetes indexed jobs. All are taken from the first launcher that sets the rank, so a torchrun inside a Slurm
# allocation is torchrun's.
_LAUNCHERS = {
    "goodput": ("GOODPUT_RANK", "GOODPUT_WORLD_SIZE", "GOODPUT_LOCAL_RANK"),
    "torchrun": ("RANK", "WORLD_SIZE", "LOCAL_RANK"),
    "openmpi": ("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_LOCAL_RANK"),
    "mvapich": ("MV2_COMM_WORLD_RANK", "MV2_COMM_WORLD_SIZE", "MV2_COMM_WORLD_LOCAL_RANK"),
    "pmi": ("PMI_RANK", "PMI_SIZE", "MPI_LOCALRANKID"),
    "slurm": ("SLURM_PROCID", "SLURM_NTASKS", "SLURM_LOCALID"),
    "kubernetes": ("JOB_COMPLETION_INDEX", "JOB_COMPLETIONS", ""),
}
_RUN_VARIABLES = ("GOODPUT_RUN", "TORCHELASTIC_RUN_ID", "SLURM_JOB_ID", "JOB_NAME", "PBS_JOBID", "LSB_JOBID")
_ATTEMPT_VARIABLES = (  # and the value for the first attempt, which is 1
    ("GOODPUT_ATTEMPT", "attempt", 1),
    ("TORCHELASTIC_RESTART_COUNT", "restarts", 0),
    ("SLURM_RESTART_COUNT", "restarts", 0),
)


def from_environment(environ) -> dict:
    """`launcher` and, where known, run, rank, world_size, local_rank and attempt.

    A variable that is not a number in range is skipped; `ignored` lists one message for each.
    """
    found: dict = {"launcher": "none", "ignored": []}
    for launcher, (rank, *others) in _LAUNCHERS.items():
        found["rank"] = _integer(environ, rank, "rank", found)
        if found["rank"] is not None:
            found["launcher"] = launcher
            for variable, name in zip(others, ("world_size", "local_rank"), strict=True):
                found[name] = _integer(environ, variable, name, found)
            break
    name = next((name for name in _RUN_VARIABLES if environ.get(name)), "")
    run = environ.get(name)
    # torchrun without --rdzv-id names every run "none"; its port at least differs between jobs on a host.
    if name == "TORCHELASTIC_RUN_ID" and run == "none":
        run = f"torchrun-{environ.get('MASTER_PORT', '0')}"
    if run:
        found["run"] = clean_text(run, RUN_CHARACTERS_MAX)
    for name, field, first in _ATTEMPT_VARIABLES:
        value = _integer(environ, name, field, found)
        if value is not None:
            found["attempt"] = value + 1 - first
            break
    return {name: value for name, value in found.items() if value is not None}


def clean_text(text: object, most: int) -> str:
    """`text` as printable text of at most `most` characters; what is not printable becomes "?"."""
    text = str(text)[:most]
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def name_of_user(run: str, user: int) -> str:
    """The name of a user's run that is told apart from another user's run of the same name."""
    suffix = f" (user {user})"
    return f"{run[: RUN_CHARACTERS_MAX - len(suffix)]}{suffix}"


def _integer(environ, name: str, field: str, found: dict) -> int | None:
    text = environ.get(name)
    if not text:
        return None
    least, most = BOUNDS[field]
    if text.isascii() and text.isdigit() and len(text) <= 8 and least <= int(text) <= most:
        return int(text)
    found["ignored"].append(f"{name}={clean_text(text, 40)!r} is not a whole number in {least}..{most}")
    return None


_INTEGERS = {  # name: (least, most)
    "rank": (0, (1 << 24) - 1),
    "world_size": (1, 1 << 24),
    "attempt": (1, 1 << 20),
    "pid": (1, 1 << 32),
    "devices": (1, 1 << 16),
    "start_unix_ns": (0, _NS_MAX),
    "start_mono_ns": (0, _NS_MAX),
}
BOUNDS = {  # of all numbers that a launcher or a user can set
    **_INTEGERS,
    "stage": (0, (1 << 24) - 1),
    "tensor": (0, (1 << 24) - 1),
    "microbatches": (1, 1 << 24),
    "total_steps": (1, 1 << 40),
    "local_rank": (0, 1 << 16),
    "restarts": (0, (1 << 20) - 1),
}
_STRINGS = {
    "run": RUN_CHARACTERS_MAX,
    "host": 255,
    "device": 128,
    "device_uuid": 128,
    "group": 64,
    "role": 64,
    "worker": 64,
    "dtype": 64,
}
# Texts that an identity may lack, as those of older pages do.
_OPTIONAL_TEXTS = ("dtype", "role", "worker")
_STRINGS_IF_THERE = {"flops_unknown": 255}  # why there are no flops_per_step
# Declared fields: positive numbers, each None when unknown.
RATES = (
    "flops_per_step",
    "hardware_flops_per_step",
    "peak_flops_per_second",
    "ideal_samples_per_second",
    "gpu_hour_cost",
    "gpu_power_watts",
    "submit_time",
)
# Positive numbers that the agent knows, not the process: what its devices and links reach in `goodput probe`, and how
# fast its last traced step copied to the device; and how long it waited for cores.
REACHED = (
    *("reached_flops_per_second", "reached_bus_bytes_per_second", "reached_h2d_bytes_per_second"),
    *("h2d_bytes_per_second", "core_wait_ratio"),
)
# Declared fields: whole numbers within BOUNDS, each None when unknown.
PLACES = ("stage", "tensor", "microbatches", "total_steps")
_OPTIONAL_INTEGERS = {**{name: BOUNDS[name] for name in PLACES}, "pid_start_ticks": (0, _NS_MAX - 1)}


def check_identity(identity: object) -> dict:
    """Validate an identity's fields; unknown ones are kept. Raises ValueError naming the field."""
    if not isinstance(identity, dict):
        raise ValueError("identity is not an object")
    for name in _OPTIONAL_TEXTS:
        identity.setdefault(name, "")
    more = {name: most for name, most in _STRINGS_IF_THERE.items() if name in identity}
    check_fields(identity.get, {**_INTEGERS, **_OPTIONAL_INTEGERS}, {**_STRINGS, **more})
    for name in RATES:
        if identity.get(name) is not None:
            identity[name] = float(identity[name])  # JSON may hold it as an integer too large for the wire.
    return identity


def without_wrong_options(identity: object) -> object:
    """The identity without wrong values of descriptive fields, which must not lose a rank: they are unknown."""
    if not isinstance(identity, dict):
        return identity
    for name in (*RATES, *PLACES):
        value = identity.get(name)
        if isinstance(value, float) and name not in RATES and value.is_integer():
            value = identity[name] = int(value)
        least, most = _OPTIONAL_INTEGERS.get(name, (0, 0))
        is_right = _is_rate(value) if name in RATES else type(value) is int and least <= value <= most
        if value is not None and not is_right:
            identity[name] = None
    texts = ("device", "device_uuid", "dtype", "group", "role", "worker")
    for name in (*texts, *(_STRINGS_IF_THERE.keys() & identity.keys())):
        value, most = identity.get(name), _STRINGS.get(name) or _STRINGS_IF_THERE[name]
        if not isinstance(value, str) or len(value) > most or not value.isprintable():
            identity[name] = ""
    return identity


def _is_rate(value: object) -> bool:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return False
    return 0 < value < 1e30  # A NaN fails too.


def check_fields(get, integers: dict[str, tuple[int, int]], texts: dict[str, int]) -> None:
    """Raise ValueError for the first field, `get(name)`, out of its bounds: (least, most), or the most characters."""
    for name, (least, most) in integers.items():
        value = get(name)
        if value is None and name in _OPTIONAL_INTEGERS:
            continue
        if type(value) is not int or not least <= value <= most:
            raise ValueError(f"identity field {name} is {value!r}, want an integer in {least}..{most}")
    for name, most in texts.items():
        value = get(name)
        if not isinstance(value, str) or len(value) > most or not value.isprintable():
            raise ValueError(f"identity field {name} is not printable text of at most {most} characters")
    if not get("run"):
        raise ValueError("identity field run is empty")
    for name in (*RATES, *REACHED):
        value = get(name)
        if value is not None and not _is_rate(value):
            raise ValueError(f"identity field {name} is {value!r}, want a positive number or null")
    if get("rank") >= get("world_size"):
        raise ValueError(f"rank {get('rank')} in a world of {get('world_size')}")
