"""OneDrive: which folder is found, where the session folders go, and what their addresses are."""

from __future__ import annotations

import os
from collections.abc import Mapping
from pathlib import Path, PurePath, PurePosixPath, PureWindowsPath

import pytest
from hypothesis import given
from hypothesis import strategies as st

from operator_core.config import Settings, TaskSettings
from operator_core.errors import ConfigError
from operator_dataverse.errors import OneDriveNotFound
from operator_dataverse.onedrive import (
    Mount,
    find_onedrive,
    find_session_root,
    folder_url,
    graph_create_link_url,
    graph_item_url,
    known_mounts,
    local_path_to_web_url,
    path_looks_like_file,
    session_root,
    web_url_to_local_path,
    with_session_root,
)
from operator_dataverse.onedrive.registry import WindowsHive, accounts, syncs
from operator_dataverse.onedrive.web_urls import mounts
from operator_dataverse.settings import DataverseSettings

ACCOUNTS = r"Software\Microsoft\OneDrive\Accounts"
PROVIDERS = r"Software\SyncEngines\Providers\OneDrive"
SITE = "https://example-my.sharepoint.com/personal/alice_example_com"
DRIVE = r"C:\Users\alice\OneDrive - Example Org"
TEAM = r"C:\Users\alice\Example Org\Team"
TEAM_SITE = "https://example.sharepoint.com/sites/Team/Shared%20Documents"


class Registry:
    """A registry of the shape that OneDrive writes."""

    def __init__(self, content: Mapping[str, Mapping[str, object]]) -> None:
        self.content = content

    def keys(self, path: str) -> list[str]:
        found = [key.removeprefix(path + "\\") for key in self.content if key.startswith(path + "\\")]
        return [key for key in found if "\\" not in key]

    def values(self, path: str) -> Mapping[str, object]:
        return self.content.get(path, {})


WINDOWS = Registry(
    {
        rf"{ACCOUNTS}\Personal": {"UserFolder": r"C:\Users\alice\OneDrive", "cid": "0123456789abcdef"},
        rf"{ACCOUNTS}\Business1": {
            "UserFolder": r"C:\Users\alice\OneDrive - Example Org",
            "UserEmail": "alice@example.com",
            "ServiceEndpointUri": f"{SITE}/_api",
            "Business": 1,
            "TimerAutoPause": b"\x00\x01",
        },
        rf"{PROVIDERS}\3a7c1f0e-1": {
            "MountPoint": r"C:\Users\alice\OneDrive - Example Org",
            "UrlNamespace": f"{SITE}/Documents/",
            "LibraryType": "mysite",
        },
        rf"{PROVIDERS}\Personal": {
            "MountPoint": r"C:\Users\alice\OneDrive",
            "UrlNamespace": "https://d.docs.live.net/0123456789abcdef",
            "LibraryType": "personal",
        },
        rf"{PROVIDERS}\77aa+1": {
            "MountPoint": r"C:\Users\alice\Example Org\Team - General",
            "UrlNamespace": "https://example.sharepoint.com/sites/Team/Shared Documents/",
            "LibraryType": "teamsite",
        },
        rf"{PROVIDERS}\88bb+1": {
            "MountPoint": r"C:\Users\alice\Example Org\Team - Plans",
            "UrlNamespace": "https://example.sharepoint.com/sites/Team/Shared Documents/",
            "FullRemotePath": "https://example.sharepoint.com/sites/Team/Shared Documents/Plans",
            "LibraryType": "teamsite",
        },
        rf"{PROVIDERS}\broken": {"MountPoint": 17, "LibraryType": None},
    }
)


def _registry(folder: Path, account: str = "Business1") -> Registry:
    return Registry({rf"{ACCOUNTS}\{account}": {"UserFolder": str(folder)}})


def _folder(path: Path) -> Path:
    path.mkdir(parents=True)
    return path


def _found(tmp_path: Path, environ: Mapping[str, str] | None = None, registry: Registry | None = None) -> Path:
    return find_onedrive(environ=environ or {}, home=tmp_path / "home", hive=registry or Registry({})).path


