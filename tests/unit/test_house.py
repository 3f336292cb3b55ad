"""The architecture, checked on the source: floors, circles, sizes, clocks, imports without effects.

Each rule is a function from sources to complaints, and is tried on a source that breaks it, so that it cannot pass by
looking at nothing.
"""

from __future__ import annotations

import ast
import json
import subprocess
import sys
from collections.abc import Iterator, Mapping
from functools import cache
from pathlib import Path
from typing import NamedTuple

import pytest

from tests.support.processes import operator_environment

ROOT = Path(__file__).parents[2]

# Upwards; a room may import from its own floor (without circles) and from those below.
HOUSES: dict[str, tuple[tuple[str, ...], ...]] = {
    "operator_core": (
        ("errors", "clock", "text", "failpoints", "encodings", "together"),
        ("model", "redaction", "http_server"),
        ("config",),
        ("safety", "sandbox", "db", "scripted"),
        ("agent_lab", "probes", "notify"),
        ("verify",),
        ("work", "monitor"),
        ("api", "intake", "announce"),
        ("client", "mcp"),
        ("web", "tui"),
        ("cli", "demo"),
        ("__main__",),
    ),
    "operator_dataverse": (
        ("errors",),
        ("settings", "tables"),
        ("client",),
        ("teams", "onedrive", "flows", "bot", "update", "machine"),
        ("reporting", "intake", "fleet"),
        ("chat", "source"),
        ("double",),
        ("demo", "cli"),
        ("__main__",),
    ),
}
FLOOR_OF = {
    house: {room: floor for floor, rooms in enumerate(floors) for room in rooms} for house, floors in HOUSES.items()
}
# The double judges the client, so it must not be made of it.
INDEPENDENT = {"operator_dataverse.double": {"operator_dataverse.tables"}}

# (module, room) -> why it may import from that higher room.
MAY_IMPORT_UP = {
    ("operator_core.agent_lab.loop", "work"): "`run_agent_loop(db_path)`, the seed's blocking entry point, is a worker",
}
# module -> why it may use a clock or a source of randomness of its own. Everything else takes them from `clock`.
MAY_USE_TIME = {
    "operator_core.clock": "it is the clock",
    "operator_core.demo.service": "it is the watched system, a program that knows nothing of Operator",
    "operator_core.agent_lab.loop": "jitter of the retry pauses",
    "operator_core.sandbox.linux.guard_helper": "it is a program that loads nothing of Operator",
    "operator_dataverse.client.http": "jitter of the retry pauses",
    "operator_dataverse.double.faults": "a storm is a series of chances with a seed",
    "operator_core.work.worker": "jitter, so that workers do not all reap at the same moment",
}

LINES_AT_MOST = 700
LOOP_LINES = range(100, 200)

# What must not be loaded by `import operator_core.cli`, because `operator --help` has to be fast.
HEAVY = (
    "aiosqlite",
    "alembic",
    "anthropic",
    "apprise",
    "asyncpg",
    "azure",
    "fastapi",
    "genai_prices",
    "httpx2",
    "jinja2",
    "jsonschema",
    "mcp",
    "msal",
    "numpy",
    "re2",
    "requests",
    "sqlalchemy",
    "starlette",
    "textual",
    "uvicorn",
)

CLOCKS = {
    "time": {"time", "time_ns", "monotonic", "monotonic_ns", "perf_counter", "perf_counter_ns"},
    "datetime": {"now", "utcnow", "today"},
    "date": {"today"},
    "uuid": {"uuid1", "uuid4", "uuid6", "uuid7"},
}

Sources = Mapping[str, str]
"""Dotted module name -> source; a package's name ends in ``.__init__``."""


class Import(NamedTuple):
    """One import: by which module, of which dotted name, in which line, and whether only for the type checker."""

    importer: str
    name: str
    line: int
    typing_only: bool


@cache
def product() -> dict[str, str]:
    """The sources of every package in ``packages/``."""
    return {
        ".".join(path.relative_to(folder).with_suffix("").parts): path.read_text()
        for folder in ROOT.glob("packages/*/src")
        for path in folder.rglob("*.py")
    }


def imports(sources: Sources) -> Iterator[Import]:
    for module, source in sources.items():
        tree = ast.parse(source)
        guarded = {
            id(inner)
            for node in ast.walk(tree)
            if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test)
            for inner in ast.walk(node)
        }
        for node in ast.walk(tree):
            if isinstance(node, ast.Import):
                for alias in node.names:
                    yield Import(module, alias.name, node.lineno, id(node) in guarded)
            elif isinstance(node, ast.ImportFrom):
                for alias in node.names:
                    yield Import(module, f"{node.module}.{alias.name}", node.lineno, id(node) in guarded)


