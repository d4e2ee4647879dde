"""Who may import whom, as ARCHITECTURE.md says, and the rules of style that a program can check."""

import ast
import functools
import re
import subprocess
import sys
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).parents[1]
SOURCES = sorted([*(ROOT / "src").rglob("*.py"), *(ROOT / "exporters").rglob("*.py")])
# Package -> packages of this project that it may import.
# What stands after None may be imported inside functions only.
PACKAGES = {
    "_core": [],
    "defaults": [],
    "slices": [],
    "wire": [],
    "histograms": [],
    "protobuf_fields": [],
    "user_cache": [],
    "user_exceptions": [],
    "metrics": ["histograms", "protobuf_fields"],
    "otlp": ["access", "goodput", "metrics"],
    "access": [],
    "account": ["_core", "defaults", "slices", "wire"],
    "child_processes": [],
    "nccl": [],
    "trace": ["account"],
    "rank_page": ["user_exceptions", "wire"],
    "stack_samples": ["account", "defaults", "rank_page", "wire"],
    "causes": ["account"],
    "flops": ["account", "defaults", "user_cache"],
    "probe": ["account", "flops", "user_cache"],
    "web": ["account", "wire"],
    "log_lines": ["account", "wire"],
    "runlog": ["account", "defaults", "histograms", "log_lines", "slices", "wire"],
    "estimates": [],
    "story": ["account", "estimates", "runlog"],
    "sdk": [],
    "sdk.recorder": ["user_exceptions", "histograms", "rank_page", "wire"],
    "sdk.device": ["user_exceptions", "rank_page"],
    "sdk.startup": ["user_exceptions", "rank_page", "sdk.recorder", "wire", None, "sdk.device"],
    "sdk.automatic": [
        "user_exceptions",
        "defaults",
        "rank_page",
        "sdk.recorder",
        "sdk.startup",
        None,
        "account",
    ],
    "sdk.frameworks": [
        "user_exceptions",
        *("defaults", "rank_page", "sdk.automatic", "sdk.device", "sdk.recorder", "sdk.startup", "wire"),
        *(None, "flops"),
    ],
    "sdk.reports": [
        "user_exceptions",
        "account",
        "defaults",
        "histograms",
        "rank_page",
        "sdk.recorder",
        "sdk.startup",
        "stack_samples",
        "wire",
        None,
        "causes",
    ],
    "goodput": ["sdk.recorder", "sdk.reports", "sdk.startup"],
    "auto": ["goodput", "sdk.automatic", "sdk.frameworks", "sdk.recorder"],
    "bootstrap": [None, "auto"],
    "loggers": ["goodput", None, "rank_page"],
    "lightning": ["auto", "goodput", "sdk.automatic"],
    "transformers": ["auto", "goodput", "sdk.automatic"],
    "server": [],
    "server.log": ["access"],
    "aggregator": [],
    "aggregator.clock": [],
    "aggregator.column_attempt": ["account", "wire"],
    "aggregator.records": ["wire"],
    "aggregator.run_states": ["_core", "account"],
    "aggregator.fair_queue": [],
    "aggregator.memory_bound": ["access"],
    "aggregator.ledger": ["account", "aggregator.records", "aggregator.run_states", "wire"],
    "aggregator.ingest": [
        "access",
        "account",
        "aggregator.fair_queue",
        "aggregator.clock",
        "aggregator.column_attempt",
        "aggregator.ledger",
        "aggregator.records",
        "aggregator.run_states",
        "histograms",
        "slices",
        "wire",
    ],
    "aggregator.accounts": [
        *("_core", "access", "account", "aggregator.ingest", "aggregator.ledger", "aggregator.memory_bound"),
        *(
            "aggregator.column_attempt",
            "aggregator.fair_queue",
            "aggregator.records",
            "aggregator.run_states",
            "causes",
            "defaults",
            "slices",
            "story",
            "whatif",
            "wire",
        ),
    ],
    "aggregator.http": ["access", "histograms", "metrics", "web"],
    "aggregator.stream": [
        *(
            "access",
            "aggregator.clock",
            "aggregator.fair_queue",
            "aggregator.http",
            "aggregator.ingest",
            "aggregator.ledger",
        ),
        *("aggregator.memory_bound", "metrics", "wire"),
    ],
    "aggregator.api": [
        *(
            "access",
            "account",
            "slices",
            "aggregator.accounts",
            "aggregator.fair_queue",
            "aggregator.clock",
            "aggregator.http",
            "aggregator.ingest",
            "aggregator.ledger",
            "aggregator.memory_bound",
            "aggregator.run_states",
            "aggregator.stream",
        ),
        *(
            "causes",
            "defaults",
            "goodput",
            "histograms",
            "metrics",
            "otlp",
            "story",
            "web",
            "wire",
        ),
    ],
    "exporters": [],
    "exporters.collector": [],
    "exporters.directory_lock": [],
    "exporters.collector_runner": ["exporters.collector", "metrics"],
    "exporters.system": ["exporters.collector", "rank_page", "wire"],
    "exporters.page_directory": ["exporters.collector", "exporters.system"],
    "exporters.gpu.nvidia": ["exporters.system"],
    "exporters.gpu": ["exporters.collector", "exporters.system", "wire"],
    "exporters.gpu.DRIVER": [
        "exporters.collector",
        "exporters.gpu",
        "exporters.gpu.nvidia",
        "exporters.system",
    ],
    "exporters.events": [
        "exporters.collector",
        "exporters.gpu",
        "exporters.gpu.nvidia",
        "exporters.system",
        "wire",
    ],
    "exporters.push": [
        *("access", "exporters.events", "exporters.system", "rank_page", "stack_samples", "wire"),
    ],
    "exporters.server": ["access", "metrics"],
    "exporters.collectors": ["exporters.collector"],
    "exporters.collectors.COLLECTOR": [
        *("exporters.collector", "exporters.gpu", "exporters.gpu.nvidia", "exporters.system"),
        *("histograms", "metrics", "probe", "rank_page", "stack_samples", "wire"),
    ],
    "exporters.stack_sampling": [
        *("exporters.collectors.COLLECTOR", "exporters.system", "rank_page", "stack_samples"),
    ],
    "exporters.nccl_ras": [
        *("exporters.collectors.COLLECTOR", "exporters.system", "trace", "wire"),
    ],
    "exporters.check": [
        "exporters.collector",
        "exporters.directory_lock",
        "exporters.gpu",
        "exporters.push",
        "metrics",
        "nccl",
        "wire",
    ],
    "exporters.agent": [
        *(
            "exporters.collector",
            "exporters.collector_runner",
            "exporters.collectors",
            "exporters.directory_lock",
        ),
        # The types of the collectors that it connects; it finds these by name too.
        "exporters.collectors.COLLECTOR",
        *("exporters.events", "exporters.gpu", "exporters.push", "exporters.server", "goodput", "metrics"),
        *("exporters.nccl_ras", "exporters.page_directory", "exporters.stack_sampling", "otlp", "rank_page"),
    ],
    "simulate": ["exporters.push", "histograms", "metrics", "wire"],
    "compare": ["account", "defaults", "estimates", "runlog", "web", "wire"],
    "whatif": ["account", "defaults", "estimates", "runlog"],
    "progress": ["account", "causes", "defaults", "rank_page", "sdk.reports", "stack_samples", "wire"],
    "kept_runs": [
        *("account", "causes", "defaults", "log_lines", "rank_page", "sdk.reports", "stack_samples", "wire"),
    ],
    "top": ["account", "exporters.push", "progress", "rank_page", "stack_samples", "wire"],
    "perfetto": ["account", "protobuf_fields", "runlog"],
    "mcp": ["account", "exporters.push", "goodput"],
    "demo": ["account", "child_processes", "goodput", "top"],
    "up": ["child_processes"],
    "provision": ["access", "up"],
    "cli": [
        *(
            "access",
            "defaults",
            "goodput",
            "kept_runs",
            "nccl",
            "otlp",
            "progress",
            "rank_page",
            "web",
            None,
            "account",
            "aggregator.api",
            "aggregator.clock",
            "aggregator.http",
            "aggregator.ledger",
            "aggregator.memory_bound",
            "aggregator.stream",
        ),
        *(
            "bootstrap",
            "causes",
            "demo",
            "simulate",
            "exporters.agent",
            "exporters.check",
            "exporters.directory_lock",
        ),
        *("compare", "flops", "probe", "histograms", "mcp", "perfetto", "story", "whatif"),
        *(
            "exporters.push",
            "exporters.server",
            "provision",
            "runlog",
            "sdk.recorder",
            "sdk.reports",
            "stack_samples",
            "top",
            "trace",
            "up",
            "wire",
        ),
    ],
    "__main__": ["cli"],
}
# Packages that use the standard library alone: what runs in the trainer, and what commands without extras need.
STANDARD = {
    *(
        "goodput",
        "auto",
        "loggers",
        "rank_page",
        "stack_samples",
        "histograms",
        "account",
        "causes",
        "web",
        "trace",
        "child_processes",
        "protobuf_fields",
        "user_cache",
        "nccl",
        "progress",
        "log_lines",
        "kept_runs",
    ),
    *(
        "up",
        "provision",
        "access",
        "defaults",
        "slices",
        "sdk",
        "sdk.recorder",
        "sdk.device",
        "sdk.startup",
        "sdk.automatic",
        "sdk.reports",
    ),
}
FILES_PER_FOLDER_MAX = 22
# hdrhistogram is an extra, imported where it is used.
NOT_STANDARD = {"hdr_log.py", "schema.py"}