def test_each_place_is_tried_in_its_order(tmp_path: Path) -> None:
    home = _folder(tmp_path / "home")
    with pytest.raises(OneDriveNotFound, match="onedrive_dir"):
        _found(tmp_path)
    in_home = _folder(home / "OneDrive - Example Org")
    assert _found(tmp_path) == in_home
    synced = _folder(tmp_path / "synced")
    sync = Registry({rf"{PROVIDERS}\1": {"MountPoint": str(synced), "LibraryType": "mysite"}})
    assert _found(tmp_path, {}, sync) == synced
    account = _folder(tmp_path / "account")
    both = Registry({**sync.content, **_registry(account).content})
    assert _found(tmp_path, {}, both) == account
    business = _folder(tmp_path / "OneDrive - Example")
    assert _found(tmp_path, {"OneDrive": str(business)}, both) == business
    commercial = _folder(tmp_path / "commercial")
    assert _found(tmp_path, {"OneDrive": str(business), "OneDriveCommercial": str(commercial)}, both) == commercial
    override = _folder(tmp_path / "override")
    assert find_onedrive(override, environ={"OneDriveCommercial": str(commercial)}).path == override


@pytest.mark.parametrize(
    ("folders", "expected"),
    [
        (["OneDrive", "Library/CloudStorage/OneDrive-ExampleOrg"], "Library/CloudStorage/OneDrive-ExampleOrg"),
        (["OneDrive-Old", "OneDrive"], "OneDrive"),
        (["OneDrive-Old"], "OneDrive-Old"),
        (["OneDrive - B", "OneDrive - A"], "OneDrive - A"),
    ],
)
def test_in_the_home_folder_the_organisation_comes_first(tmp_path: Path, folders: list[str], expected: str) -> None:
    for name in folders:
        _folder(tmp_path / "home" / name)
    assert _found(tmp_path) == tmp_path / "home" / expected


def test_a_private_one_is_taken_only_when_asked_for(tmp_path: Path) -> None:
    private = _folder(tmp_path / "home" / "OneDrive")
    _folder(tmp_path / "home" / "Library/CloudStorage/OneDrive-Personal")
    environ = {"OneDriveConsumer": str(private), "OneDrive": str(private)}
    with pytest.raises(OneDriveNotFound):
        find_onedrive(environ=environ, home=tmp_path / "home", hive=Registry({}))
    with pytest.raises(OneDriveNotFound):
        find_onedrive(environ={}, home=tmp_path / "home", hive=_registry(private, "Personal"))
    taken = find_onedrive(include_personal=True, environ=environ, home=tmp_path / "home", hive=Registry({}))
    assert (taken.path, taken.business) == (private, False)


def test_an_organisations_one_is_taken_before_a_private_one(tmp_path: Path) -> None:
    private, business = _folder(tmp_path / "p"), _folder(tmp_path / "b")
    content = {**_registry(private, "Personal").content, **_registry(business).content}
    taken = find_onedrive(include_personal=True, environ={}, home=tmp_path / "home", hive=Registry(content))
    assert taken.path == business


def test_a_teams_library_is_nobodys_onedrive(tmp_path: Path) -> None:
    team = _folder(tmp_path / "team")
    with pytest.raises(OneDriveNotFound):
        _found(tmp_path, {}, Registry({rf"{PROVIDERS}\1": {"MountPoint": str(team), "LibraryType": "teamsite"}}))


@pytest.mark.parametrize("value", ["relative/OneDrive - X", "/does/not/exist/OneDrive - X", ""])
def test_a_variable_that_names_no_folder_is_passed_over(tmp_path: Path, value: str) -> None:
    with pytest.raises(OneDriveNotFound):
        _found(tmp_path, {"OneDriveCommercial": value, "OneDrive": value})


def test_a_folder_that_was_named_and_is_not_there_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="which is no folder"):
        find_onedrive(tmp_path / "missing", environ={"OneDriveCommercial": str(tmp_path)})


def test_the_registry_is_read_in_its_real_shape() -> None:
    assert [(account.name, account.business) for account in accounts(WINDOWS)] == [
        ("Business1", True),
        ("Personal", False),
    ]
    assert [sync.library for sync in syncs(WINDOWS)] == ["mysite", "personal", "teamsite", "teamsite"]
    assert syncs(WINDOWS)[2].url == ""
    assert accounts(Registry({})) == []


