"""``operator-dataverse rows``: rows of any table, read and changed by hand (row B-041)."""

from __future__ import annotations

import re
from collections.abc import Sequence
from difflib import get_close_matches
from typing import TYPE_CHECKING, Annotated, Any

import typer

from operator_core.cli.context import AsJson, run
from operator_core.cli.output import Output
from operator_core.errors import ConfigError
from operator_core.text import clip
from operator_dataverse.cli.connection import DryRun, open_dataverse

if TYPE_CHECKING:
    from operator_dataverse.client import Column, Filter, Row, TableInfo

__all__ = ["app"]

app = typer.Typer(help="Read and change rows of any table by hand.", no_args_is_help=True)

Table = Annotated[str, typer.Argument(metavar="TABLE", help="Entity set, e.g. cr_shraga_tasks.", show_default=False)]
RowId = Annotated[str, typer.Argument(metavar="ID", help="The id of the row.", show_default=False)]
Values = Annotated[
    list[str],
    typer.Option("--set", metavar="COLUMN=VALUE", help="May be repeated; nothing after the = takes the value away."),
]
Version = Annotated[
    str | None,
    typer.Option("--etag", metavar="ETAG", help="Only if the row still has this version. Default: the one just read."),
]

_CONDITION = re.compile(r"\s*([A-Za-z_]\w*)\s*(!=|<=|>=|=|<|>|~)(.*)", re.DOTALL | re.ASCII)
_SHOWN = 60


@app.command("list")
def list_(
    context: typer.Context,
    table: Table,
    where: Annotated[
        list[str] | None,
        typer.Option(
            "--where",
            metavar="CONDITION",
            help="COLUMN=VALUE, also with != < <= > >= and ~ (contains); nothing after the = finds rows without a "
            "value. May be repeated: all must hold.",
        ),
    ] = None,
    select: Annotated[str | None, typer.Option("--select", metavar="COLUMNS", help="With commas between them.")] = None,
    order: Annotated[
        str | None, typer.Option("--orderby", metavar="COLUMNS", help="With commas between them; `x desc` turns it.")
    ] = None,
    top: Annotated[int, typer.Option("--top", "-n", min=1, help="At most so many.")] = 50,
    as_json: AsJson = False,
) -> None:
    """List rows."""
    columns = _words(select)

    async def work() -> tuple[TableInfo, list[Row]]:
        async with open_dataverse(context) as dataverse:
            info = await dataverse.info(table)
            orders = [_order(info, one) for one in _words(order)]
            chosen = [_name(info, name) for name in columns]
            found = dataverse.rows(table, _conditions(info, where or ()), select=chosen, orderby=orders, top=top)
            return info, [row async for row in found]

    info, rows = run(work())
    out = Output()
    if as_json:
        out.json([_document(row) for row in rows])
        return
    shown = columns or [name for name in (info.primary_name, "cr_status", "createdon") if name in info.columns]
    cells = [(row.id, *(clip(row.formatted(name) or "-", _SHOWN) for name in shown)) for row in rows]
    out.table(("id", *shown), cells, empty="There are no such rows.")


@app.command()
def show(context: typer.Context, table: Table, row_id: RowId, as_json: AsJson = False) -> None:
    """Show one row."""

    async def work() -> Row:
        async with open_dataverse(context) as dataverse:
            return _there(await dataverse.row(table, row_id), table, row_id)

    _show(run(work()), as_json)