GPU_FOLDERS = tuple(
    f"goodput_exporters.gpu.{path.name}"
    for path in (ROOT / "exporters/goodput_exporters/gpu").iterdir()
    if (path / "__init__.py").exists()
)


def package_of(module: str) -> str:
    """The package of a module by its dotted name."""
    top, *rest = module.split(".")
    if top == "goodput_exporters":
        # Each collector and each GPU driver is a package of its own: none imports another.
        parts = 2 if rest[:1] == ["collectors"] or module.startswith(GPU_FOLDERS) else 1
        return ".".join(["exporters", *rest[:parts]])
    if not rest:
        return "goodput"
    if rest[:3] == ["sdk", "automatic", "frameworks"]:
        return "sdk.frameworks"
    return ".".join(rest[: 2 if rest[0] in ("sdk", "server", "aggregator") else 1])


def entry_of(package: str) -> str:
    """The package's name in the table; collectors share one entry, and so do GPU drivers."""
    for family, member in (("exporters.collectors.", "COLLECTOR"), ("exporters.gpu.", "DRIVER")):
        if package.startswith(family) and package not in PACKAGES:
            return family + member
    return package


def module_of(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts[1:]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


MODULES = {module_of(path): path for path in SOURCES}


@functools.cache
def trees() -> dict[str, ast.Module]:
    """Not at import, which every process of the tests does."""
    return {name: ast.parse(path.read_text()) for name, path in MODULES.items()}


def import_statements(tree: ast.Module):
    """(statement, inside a function). Expressions, which are most of a tree, are passed over."""
    waiting: list[tuple[ast.AST, bool]] = [(tree, False)]
    while waiting:
        node, inside = waiting.pop()
        if isinstance(node, ast.Import | ast.ImportFrom):
            yield node, inside
        inside = inside or isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef)
        for part in ("body", "orelse", "finalbody", "handlers", "cases"):
            below = getattr(node, part, ())
            waiting += [(one, inside) for one in (below if isinstance(below, list) else ())]


