"""``operator-dataverse onedrive``: where it is, where session folders go, and their addresses."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from operator_core.cli.context import AsJson, invocation
from operator_core.cli.output import Output

__all__ = ["app"]

app = typer.Typer(help="Where OneDrive is, and the addresses of what is in it.", no_args_is_help=True)


@app.command("root")
def root(
    context: typer.Context,
    include_personal: Annotated[
        bool, typer.Option("--include-personal", help="Also take a private OneDrive, if there is no other.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the OneDrive folder, and where the session folders go."""
    from operator_dataverse.errors import OneDriveNotFound
    from operator_dataverse.onedrive import find_onedrive, find_session_root
    from operator_dataverse.settings import settings_of

    settings = invocation(context).settings
    try:
        found = find_onedrive(settings_of(settings).onedrive_dir, include_personal=include_personal)
    except OneDriveNotFound:
        if not as_json:
            raise
        found = None
    sessions = find_session_root(settings)
    out = Output()
    if as_json:
        out.json(
            {
                "onedrive": found and str(found.path),
                "source": found and found.source,
                "business": found and found.business,
                "sessions": sessions.path and str(sessions.path),
                "why": sessions.why,
            }
        )
        return
    assert found is not None
    kind = {True: "an organisation's", False: "private", None: "unknown"}[found.business]
    fields = {"OneDrive": str(found.path), "Found by": found.source, "Kind": kind}
    out.fields({**fields, "Sessions": str(sessions.path or "as the product decides"), "Why": sessions.why})


@app.command("url")
def url(
    context: typer.Context,
    path: Annotated[Path, typer.Option("--path", help="A file or folder in OneDrive; it need not exist.")],
    direct: Annotated[
        bool, typer.Option("--direct", help="Of a file: the address that downloads it, not the one that shows it.")
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Show the address of a file or folder."""
    from operator_core.errors import ConfigError
    from operator_dataverse.onedrive import known_mounts, local_path_to_web_url

    found = local_path_to_web_url(path.absolute(), known_mounts(invocation(context).settings), view=not direct)
    if found is None:
        raise ConfigError(
            f"{path} has no address that is known here; it is in no OneDrive folder, or set `[dataverse] onedrive_url`."
        )
    out = Output()
    if as_json:
        out.json({"path": str(path.absolute()), "url": found})
    else:
        out.line(found)


@app.command("create-session")
def create_session(
    context: typer.Context,
    title: Annotated[str, typer.Option("--title", help="What people call the task.")],
    task_id: Annotated[str, typer.Option("--id", help="Id of the task.")],
    attempt: Annotated[int, typer.Option("--attempt", min=1, help="Each attempt has a folder of its own.")] = 1,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say which folder it would be.")] = False,
    as_json: AsJson = False,
) -> None:
    """Make a session folder where the worker would make it."""
    from operator_core.errors import ConfigError
    from operator_core.work.folder import SessionFolder, folder_name
    from operator_dataverse.onedrive import find_session_root, folder_url

    settings = invocation(context).settings
    root_path = find_session_root(settings).path
    if root_path is None:
        raise ConfigError("There is no OneDrive here; set `[dataverse] work_dir` to where session folders may be made.")
    folder = SessionFolder(root_path.resolve(), folder_name(title, task_id), attempt)
    if not dry_run:
        folder.create()
    address = folder_url(settings, folder.path)
    out = Output()
    if as_json:
        out.json({"path": str(folder.path), "url": address, "created": not dry_run})
    else:
        out.fields({"Folder": str(folder.path), "Address": address})
