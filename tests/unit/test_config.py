"""Settings: where each value comes from, and one sentence for each mistake."""

from __future__ import annotations

from pathlib import Path
from typing import ClassVar, get_args

import pytest
from pydantic import BaseModel

from operator_core.config import Settings, extension_models, load_settings
from operator_core.errors import ConfigError
from operator_core.model.described import descriptions
from operator_dataverse.settings import settings_of

FULL = """
[store]
url = "file.db"
[model]
model = "from-file"
[limits]
turns = 7
[[subject]]
name = "shop"
workspace = "data"
[[subject.invariant]]
name = "disk"
probe = {type = "http", url = "http://localhost:1/"}
"""


def write(tmp_path: Path, text: str) -> Path:
    path = tmp_path / "operator.toml"
    path.write_text(text)
    return path


def refused(path: Path | None, environ: dict[str, str] | None = None) -> str:
    with pytest.raises(ConfigError) as caught:
        load_settings(path, environ=environ or {})
    text = str(caught.value)
    assert "\n" not in text
    assert text.endswith(".")
    assert caught.value.exit_code == 2
    return text


def test_defaults_need_no_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    loaded = load_settings(environ={})
    assert (loaded.settings, loaded.origins, loaded.path) == (Settings(), {}, None)


def test_every_setting_is_described() -> None:
    for name, section in Settings.model_fields.items():
        if name != "subject":
            table = next(iter(get_args(section.annotation)), section.annotation)
            assert table is not None
            assert set(descriptions(table)) == set(table.model_fields), f"{name} has a field without a docstring"
    for name, model in extension_models().items():
        assert set(descriptions(model)) == set(model.model_fields), f"{name} has a field without a docstring"


def test_what_is_under_a_field_describes_it() -> None:
    class Base(BaseModel):
        """A base."""

        a: int = 1
        """In the
        base."""
        b: int = 2
        """No longer true."""

    class Part(Base):
        b: int = 3
        """In the part."""
        c: int = 4
        d: int = 5
        other: ClassVar[int] = 6
        """No field."""

    assert descriptions(Part) == {"a": "In the base.", "b": "In the part."}


def test_a_package_brings_a_section_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, FULL + '[dataverse]\nurl = "https://org.example"\nwork_dir = "work"\nbox = "file"\n')
    environ = {"DATAVERSE_URL": "https://other.example", "OPERATOR_DATAVERSE__BOX": "env", "WEBHOOK_USER": ""}
    loaded = load_settings(path, environ=environ)
    found = settings_of(loaded.settings)
    assert (found.url, found.box, found.user, found.work_dir) == (
        environ["DATAVERSE_URL"],
        "env",
        None,
        tmp_path / "work",
    )
    assert loaded.origins["dataverse.url"] == "environment DATAVERSE_URL"
    assert loaded.origins["dataverse.box"] == "environment OPERATOR_DATAVERSE__BOX"
    assert loaded.origins["dataverse.work_dir"] == str(path)
    # They stay when the tree is copied with other values, and are the defaults where nothing was configured.
    assert settings_of(loaded.settings.model_copy(update={"limits": loaded.settings.limits})).box == "env"
    assert settings_of(Settings()).url is None
    assert loaded.settings != load_settings(path, environ={}).settings


@pytest.mark.parametrize(
    ("text", "environ", "said"),
    [
        ("[dataverse]\nurll = 'x'", {}, "Unknown key 'dataverse.urll' in {}; perhaps 'url' is meant."),
        ("[dataverse]\npoll_s = 0", {}, "Bad value for 'dataverse.poll_s' in {}: Input should be greater than 0."),
        ("dataverse = 1", {}, "Bad value for 'dataverse' in {}: "),
        (
            "",
            {"OPERATOR_DATAVERSE__POLL_S": "x"},
            "Bad value for 'dataverse.poll_s' in environment OPERATOR_DATAVERSE__POLL_S: ",
        ),
    ],
)
def test_mistakes_in_it_are_blamed_likewise(tmp_path: Path, text: str, environ: dict[str, str], said: str) -> None:
    path = write(tmp_path, text + "\n")
    assert refused(path, environ).startswith(said.format(path))