def imports(tree: ast.Module):
    """(module of this project, inside a function) of every import in a file."""
    for node, inside in import_statements(tree):
        if isinstance(node, ast.Import):
            named = [name.name for name in node.names]
        else:
            parts = [f"{node.module}.{name.name}" for name in node.names]
            named = [part if part in MODULES else node.module for part in parts]
        yield from ((name, inside) for name in named)


@functools.cache
def all_imports() -> dict[str, list]:
    return {name: list(imports(tree)) for name, tree in trees().items()}


def test_a_package_imports_only_what_it_may():
    wrong = []
    for name, found in all_imports().items():
        package = package_of(name)
        allowed = PACKAGES[entry_of(package)]
        always = allowed[: allowed.index(None)] if None in allowed else allowed
        for module, lazily in found:
            if module not in MODULES or package_of(module) == package:
                continue
            if entry_of(package_of(module)) not in (allowed if lazily else always):
                wrong.append(f"{name} imports {module}")
    assert wrong == []


def test_exporter_packages_import_only_lower_ones():
    """The table lists the exporters' packages from the lowest to the highest."""
    order = [package for package in PACKAGES if package.startswith("exporters")]
    for at, package in enumerate(order):
        for other in PACKAGES[package]:
            if other is not None and other.startswith("exporters"):
                assert other in order[:at], f"{package} imports the higher package {other}"


def test_no_modules_import_each_other_in_a_circle():
    """Imports inside functions count too."""
    below = {
        name: {module for module, _ in found if module in MODULES} - {name}
        for name, found in all_imports().items()
    }
    # A package and its modules name each other without harm: the package of a module is always imported first.
    below = {name: {to for to in names if not name.startswith(f"{to}.")} for name, names in below.items()}
    assert in_circles(below) == {}