@pytest.mark.skipif(os.name == "nt", reason="there is a registry here")
def test_elsewhere_there_is_no_registry() -> None:
    assert (WindowsHive().keys("Software"), WindowsHive().values("Software")) == ([], {})


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("a/b.md", True),
        ("a/b", False),
        (".gitignore", False),
        (".config.json", True),
        ("a/b.md/", False),
        ("C:\\x\\y.txt", True),
        ("C:\\x.y\\z", False),
        ("a.", False),
        ("..", False),
        ("", False),
    ],
)
def test_a_path_looks_like_a_file_by_its_suffix(path: str, expected: bool, tmp_path: Path) -> None:
    assert path_looks_like_file(path) is expected
    assert not (tmp_path / "a").exists()


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        (DRIVE + r"\Operator Sessions\Fix_0b1c", f"{SITE}/Documents/Operator%20Sessions/Fix_0b1c"),
        (r"c:\users\ALICE\onedrive - example org\X", f"{SITE}/Documents/X"),
        (DRIVE, f"{SITE}/Documents"),
        (DRIVE + r"\50% & #1+1?.md", f"{SITE}/Documents/50%25%20%26%20%231%2B1%3F.md"),
        (r"C:\Users\alice\OneDrive\a b.md", "https://d.docs.live.net/0123456789abcdef/a%20b.md"),
        (TEAM + r" - Plans\x", f"{TEAM_SITE}/Plans/x"),
        (TEAM + r" - General\x", None),
        (r"C:\Users\alice\OneDrive - Example Org Other\x", None),
        (DRIVE + r"\..\..\bob\x", None),
        (r"D:\elsewhere", None),
        ("relative", None),
    ],
)  # fmt: skip
def test_a_windows_path_has_the_address_that_the_registry_implies(path: str, expected: str | None) -> None:
    assert local_path_to_web_url(path, mounts(WINDOWS)) == expected


def test_without_a_synchronised_folder_the_account_says_it() -> None:
    only = Registry({key: value for key, value in WINDOWS.content.items() if key.startswith(ACCOUNTS)})
    url = local_path_to_web_url(DRIVE + r"\x", mounts(only))
    assert url == f"{SITE}/Documents/x"


def test_a_file_can_be_shown_rather_than_downloaded() -> None:
    known = [Mount(PurePosixPath("/drive"), f"{SITE}/Documents")]
    assert local_path_to_web_url("/drive/a.md", known, view=True) == f"{SITE}/Documents/a.md?web=1"
    assert local_path_to_web_url("/drive/a", known, view=True) == f"{SITE}/Documents/a"


def test_the_innermost_folder_gives_the_address() -> None:
    known = [
        Mount(PurePosixPath("/drive"), "https://a.example.com/x"),
        Mount(PurePosixPath("/drive/in"), "https://b.example.com/y"),
    ]
    assert local_path_to_web_url("/drive/in/z", known) == "https://b.example.com/y/z"
    assert local_path_to_web_url("/drive/in/z", known[::-1]) == "https://b.example.com/y/z"
    assert local_path_to_web_url("/drive/inner", known) == "https://a.example.com/x/inner"


@pytest.mark.parametrize(
    ("url", "expected"),
    [
        (f"{SITE}/Documents/Operator%20Sessions/x.md?web=1", DRIVE + r"\Operator Sessions\x.md"),
        (f"{SITE.upper().replace('HTTPS', 'https')}/documents/x", DRIVE + r"\x"),
        (f"{SITE}/Documents/", DRIVE),
        (f"{TEAM_SITE}/Plans/x", TEAM + r" - Plans\x"),
        (f"{SITE}/Documents/..%2f..%2fx", None),
        (f"{SITE}/Documents/../x", None),
        (f"{SITE}/Documents/%2e%2e/x", None),
        (f"{SITE}/Documents/a%5Cb", None),
        (f"{SITE}/Documents/a%00b", None),
        (f"{SITE}/Documents/C:x", None),
        (f"{SITE}/Documents2/x", None),
        (f"{SITE.replace('https', 'http')}/Documents/x", None),
        ("https://evil.example.com/personal/alice_example_com/Documents/x", None),
        ("https://[::1", None),
        ("", None),
    ],
)  # fmt: skip
def test_an_address_has_the_path_that_it_is_a_copy_of(url: str, expected: str | None) -> None:
    found = web_url_to_local_path(url, mounts(WINDOWS))
    assert found == (None if expected is None else PureWindowsPath(expected))


NAMES = st.text(
    st.characters(exclude_categories=("Cs", "Cc"), exclude_characters='/\\:*?"<>|'), min_size=1, max_size=20
)