def test_the_order_of_precedence_and_the_origins(tmp_path: Path) -> None:
    path = write(tmp_path, FULL)
    environ = {"OPERATOR_MODEL__MODEL": "from-env", "OPERATOR_LIMITS__TOKENS": "9", "OPERATOR_DB": "env.db"}
    loaded = load_settings(path, environ=environ)
    s = loaded.settings
    assert (s.store.url, s.model.model, s.limits.turns, s.limits.tokens) == ("env.db", "from-env", 7, 9)
    assert loaded.origins["model.model"] == "environment OPERATOR_MODEL__MODEL"
    assert loaded.origins["limits.turns"] == str(path)
    assert loaded.origins["store.url"] == "environment OPERATOR_DB"
    assert "limits.cost_usd" not in loaded.origins
    loaded = load_settings(path, environ=environ, db="command.db")
    assert (loaded.settings.store.url, loaded.origins["store.url"]) == ("command.db", "command line --db")


def test_the_file_is_found_by_name_or_by_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, FULL)
    assert load_settings(environ={"OPERATOR_CONFIG": str(path)}).path == path
    monkeypatch.chdir(tmp_path)
    assert load_settings(environ={}).settings.limits.turns == 7


def test_the_base_url_of_the_sdk_counts_unless_ours_is_set(tmp_path: Path) -> None:
    environ = {"ANTHROPIC_BASE_URL": "http://a"}
    loaded = load_settings(write(tmp_path, ""), environ=environ)
    assert loaded.settings.model.base_url == "http://a"
    assert loaded.origins["model.base_url"] == "environment ANTHROPIC_BASE_URL"
    ours = load_settings(write(tmp_path, '[model]\nbase_url = "http://b"'), environ=environ)
    assert ours.settings.model.base_url == "http://b"


def test_a_workspace_is_relative_to_the_file_that_names_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write(tmp_path, FULL)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert load_settings(Path("../operator.toml"), environ={}).settings.subject[0].workspace == tmp_path / "data"
    absolute = write(tmp_path, FULL.replace('"data"', '"/srv/data"'))
    assert load_settings(absolute, environ={}).settings.subject[0].workspace == Path("/srv/data")


def test_retired_models_are_replaced(tmp_path: Path) -> None:
    path = write(tmp_path, '[model]\nmodel = "claude-opus-4-20250514"\nsummary_model = "claude-haiku-4-5-20250929"\n')
    model = load_settings(path, environ={}).settings.model
    assert (model.model, model.summary_model) == ("claude-opus-5-5", "claude-haiku-4-5")
    other = load_settings(path, environ={"OPERATOR_MODEL__MODEL": "my-own"}).settings.model
    assert other.model == "my-own"


def test_mistakes_in_the_file(tmp_path: Path) -> None:
    path = write(tmp_path, "[model]\nmodle = 'x'\n")
    assert refused(path) == f"Unknown key 'model.modle' in {path}; perhaps 'model' is meant."
    path = write(tmp_path, "[model\n")
    assert refused(path).startswith(f"The configuration file {path} is not valid TOML: ")
    path = write(tmp_path, "[limits]\nturns = -1\n")
    assert refused(path).startswith(f"Bad value for 'limits.turns' in {path}: ")
    path = write(tmp_path, '[[subject]]\nname="a"\n[[subject]]\nname="a"\n')
    assert refused(path) == f"Bad configuration in {path}: two subjects are called 'a'; names must be unique."
    path = write(tmp_path, FULL + 'expect = "about 3"\n')
    assert "expect = 'about 3' is not a comparison" in refused(path)
    path.write_bytes(b"\xff\xfe")
    assert refused(path).startswith(f"The configuration file {path} cannot be read (")
    assert refused(tmp_path).startswith(f"The configuration file {tmp_path} cannot be read (")
    missing = tmp_path / "no.toml"
    assert refused(missing) == f"There is no configuration file {missing}; write one with `operator init`."