def in_circles(below: dict[str, set[str]]) -> dict[str, set[str]]:
    """What is left when everything is taken away, again and again, that stands on nothing or on which nothing stands."""
    below = {name: below.get(name, set()) for name in below.keys() | set().union(*below.values())}
    while leaves := {name for name, names in below.items() if not names}:
        below = {name: names - leaves for name, names in below.items() if name not in leaves}
    while tops := below.keys() - set().union(*below.values()):
        below = {name: names for name, names in below.items() if name not in tops}
    return below


def test_no_parts_of_a_folder_form_a_circle():
    """Files and folders beside each other, whose own files count with them: each folder has an order from low to high.

    The two distributions need not: the commands start the agent, which uses the formats.
    """
    folders = {name.rpartition(".")[0] for name in MODULES} - {""}
    wrong = {}
    for folder in sorted(folders):
        below: dict[str, set[str]] = {}
        for name, found in all_imports().items():
            for module, _ in found:
                parts = [one.removeprefix(f"{folder}.").split(".")[0] for one in (name, module)]
                inside = (
                    module in MODULES and name.startswith(f"{folder}.") and module.startswith(f"{folder}.")
                )
                if inside and parts[0] != parts[1]:
                    below.setdefault(parts[0], set()).add(parts[1])
        if circles := in_circles(below):
            wrong[folder] = circles
    assert wrong == {}


def test_every_package_is_in_the_architecture_page():
    text = (ROOT / "ARCHITECTURE.md").read_text()
    named = {
        package.split(".")[1] if package.startswith(("exporters.", "aggregator.")) else package
        for package in PACKAGES
    }
    hidden = {"__main__", "sdk", "gpu", "collector", "collector_runner", "directory_lock", "page_directory"}
    assert [package for package in sorted(named - hidden) if f"`{package}`" not in text] == []


def test_no_folder_has_too_many_files():
    counts = Counter(path.parent for path in [*SOURCES, *(ROOT / "bench").rglob("*.py")])
    assert max(counts.values()) <= FILES_PER_FOLDER_MAX, counts.most_common(3)


def test_trainer_packages_use_the_standard_library_alone():
    wrong = []
    for name, found in all_imports().items():
        if package_of(name) not in STANDARD or MODULES[name].name in NOT_STANDARD:
            continue
        tops = {module.split(".")[0] for module, _ in found} - {"goodput"}
        wrong += [f"{name} imports {top}" for top in tops if top not in sys.stdlib_module_names]
    assert wrong == []


def test_trainer_packages_import_where_nothing_is_installed():
    """Through other packages too, such as a format that needs msgspec."""
    names = [
        name
        for name, path in MODULES.items()
        if package_of(name) in STANDARD and path.name not in NOT_STANDARD and path.name != "__main__.py"
    ]
    code = f"""
import importlib, sys
sys.path.insert(0, {str(ROOT / "src")!r})
for name in {names!r}:
    try:
        importlib.import_module(name)
    except ModuleNotFoundError as error:
        print(name, "needs", error.name)
"""
    done = subprocess.run([sys.executable, "-S", "-c", code], capture_output=True, text=True, timeout=120)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_files_and_functions_stay_small():
    assert [name for name, path in MODULES.items() if path.read_text().count("\n") > 600] == []
    assert [
        f"{node.name} of {name} has {node.end_lineno - node.lineno} lines"
        for name, tree in trees().items()
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.end_lineno - node.lineno >= 70
    ] == []


STATES = (
    "recorder",
    "clock",
    "costs",
    "gaps",
    "training",
    "fetches",
)  # names of what the hooks of the SDK read


def writes_to_states(tree: ast.AST) -> list[str]:
    """Assignments to a field of one of these objects, in other code than its own methods."""
    found = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            owner = ast.unparse(node.value).split(".")[-1].lstrip("_")
            found += [ast.unparse(node)] if owner in STATES else []
    return found


def test_a_field_of_the_recorder_has_one_writer():
    """The compiled hooks and 22 files read these fields: what changes one is a method of the object that has it.

    plain.py alone has a clock and its phases in one, as _fast.c has, since a boundary makes no calls.
    """
    found = {
        name: writes
        for name, tree in trees().items()
        if name.startswith("goodput.sdk") and (writes := writes_to_states(tree))
    }
    assert set(found) <= {"goodput.sdk.recorder.plain"}, found
    source = "auto.training.fetches.sampling, a = True, 1\nself.recorder.steps += 1\nrecorder.words[3] = self.clock = 4"
    assert sorted(writes_to_states(ast.parse(source))) == [
        "auto.training.fetches.sampling",
        "self.recorder.steps",
    ]


