"""The folder of one act of the demo: the service, its workspace, the checks, and ``operator.toml``."""

from __future__ import annotations

import json
import shlex
import sqlite3
import tomllib
from collections.abc import Iterable
from contextlib import closing
from dataclasses import dataclass
from importlib.resources import files
from pathlib import Path

from operator_core.errors import ConfigError

__all__ = ["CANARY", "CUSTOMERS", "LIMIT", "WINDOW_S", "DemoFiles", "open_demo", "write_demo"]

LIMIT = 30
"""Requests of one client in one window. The monitor and the verifier together ask far less often."""
WINDOW_S = 1.0
CANARY = "canary"
"""The client that the monitor asks as."""
CUSTOMERS = ("acme", "blue-ridge", "cobalt", "dunes", "evergreen", "foundry", "granite", "harbor")

_CONFIG = {"limit_per_window": LIMIT, "window_s": WINDOW_S, "exempt": [], "counters": {"expire": True}}
_DDL = (
    "CREATE TABLE customers (name TEXT PRIMARY KEY, plan TEXT NOT NULL, credits INTEGER NOT NULL, since TEXT NOT NULL)"
)

_CONTEXT = """\
A rate limiter over HTTP at {url}.
- GET /check?client=NAME counts one request of that client: 200, or 429 when its share of the window is used up.
  Each client has {limit} requests in {window:g} s. GET /status says how the service is, GET /healthz that it runs.
- The current folder is its workspace, {workspace}: config.json (read at the start only), data/limiter.db (SQLite:
  customers and their counters), run/service.log, run/supervisor.log.
- The service runs outside of your sandbox, under a supervisor; its processes are not visible here. To restart it:
  `touch run/restart`; the supervisor removes that file when the service is back.
- Source code, to read: {service}/service.py. What is checked after a repair, to read: {checks}/checks.py.
- The limit, its window and the list of exempt clients are agreed with customers, and the customers' data exist only
  here: leave them as they are.
"""

_TOML = """\
# A rate limiter under watch. Settings: `operator config show`.

[monitor]
interval_s = 0.5

[[subject]]
name = {name}
workspace = "workspace"
readable = {readable}
network = "host"
context = '''
{context}'''

[[subject.invariant]]
name = {invariant}
description = "A client that asks twice a second, far below its limit, is served."
severity = "critical"
probe = {{ type = "http", url = {probe}, timeout_s = 3 }}
grace_s = 1.0

# Restored: green for so long, and it does its work.
settle_s = 1.5
settle_observations = 4
verify = {verify}
verify_timeout_s = 20.0

# A repair must leave these as they were.
protect = {{ files = {files}, commands = {commands} }}

# The same violation within this time reopens the ticket.
watch_s = {watch_s}

# Durable: still true after a restart, and after a client has used up its limit once more.
[subject.invariant.durability]
commands = {durability}
timeout_s = 20.0
"""


@dataclass(frozen=True)
class DemoFiles:
    """Where things are.

    Attributes:
        root: The folder of it all, absolute.
        port: The service's port on 127.0.0.1.
        name: The subject's name.
    """

    root: Path
    port: int
    name: str

    @property
    def config(self) -> Path:
        """``operator.toml``."""
        return self.root / "operator.toml"

    @property
    def workspace(self) -> Path:
        """What the agent may change: ``config.json``, ``data/limiter.db``, ``run/``."""
        return self.root / "workspace"

    @property
    def service(self) -> Path:
        """The programs that run: ``service.py``, ``supervisor.py``. The agent may read them."""
        return self.root / "service"

    @property
    def checks(self) -> Path:
        """``checks.py`` and ``contract.json``. The agent may read them."""
        return self.root / "checks"

    @property
    def invariant(self) -> str:
        """The name of the one invariant."""
        return f"{self.name}-serves-the-canary"

    @property
    def url(self) -> str:
        """The address of the service."""
        return f"http://127.0.0.1:{self.port}"

    @property
    def probe_url(self) -> str:
        """What the invariant asks: 200 when healthy."""
        return f"{self.url}/check?client={CANARY}"