@pytest.mark.parametrize(
    ("text", "said"),
    [
        (
            "foo = 1",
            "Unknown key 'foo' in {}; known here: store, model, limits, sandbox, worker, tasks, incidents, "
            "claude_code, context, explore, monitor, web, approvals, notify, intake, mcp_server, credential, subject, "
            "dataverse.",
        ),
        ("[store]\nx = 1", "Unknown key 'store.x' in {}; known here: url."),
        ('[intake]\nname = "a"', "'intake' in {} is a list of tables; write its head as [[intake]]."),
        ('[[subject]]\nnam = "a"', "The key 'subject[1].name' is missing in {}."),
        ('[[subject]]\nname = "a"\nnetwrk = 1', "Unknown key 'subject[a].netwrk' in {}; perhaps 'network' is meant."),
        (
            '[[subject]]\nname = "a"\n[[subject.invariant]]\nname = "b"\nprotect = { file = ["c"] }',
            "Unknown key 'subject[a].invariant[b].protect.file' in {}; perhaps 'files' is meant.",
        ),
        (
            '[[subject]]\nname = "a"\n[[subject.invariant]]\nname = "b"\nprobe = { type = "command", comand = "c" }',
            "The key 'subject[a].invariant[b].probe.command' is missing in {}.",
        ),
        ("[[explore.blocked]]\npattrn = 'x'\nreason = 'y'",
         "The key 'explore.blocked[1].pattern' is missing in {}."),
        ("[context]\nsoft = 0.9\nhard = 0.8",
         "Bad value for 'context' in {}: soft (0.9) must be below hard (0.8)."),
        ("[[credential]]\nname = 'a'\nenv = 'A'\nfile = '/a'\nhosts = ['x']",
         "Bad value for 'credential[a]' in {}: it needs either `env` or `file`."),
        ("[[credential]]\nname = 'a'\nenv = 'A'\nhosts = ['x']\nvalue = 'Bearer'",
         "Bad value for 'credential[a]' in {}: `value` must hold `{{}}` once, where the secret goes."),
        ("[[credential]]\nname = 'a'\nenv = 'A'\nphases = ['worker']",
         "Bad value for 'credential[a]' in {}: only a secret in a `file` can be shown in `phases`."),
        ("[[credential]]\nname = 'a'\nenv = 'A'",
         "Bad value for 'credential[a]' in {}: it is of no use without `hosts` or `phases`."),
        ("[[credential]]\nname = 'a'\nenv = 'A'\nhosts = ['x']\n[[credential]]\nname = 'a'\nenv='A'\nhosts=['x']",
         "Bad configuration in {}: two credentials are called 'a'; names must be unique."),
        ("[web]\npublic_url = 'https://example.com/operator'",
         "Bad value for 'web.public_url' in {}: Operator cannot be served below the path '/operator'; give it a host "
         "name or port of its own."),
        ("[web]\npublic_url = 'operator.example.com'",
         "Bad value for 'web.public_url' in {}: it must be an address as https://operator.example.com."),
        ("[model.prices.x]\ninput = 1\noutput = 1\ncache_raed = 1",
         "Unknown key 'model.prices.x.cache_raed' in {}; perhaps 'cache_read' is meant."),
    ],
)  # fmt: skip
def test_a_mistake_is_named_as_its_writer_knows_it(tmp_path: Path, text: str, said: str) -> None:
    path = write(tmp_path, text + "\n")
    assert refused(path) == said.format(path)


def test_paths_are_relative_to_the_file_and_addresses_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = write(tmp_path, '[store]\nurl = "operator.db"\n[worker]\nstate_dir = "state"\n')
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    found = load_settings(path, environ={}).settings
    assert (found.store.url, found.worker.state_dir) == (str(tmp_path / "operator.db"), tmp_path / "state")
    assert load_settings(path, environ={"OPERATOR_STORE__URL": "here.db"}).settings.store.url == "here.db"
    for url in ("postgresql://me@db.example/x", "/var/lib/operator.db"):
        assert load_settings(write(tmp_path, f'[store]\nurl = "{url}"\n'), environ={}).settings.store.url == url


def test_mistakes_in_the_environment_are_blamed_on_it(tmp_path: Path) -> None:
    path = write(tmp_path, FULL)
    assert refused(path, {"OPERATOR_MODLE__X": "1"}) == (
        "OPERATOR_MODLE__X names no setting; the sections are store, model, limits, sandbox, worker, "
        "tasks, incidents, claude_code, context, explore, monitor, web, approvals, notify, dataverse."
    )
    text = refused(path, {"OPERATOR_LIMITS__TURNS": "many"})
    assert text.startswith("Bad value for 'limits.turns' in environment OPERATOR_LIMITS__TURNS: ")
    text = refused(path, {"OPERATOR_LIMITS__TURNZ": "1"})
    assert text == "Unknown key 'limits.turnz' in environment OPERATOR_LIMITS__TURNZ; perhaps 'turns' is meant."
    section = write(tmp_path, 'model = "claude"\n')
    assert refused(section, {"OPERATOR_MODEL__MODEL": "x"}).startswith(f"Bad value for 'model' in {section}: ")
    assert refused(section, {"ANTHROPIC_BASE_URL": "x"}).startswith(f"Bad value for 'model' in {section}: ")