@app.command()
def create(
    context: typer.Context,
    table: Table,
    values: Values,
    row_id: Annotated[
        str | None, typer.Option("--id", metavar="ID", help="Its id; a row that has it already is left as it is.")
    ] = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Make a row."""

    async def work() -> Row | dict[str, Any]:
        from operator_dataverse.client import Conflict
        from operator_dataverse.errors import DataverseError

        async with open_dataverse(context) as dataverse:
            wanted = _assignments(await dataverse.info(table), values)
            if dry_run:
                return wanted
            made = await dataverse.create(table, wanted, row_id=row_id)
            if isinstance(made, Conflict):
                raise DataverseError(f"There is a row {row_id} in {table} already; change it with `rows update`.")
            return made

    return _tell(run(work()), "would make", as_json)


@app.command()
def update(
    context: typer.Context,
    table: Table,
    row_id: RowId,
    values: Values,
    etag: Version = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Change a row, unless somebody else has changed it meanwhile."""

    async def work() -> Row | dict[str, Any]:
        from operator_dataverse.client import Conflict

        async with open_dataverse(context) as dataverse:
            wanted = _assignments(await dataverse.info(table), values)
            version = etag or _version(_there(await dataverse.row(table, row_id, select=[]), table, row_id))
            if dry_run:
                return wanted
            done = await dataverse.update(table, row_id, wanted, etag=version)
            if isinstance(done, Conflict):
                raise _changed(table, row_id, done)
            return done

    return _tell(run(work()), "would write", as_json)


@app.command()
def delete(
    context: typer.Context,
    table: Table,
    row_id: RowId,
    etag: Version = None,
    dry_run: DryRun = False,
    as_json: AsJson = False,
) -> int:
    """Delete a row, unless somebody else has changed it meanwhile."""

    async def work() -> Row:
        from operator_dataverse.client import Conflict

        async with open_dataverse(context) as dataverse:
            row = _there(await dataverse.row(table, row_id), table, row_id)
            if not dry_run:
                done = await dataverse.delete(table, row_id, etag=etag or _version(row))
                if isinstance(done, Conflict):
                    raise _changed(table, row_id, done)
            return row

    row = run(work())
    out = Output()
    if as_json:
        out.json({"dry_run": dry_run, "deleted": _document(row)})
    else:
        out.line(f"{'Would delete' if dry_run else 'Deleted'} {row.id} of {table}.")
    return 0


def _tell(result: Row | dict[str, Any], would: str, as_json: bool) -> int:
    if isinstance(result, dict):
        out = Output()
        if as_json:
            out.json({"dry_run": True, "values": result})
        else:
            out.fields({would: "", **{name: "(nothing)" if v is None else v for name, v in result.items()}})
    else:
        _show(result, as_json)
    return 0


def _show(row: Row, as_json: bool) -> None:
    out = Output()
    if as_json:
        out.json(_document(row))
    else:
        out.fields({"id": row.id, "etag": row.etag} | {name: row.formatted(name) for name in row})


def _document(row: Row) -> dict[str, Any]:
    return {"id": row.id, "etag": row.etag, **row}


def _there(row: Row | None, table: str, row_id: str) -> Row:
    from operator_dataverse.errors import DataverseError

    if row is None:
        raise DataverseError(f"There is no row {row_id} in {table}; list them with `rows list {table}`.")
    return row


def _version(row: Row) -> str:
    from operator_dataverse.errors import DataverseError

    if row.etag is None:
        raise DataverseError(f"The service gives no version of the rows of {row.table}; they cannot be changed safely.")
    return row.etag


def _changed(table: str, row_id: str, conflict: Any) -> Exception:
    from operator_dataverse.errors import DataverseError

    if conflict.reason == "missing":
        return DataverseError(f"The row {row_id} of {table} is gone; list them with `rows list {table}`.")
    return DataverseError(
        f"Somebody else has changed the row {row_id} of {table}; look with `rows show {table} {row_id}` and try again."
    )


def _words(text: str | None) -> list[str]:
    return [word.strip() for word in (text or "").split(",") if word.strip()]


def _name(info: TableInfo, name: str) -> str:
    if name in info.columns or (name.startswith("_") and name.endswith("_value")):
        return name
    near = get_close_matches(name, info.columns, n=1)
    hint = f"did you mean {near[0]}?" if near else f"look with `rows show {info.table} ID`."
    raise ConfigError(f"{info.table} has no column {name!r}; {hint}")


def _order(info: TableInfo, text: str) -> str:
    name, _, way = text.partition(" ")
    if way.strip() not in ("", "asc", "desc"):
        raise ConfigError(f"{text!r} is no order; write a column, and asc or desc after it.")
    return f"{_name(info, name)} {way.strip() or 'asc'}"


def _assignments(info: TableInfo, texts: Sequence[str]) -> dict[str, Any]:
    values: dict[str, Any] = {}
    for text in texts:
        name, equals, value = text.partition("=")
        if not equals:
            raise ConfigError(f"{text!r} sets nothing; write COLUMN=VALUE.")
        known = _name(info, name.strip())
        values[known] = _value(info, known, value)
    if not values:
        raise ConfigError("There is nothing to write; give it with --set COLUMN=VALUE.")
    return values


def _conditions(info: TableInfo, texts: Sequence[str]) -> Filter | None:
    from operator_dataverse.client import Filter, field

    made = []
    for text in texts:
        found = _CONDITION.fullmatch(text)
        if found is None:
            raise ConfigError(f"{text!r} is no condition; write COLUMN=VALUE, or != < <= > >= ~ between them.")
        name, operator, value = found[1], found[2], found[3]
        column = field(_name(info, name))
        if operator == "~":
            made.append(column.contains(value))
            continue
        compare = {
            "=": column.eq, "!=": column.ne, "<": column.lt, "<=": column.le, ">": column.gt, ">=": column.ge,
        }[operator]  # fmt: skip
        made.append(compare(_value(info, name, value)))
    return Filter.all(made)


def _value(info: TableInfo, name: str, text: str) -> Any:
    """What a person typed, as the column takes it."""
    from datetime import UTC, datetime
    from uuid import UUID

    column = info.columns.get(name)
    if text == "":
        return None
    try:
        match column.type if column is not None else "guid":
            case "choice":
                return _option(column, text)
            case "integer":
                return int(text)
            case "number":
                return float(text)
            case "boolean":
                return {"true": True, "yes": True, "false": False, "no": False}[text.strip().lower()]
            case "datetime":
                moment = datetime.fromisoformat(text.strip())
                return moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)
            case "guid":
                return UUID(text.strip())
            case _:
                return text
    except (ValueError, KeyError):
        options = ", ".join(f"{v} ({label})" for v, label in column.options.items()) if column is not None else ""
        takes = f"one of {options}" if options else f"a {column.type if column is not None else 'guid'}"
        raise ConfigError(f"{clip(text, 60)!r} is no value for {name}, which takes {takes}.") from None


def _option(column: Column | None, text: str) -> int:
    named = {label.lower(): value for value, label in column.options.items()} if column is not None else {}
    found = named.get(text.strip().lower())
    return found if found is not None else int(text)