def assembled_by_setattr(node: ast.AST) -> list[str]:
    """Calls of setattr that run when a module is imported."""
    found = []
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.Call) and getattr(child.func, "id", "") == "setattr":
            found.append(ast.unparse(child))
        if not isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            found += assembled_by_setattr(child)
    return found


def test_no_class_is_assembled_by_setattr():
    """A class has its attributes in its body, where readers and type checkers find them."""
    assert {name: calls for name, tree in trees().items() if (calls := assembled_by_setattr(tree))} == {}
    assert assembled_by_setattr(ast.parse("for name in NAMES:\n    setattr(Row, name, made(name))")) != []


def test_every_module_says_what_it_is():
    assert [name for name, tree in trees().items() if not ast.get_docstring(tree)] == []


def imported_names(text: str) -> list[str]:
    """Of a file, without parsing all of it: modules, and what is imported from them, which may be modules too."""
    found = []
    statement = r"^[ \t]*(?:from[ ]+(\S+)[ ]+)?import[ ]+(\([^)]*\)|[^\n#;]*)"
    for module, names in re.findall(statement, text, re.MULTILINE):
        parts = [part.split() for part in names.strip("()").split(",")]
        start = f"{module}." if module else ""
        found += [module, *(start + part[0] for part in parts if part)]
    return found


def test_tests_share_helpers_through_support_only():
    """A test module that another one imports ties their names and fixtures together."""
    tests = ROOT / "tests"
    for path in tests.rglob("*.py"):
        for name in filter(None, imported_names(path.read_text())):
            found = tests.joinpath(*name.split(".")).with_suffix(".py")
            assert name.startswith("support.") or not found.is_file(), f"{path} imports {name}"


def test_imported_names_are_found():
    text = "import a, b.c as d\nfrom e import f  # g\n    from h.i import (\n        j as k,\n        l,\n    )\n"
    assert imported_names(text) == ["", "a", "b.c", "e", "e.f", "h.i", "h.i.j", "h.i.l"]


DOCUMENTED = ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef
# Files of other projects that docstrings name.
OF_OTHERS = ("dataloader.py", "dcgmvalue.py", "streams.py", "state_dict.py", "train.py")


def test_files_that_docstrings_name_exist():
    names = {"/".join(path.parts[at:]) for path in SOURCES for at in range(1, len(path.parts))}
    wrong = []
    for module, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, DOCUMENTED):
                found = re.findall(r"(?<![\w./*-])[\w./]*\w\.py\b", ast.get_docstring(node) or "")
                wrong += [
                    f"{module}: {name}"
                    for name in found
                    if name not in names and not (ROOT / name).is_file() and not name.endswith(OF_OTHERS)
                ]
    assert wrong == []


def test_names_that_docstrings_and_comments_refer_to_exist():
    """As `see stall_threshold.TIMES`, of the modules and packages with that name."""
    texts, names = {}, {f".{name}" for name in MODULES}
    for path in MODULES.values():
        own = path.parent.name if path.stem == "__init__" else path.stem
        texts[own] = texts.get(own, "") + path.read_text()
    wrong = []
    for module, tree in trees().items():
        nodes = [node for node in ast.walk(tree) if isinstance(node, DOCUMENTED)]
        prose = [*(ast.get_docstring(node) or "" for node in nodes)]
        prose += re.findall(r"#(.*)", MODULES[module].read_text())
        found = re.findall(r"\b(?:[Ss]ee|[Aa]s|[Ll]ike|one of) `?([a-z_]+)\.([A-Za-z_]+)\b", "\n".join(prose))
        wrong += [
            f"{module}: {of}.{name}"
            for of, name in found
            if of in texts
            and of != "torch"
            and name != "py"
            and not any(one.endswith(f".{of}.{name}") for one in names)
            if not re.search(rf"\b{name}\b", texts[of])
        ]
    assert wrong == []


def test_links_of_documents_lead_to_files():
    pages = [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("deploy/**/*.md"),
        ROOT / "bench/README.md",
    ]
    wrong = [
        f"{page.relative_to(ROOT)}: {link}"
        for page in pages
        for link in re.findall(r"\]\(([^)#\s]+)", page.read_text())
        if "://" not in link and not (page.parent / link).exists()
    ]
    assert wrong == []