def room(name: str) -> str:
    """The room of a dotted name in its package; empty for the package itself."""
    parts = name.split(".")
    return parts[1] if len(parts) > 1 and parts[1] != "__init__" else ""


def house(name: str) -> str:
    """The package of a dotted name."""
    return name.split(".")[0]


def wrong_floors(sources: Sources) -> list[str]:
    complaints = []
    rooms = {(house(name), room(name)) for name in sources if house(name) in HOUSES and room(name)}
    complaints += [
        f"{package}.{name} is on no floor; give it one in HOUSES"
        for package, name in sorted(rooms)
        if name not in FLOOR_OF[package]
    ]
    for importer, name, line, _ in imports(sources):
        package, target, floors = house(name), room(name), FLOOR_OF.get(house(importer), {})
        if house(importer) == "operator_core" and package in {"operator_lab", "operator_dataverse"}:
            complaints.append(f"{importer}:{line} imports {name}; plug-ins use the core, not the other way round")
        if package != house(importer) or target not in floors or room(importer) not in floors | {"": -1}:
            continue
        if floors[target] > floors.get(room(importer), -1) and (importer, target) not in MAY_IMPORT_UP:
            complaints.append(f"{importer}:{line} imports {name}, which is on a higher floor")
    return complaints


def not_independent(sources: Sources) -> list[str]:
    """Imports of a room that must judge others from the rooms that it judges."""
    return [
        f"{importer}:{line} imports {name}; {owner} must stand alone"
        for importer, name, line, _ in imports(sources)
        for owner, allowed in INDEPENDENT.items()
        if importer.startswith(f"{owner}.")
        and house(name) == house(owner)
        and not name.startswith(tuple(f"{room}." for room in {owner, *allowed}))
        and name not in {owner, *allowed}
    ]


def private_uses(sources: Sources) -> list[str]:
    """Imports of another package's private modules or names."""
    return [
        f"{importer}:{line} imports {name}, which is private to another package"
        for importer, name, line, _ in imports(sources)
        if name.split(".")[0] in {"operator_core", "operator_lab", "operator_dataverse"}
        and name.split(".")[0] != importer.split(".")[0]
        and any(part.startswith("_") and not part.startswith("__") for part in name.split("."))
    ]


def circles(edges: Mapping[str, set[str]]) -> list[str]:
    """The circles of a graph, each once, as ``a -> b -> a``."""
    done: set[str] = set()
    found = []

    def visit(node: str, path: list[str]) -> None:
        if node in path:
            found.append(" -> ".join([*path[path.index(node) :], node]))
            return
        if node in done:
            return
        for target in sorted(edges.get(node, ())):
            visit(target, [*path, node])
        done.add(node)

    for node in sorted(edges):
        visit(node, [])
    return found


def module_edges(sources: Sources) -> dict[str, set[str]]:
    edges: dict[str, set[str]] = {name: set() for name in sources}
    for importer, name, _, typing_only in imports(sources):
        if typing_only or any((importer, room(name)) == allowed for allowed in MAY_IMPORT_UP):
            continue
        # `from package import name` is an import of the submodule when there is one, else of the package.
        parent = name.rpartition(".")[0]
        target = next((n for n in (name, f"{name}.__init__", parent, f"{parent}.__init__") if n in sources), None)
        if target is not None and target != importer:
            edges[importer].add(target)
    return edges


def room_edges(sources: Sources) -> dict[str, set[str]]:
    def place(name: str) -> str:
        return f"{house(name)}.{room(name)}"

    edges: dict[str, set[str]] = {}
    for importer, targets in module_edges(sources).items():
        inside = {place(t) for t in targets if house(t) == house(importer) and room(t)}
        edges.setdefault(place(importer), set()).update(inside - {place(importer)})
    return edges


def own_clocks(sources: Sources, allowed: Mapping[str, str] = MAY_USE_TIME) -> list[str]:
    complaints = []
    for module, source in sources.items():
        if module in allowed:
            continue
        for node in ast.walk(ast.parse(source)):
            used = ""
            if isinstance(node, ast.Attribute):
                owner = ast.unparse(node.value).split(".")[-1]
                if node.attr in CLOCKS.get(owner, ()) or owner == "random":
                    used = ast.unparse(node)
            elif isinstance(node, ast.ImportFrom) and node.module in {"time", "uuid", "random"}:
                names = {alias.name for alias in node.names}
                used = ", ".join(names if node.module == "random" else names & CLOCKS[node.module])
            if used:
                complaints.append(f"{module} uses {used}; take it from operator_core.clock")
    return complaints


