"""``operator demo``: a real service breaks and its repair is proved or refuted; a task is done and verified."""

from __future__ import annotations

import os
import shutil
import sys
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from operator_core.cli.context import AsJson, invocation, run
from operator_core.cli.hints import command, remember
from operator_core.cli.output import Output
from operator_core.errors import ConfigError

if TYPE_CHECKING:
    from operator_core.cli.acts import Played
    from operator_core.cli.face import Beside

__all__ = ["demo"]

_HOME = ".operator"


def demo(
    context: typer.Context,
    act: Annotated[int | None, typer.Option("--act", min=1, max=3, help="Only this act.")] = None,
    folder: Annotated[
        Path | None, typer.Option("--folder", help="A new folder for everything (default: one in .operator here).")
    ] = None,
    keep: Annotated[
        bool, typer.Option("--keep", help="Serve the console meanwhile, and afterwards until Ctrl-C.")
    ] = False,
    as_json: AsJson = False,
) -> int:
    """Break a service; see a repair proved, a wrong one refuted, and a task done only when it is.

    Works without an API key: a scripted engine then stands in for the model, and says so. The database and the
    workspaces stay where the last lines say; --db puts the database elsewhere.
    """
    from operator_core.cli.acts import play

    # The document is standard output; the story then goes to standard error.
    out = Output(sys.stderr if as_json else None)
    given = invocation(context)
    settings = given.settings
    root = _new_folder(folder)
    remember(db=given.db or _nearest(root / "operator.db"), program=_program())
    try:
        kept = partial(_kept, out, as_json) if keep else None
        played = run(play((act,) if act else (1, 2, 3), root, given.db, settings, out, keep=kept))
    finally:
        out.working(None)
    if not keep:
        _show(out, as_json, played)
    return 0 if played.ok else 1


def _show(out: Output, as_json: bool, played: Played, *, kept: bool = False) -> None:
    if as_json:
        Output().json(played.to_dict())
    else:
        _end(out, played, kept)


def _kept(out: Output, as_json: bool, played: Played, console: Beside) -> None:
    _show(out, as_json, played, kept=True)
    out.line()
    out.line(f"The console goes on at {console.url} until Ctrl-C. Nobody works on new tickets.")
    if token := console.token():
        # Much was said since it was first shown.
        out.line("Log in with this token; it is not shown again:")
        out.line(token)
    else:
        out.line("Log in with a token that this database has already.")


def _new_folder(folder: Path | None) -> Path:
    from operator_core import clock

    name = f"operator-demo-{clock.new_id()[:8]}"
    if folder is not None:
        try:
            folder.mkdir(parents=True)
        except FileExistsError:
            raise ConfigError(f"{folder} exists already; the demo needs a new folder.") from None
        except OSError as error:
            raise ConfigError(f"{folder} cannot be made ({error.strerror}); choose another --folder.") from None
        return folder.resolve()
    here = Path(_HOME)
    try:
        here.mkdir(exist_ok=True)
        (here / name).mkdir()
        if not (here / ".gitignore").exists():
            (here / ".gitignore").write_text("*\n", "ascii")
        return (here / name).resolve()
    except OSError:
        import tempfile

        return Path(tempfile.mkdtemp(prefix="operator-demo-")).resolve()


def _nearest(path: Path) -> str:
    return min(os.path.relpath(path), str(path), key=len)


def _program() -> str | None:
    """How `operator` can be called from here, where its name alone does not do."""
    program = Path(sys.executable).parent / "operator"
    return os.path.relpath(program) if shutil.which("operator") is None and program.exists() else None


def _end(out: Output, played: Played, kept: bool) -> None:
    out.line()
    out.line("# The end")
    for act in played.acts:
        judged = "as it should be" if act.ok else f"but should be {act.wanted}"
        out.line(f"Act {act.number}: ticket #{act.ticket} is {act.status}: {act.reason}, {judged}.")
    out.line(played.audit)
    gone = "Its services and agents are gone" if kept else "Everything that was started is gone"
    out.line(f"That took {played.seconds:.0f} s. {gone}; what remains is in {played.folder}.")
    out.line("Look around:")
    out.line(f"  {command('tickets list')}")
    for act in played.acts:
        out.line(f"  {command(f'sessions show {act.session}')}")
    out.line(f"  {command('audit verify')}")