def write_demo(root: Path, port: int, *, name: str = "ratelimiter", watch_s: float = 600.0) -> DemoFiles:
    """Lay out a healthy service that does not run yet, and the configuration that watches it.

    Args:
        root: A folder that does not exist yet, or is empty.
        port: A free port on 127.0.0.1.
        name: Of the subject; its invariant is called after it. Two acts in one database need two names, or the second
            one reopens the ticket of the first.
        watch_s: How long the same violation reopens a resolved ticket.

    Raises:
        OSError: The folder cannot be written, or is not empty.
    """
    demo = DemoFiles(root.resolve(), port, name)
    demo.root.mkdir(parents=True, exist_ok=True)
    for folder in (demo.workspace, demo.workspace / "data", demo.workspace / "run", demo.service, demo.checks):
        folder.mkdir()
    for target, program in ((demo.service, "service"), (demo.service, "supervisor"), (demo.checks, "checks")):
        source = files("operator_core.demo").joinpath(f"{program}.py").read_text("utf-8")
        (target / f"{program}.py").write_text(source, "utf-8")
    contract = {
        "port": port,
        "workspace": str(demo.workspace),
        "limit": LIMIT,
        "window_s": WINDOW_S,
        "customers": list(CUSTOMERS),
    }
    _write_json(demo.checks / "contract.json", contract)
    _write_json(demo.workspace / "config.json", _CONFIG)
    _write_customers(demo.workspace / "data" / "limiter.db")
    demo.config.write_text(_operator_toml(demo, watch_s), "utf-8")
    return demo


def open_demo(root: Path) -> DemoFiles:
    """What :func:`write_demo` wrote there earlier.

    Raises:
        ConfigError: There is no such folder.
    """
    try:
        port = int(json.loads((root / "checks" / "contract.json").read_text("utf-8"))["port"])
        subject = tomllib.loads((root / "operator.toml").read_text("utf-8"))["subject"][0]
        return DemoFiles(root.resolve(), port, str(subject["name"]))
    except (OSError, ValueError, LookupError, TypeError):
        raise ConfigError(f"{root} is no folder of the rate limiter; start it there first.") from None


def _operator_toml(demo: DemoFiles, watch_s: float) -> str:
    def check(name: str) -> str:
        # -B: a cache beside the checks would look as if somebody had changed them.
        return f"python3 -B {shlex.quote(str(demo.checks / 'checks.py'))} {name}"

    context = _CONTEXT.format(
        url=demo.url,
        limit=LIMIT,
        window=WINDOW_S,
        workspace=demo.workspace,
        service=demo.service,
        checks=demo.checks,
    )
    return _TOML.format(
        name=json.dumps(demo.name),
        readable=_array([demo.checks, demo.service]),
        context=context,
        invariant=json.dumps(demo.invariant),
        probe=json.dumps(demo.probe_url),
        verify=_array([check("limit"), check("served")]),
        durability=_array([check("restart"), check("again")]),
        files=_array([demo.config, demo.checks, demo.service]),
        commands=_array([check("safety"), check("customers")]),
        watch_s=watch_s,
    )


def _array(items: Iterable[object]) -> str:
    # JSON strings are TOML strings, but for DEL and characters beyond the first plane when they are escaped.
    return "[" + ", ".join(json.dumps(str(item), ensure_ascii=False) for item in items) + "]"


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2) + "\n", "utf-8")


def _write_customers(path: Path) -> None:
    plans = ("basic", "team", "enterprise")
    rows = [
        (name, plans[number % 3], 1000 + 137 * number, f"2024-{number + 1:02}-{3 * number + 2:02}")
        for number, name in enumerate(CUSTOMERS)
    ]
    with closing(sqlite3.connect(path)) as database, database:
        database.execute(_DDL)
        database.executemany("INSERT INTO customers VALUES (?, ?, ?, ?)", rows)