def without_all(sources: Sources) -> list[str]:
    def is_public(module: str) -> bool:
        parts = module.removesuffix(".__init__").split(".")
        return not any(part.startswith("_") for part in parts) and "migrations" not in parts

    def has_all(source: str) -> bool:
        return any(
            isinstance(target, ast.Name) and target.id == "__all__"
            for node in ast.parse(source).body
            if isinstance(node, ast.Assign | ast.AnnAssign)
            for target in (node.targets if isinstance(node, ast.Assign) else [node.target])
        )

    return [
        f"{module} has no __all__"
        for module, source in sources.items()
        # An empty `__init__` (a docstring at most) has nothing to export.
        if is_public(module) and not has_all(source) and len(ast.parse(source).body) > module.endswith("__init__")
    ]


def too_long(sources: Sources) -> list[str]:
    lengths = {module: len(source.splitlines()) for module, source in sources.items()}
    return [f"{module} has {lines} lines" for module, lines in lengths.items() if lines > LINES_AT_MOST]


def test_imports_point_downwards() -> None:
    assert wrong_floors(product()) == []


def test_the_judge_shares_nothing_with_the_judged() -> None:
    assert not_independent(product()) == []


def test_packages_use_only_what_others_export() -> None:
    assert private_uses(product()) == []


def test_no_module_imports_itself_through_others() -> None:
    assert circles(module_edges(product())) == []


def test_no_room_imports_itself_through_others() -> None:
    assert circles(room_edges(product())) == []


def test_time_ids_and_chance_come_from_the_clock() -> None:
    assert own_clocks(product()) == []


def test_every_public_module_says_what_it_exports() -> None:
    assert without_all(product()) == []


def test_no_module_is_too_long() -> None:
    assert too_long(product()) == []


def test_the_conversation_loop_can_be_read_in_ten_minutes() -> None:
    lines = {name: len(text.splitlines()) for name, text in product().items() if name.endswith("agent_lab.loop")}
    assert all(count in LOOP_LINES for count in lines.values()), lines


def test_exceptions_that_nothing_needs_are_removed() -> None:
    used = {(found.importer, room(found.name)) for found in imports(product())}
    assert [pair for pair in MAY_IMPORT_UP if pair[0] in product() and pair not in used] == []
    excused = {name: text for name, text in product().items() if name in MAY_USE_TIME}
    assert [name for name in excused if not own_clocks({name: excused[name]}, allowed={})] == []


@pytest.mark.parametrize(
    "module",
    [
        "operator_core",
        "operator_core.cli",
        "operator_dataverse",
        "operator_dataverse.cli",
        "operator_dataverse.settings",
    ],
)
def test_the_command_line_loads_nothing_heavy(module: str) -> None:
    code = f"import sys, json, {module}; print(json.dumps(sorted(sys.modules)))"
    loaded = set(json.loads(_python(code)))
    assert loaded.isdisjoint(HEAVY)


# Python itself reports what is done while each module is imported; reading is allowed, changing and connecting are not.
IMPORT_ALL = """
import importlib, json, sys, traceback
effects, failures = [], {}
WATCHED = {"os.mkdir", "os.rename", "os.remove", "os.rmdir", "subprocess.Popen", "os.posix_spawn", "os.fork",
           "socket.connect", "socket.bind", "sqlite3.connect"}
def watch(event, args):
    if event in WATCHED or (event == "open" and isinstance(args[1], str) and set(args[1]) & set("wax+")):
        effects.append([current, event, str(args[:1])])
current = ""
sys.addaudithook(watch)
for current in json.loads(sys.argv[1]):
    try:
        importlib.import_module(current)
    except Exception:
        failures[current] = traceback.format_exc(limit=-2)
print(json.dumps([effects, failures]))
"""


def test_every_module_can_be_imported_and_does_nothing_then() -> None:
    names = [name.removesuffix(".__init__") for name in product() if not _runs_when_imported(name)]
    effects, failures = json.loads(_python(IMPORT_ALL, json.dumps(sorted(names))))
    assert failures == {}
    assert effects == []


def _runs_when_imported(module: str) -> bool:
    """`__main__` is a program, and Alembic alone can load the migrations."""
    return module.endswith("__main__") or ".migrations." in module