@given(parts=st.lists(NAMES.filter(lambda name: name not in (".", "..")), min_size=1, max_size=4))
def test_an_address_leads_back_to_its_path(parts: list[str]) -> None:
    known = [Mount(PurePosixPath("/home/alice/One Drive"), f"{SITE}/Documents")]
    path = known[0].folder.joinpath(*parts)
    url = local_path_to_web_url(path, known)
    assert url is not None
    assert url.isascii()
    assert web_url_to_local_path(url, known) == path


def test_the_addresses_of_graph() -> None:
    root = "https://graph.microsoft.com/v1.0/me/drive/root:"
    assert graph_item_url("Operator Sessions/a #1") == f"{root}/Operator%20Sessions/a%20%231:/"
    assert graph_create_link_url(PureWindowsPath(r"a\b.md")) == f"{root}/a/b.md:/createLink"
    for bad in ("", "/", "../x", "a:/children?x"):
        with pytest.raises(ValueError, match="names only"):
            graph_item_url(bad)


def _settings(mine: DataverseSettings, root: Path | None = None) -> Settings:
    return Settings(tasks=TaskSettings(root=root)).extended("dataverse", mine)


@pytest.fixture
def nowhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A machine without OneDrive."""
    monkeypatch.setenv("HOME", str(_folder(tmp_path / "empty home")))
    for name in ("OneDrive", "OneDriveCommercial", "OneDriveConsumer"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path


def test_the_session_root_is_onedrive_then_a_folder_of_this_machine(
    nowhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert find_session_root(_settings(DataverseSettings())).path is None
    tasks, work, drive = nowhere / "tasks", nowhere / "work", _folder(nowhere / "OneDrive - X")
    assert session_root(_settings(DataverseSettings(), tasks)) == tasks
    both = DataverseSettings(work_dir=work)
    assert session_root(_settings(both, tasks)) == work
    assert work.is_dir()
    monkeypatch.setenv("OneDriveCommercial", str(drive))
    chosen = find_session_root(_settings(both, tasks))
    assert (chosen.path, chosen.onedrive) == (drive, True)
    off = find_session_root(_settings(DataverseSettings(work_dir=work, onedrive=False)))
    assert (off.path, off.onedrive) == (work, False)
    assert "switched off" in off.why
    assert list(drive.iterdir()) == []


def test_the_settings_get_the_root(nowhere: Path) -> None:
    drive = _folder(nowhere / "drive")
    changed = with_session_root(_settings(DataverseSettings(onedrive_dir=drive, user="alice@example.com")))
    assert changed.tasks.root == drive
    assert changed.extension("dataverse", DataverseSettings).user == "alice@example.com"
    same = _settings(DataverseSettings())
    assert with_session_root(same) is same


def test_what_was_named_and_cannot_be_used_is_said(nowhere: Path) -> None:
    for mine in (DataverseSettings(work_dir=Path("/proc/nothing")), DataverseSettings(onedrive_dir=Path("/proc"))):
        with pytest.raises(ConfigError, match="cannot be written"):
            session_root(_settings(mine))
    with pytest.raises(ConfigError, match="no folder"):
        session_root(_settings(DataverseSettings(onedrive_dir=nowhere / "missing", work_dir=nowhere)))


def test_an_unwritable_onedrive_that_was_only_found_is_no_error(nowhere: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OneDriveCommercial", "/proc")
    chosen = find_session_root(_settings(DataverseSettings(work_dir=nowhere / "work")))
    assert chosen.path == nowhere / "work"
    assert "cannot be written" in chosen.why


def test_the_address_of_a_folder_can_be_configured(nowhere: Path) -> None:
    drive = _folder(nowhere / "One Drive")
    told = _settings(DataverseSettings(onedrive_dir=drive, onedrive_url=f"{SITE}/Documents/Shared%20X/"))
    assert folder_url(told, drive / "Operator Sessions" / "x") == f"{SITE}/Documents/Shared%20X/Operator%20Sessions/x"
    assert folder_url(told, nowhere) is None
    assert folder_url(_settings(DataverseSettings(onedrive_dir=drive)), drive) is None
    with pytest.raises(ConfigError, match="onedrive_url"):
        known_mounts(_settings(DataverseSettings(onedrive_dir=drive, onedrive_url="http://example.com/x")))
    assert known_mounts(_settings(DataverseSettings(onedrive_url=SITE))) == []


def test_a_path_without_a_utf8_form_has_an_address() -> None:
    known = [Mount(PurePosixPath("/d"), "https://example.com/x")]
    path: PurePath = PurePosixPath("/d/\udcff")
    assert local_path_to_web_url(path, known) == "https://example.com/x/%3F"