def _python(code: str, *args: str) -> str:
    done = subprocess.run(
        [sys.executable, "-B", "-c", code, *args],
        env=operator_environment(),
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout.strip().splitlines()[-1]


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (wrong_floors, "operator_core.db.store", "from operator_core.work import worker"),
        (wrong_floors, "operator_core.db.store", "def f():\n    import operator_core.cli.main"),
        (wrong_floors, "operator_core.clock", "from operator_core import model"),
        (wrong_floors, "operator_core.__init__", "from operator_core.errors import OperatorError"),
        (wrong_floors, "operator_core.verify.checks", "from operator_core.agent_lab import x\nimport operator_lab"),
        (wrong_floors, "operator_core.attic.box", ""),
        (wrong_floors, "operator_dataverse.attic.box", ""),
        (wrong_floors, "operator_dataverse.client.http", "from operator_dataverse.intake import poll"),
        (not_independent, "operator_dataverse.double.app", "from operator_dataverse.client import field"),
        (private_uses, "operator_lab.trial", "from operator_core.db import _engine"),
        (own_clocks, "operator_core.db.store", "import time\nx = time.monotonic()"),
        (own_clocks, "operator_core.db.store", "from time import time"),
        (own_clocks, "operator_core.db.store", "import datetime\nx = datetime.datetime.now(datetime.UTC)"),
        (own_clocks, "operator_core.db.store", "from datetime import datetime\nx = datetime.utcnow"),
        (own_clocks, "operator_core.db.store", "import uuid\nx = uuid.uuid4()"),
        (own_clocks, "operator_core.db.store", "import random\nx = random.random()"),
        (own_clocks, "operator_core.db.store", "from random import choice"),
        (without_all, "operator_core.db.store", "x = 1"),
        (without_all, "operator_core.db.__init__", '"""Doc."""\nfrom operator_core.db.store import x'),
        (too_long, "operator_core.db.store", "x = 1\n" * 701),
    ],
)
def test_each_rule_sees_what_breaks_it(rule: object, module: str, source: str) -> None:
    assert callable(rule)
    assert len(rule({module: source})) == 1


@pytest.mark.parametrize(
    ("rule", "module", "source"),
    [
        (
            wrong_floors,
            "operator_core.work.worker",
            "from operator_core.db import x\nimport operator_core.monitor.loop",
        ),
        (wrong_floors, "operator_core.agent_lab.loop", "def f():\n    from operator_core.work import run"),
        (wrong_floors, "operator_core.cli.main", "from operator_core import __version__"),
        (wrong_floors, "operator_dataverse.intake.poll", "from operator_core.work import x\nimport operator_core.cli"),
        (not_independent, "operator_dataverse.double.app", "from operator_dataverse.tables import schema"),
        (
            own_clocks,
            "operator_core.db.store",
            "import time\nfrom datetime import UTC, datetime\nx = datetime.fromtimestamp",
        ),
        (own_clocks, "operator_core.clock", "import time\nx = time.time()"),
        (without_all, "operator_core.db._engine", "x = 1"),
        (without_all, "operator_core.db.__init__", '"""Doc."""'),
        (without_all, "operator_core.db.store", "__all__ = []"),
        (too_long, "operator_core.db.store", "x = 1\n" * 700),
    ],
)
def test_no_rule_complains_about_what_is_allowed(rule: object, module: str, source: str) -> None:
    assert callable(rule)
    assert rule({module: source}) == []


def test_circles_are_found_through_lazy_imports_but_not_through_types() -> None:
    one = {"operator_core.db.a": "from operator_core.db.b import x"}
    assert circles(module_edges({**one, "operator_core.db.b": "def f():\n    from operator_core.db import a"})) == [
        "operator_core.db.a -> operator_core.db.b -> operator_core.db.a"
    ]
    typed = "from typing import TYPE_CHECKING\nif TYPE_CHECKING:\n    from operator_core.db import a"
    assert circles(module_edges({**one, "operator_core.db.b": typed})) == []
    packages = {
        "operator_core.db.__init__": "from operator_core.db.a import x",
        "operator_core.db.a": "from operator_core.db import y",
    }
    assert len(circles(module_edges(packages))) == 1
    rooms = {
        "operator_core.db.a": "import operator_core.sandbox.b",
        "operator_core.sandbox.b": "",
        "operator_core.sandbox.c": "import operator_core.db.a",
    }
    assert circles(module_edges(rooms)) == []
    assert circles(room_edges(rooms)) == ["operator_core.db -> operator_core.sandbox -> operator_core.db"]
