"""A browser window for signing in on a box without a desktop of its own (``kiosk-auth-helper`` of row B-053).

One window at a time, with a profile of its own that is removed with it: what somebody signed in to there stays nowhere.
A lock file says which process it is; it is written before the browser starts, so that a helper that is killed in
between loses nothing.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from urllib.parse import urlsplit

from operator_core import clock
from operator_core.errors import ConfigError, OperatorError
from operator_core.text import first_line, printable
from operator_dataverse.machine.processes import end_family, family, pause, started_at
from operator_dataverse.machine.programs import find, small_environment

__all__ = ["BROWSERS", "AuthWindow", "Window", "checked_address"]

_VARIABLE = "OPERATOR_AUTH_WINDOW"
_SETTLE_S = 1.0
_LOOPBACK = {"localhost", "127.0.0.1", "::1"}

BROWSERS = (
    *("chromium", "chromium-browser", "google-chrome", "google-chrome-stable", "chrome", "msedge", "microsoft-edge"),
    "firefox",
)
"""Programs that are looked for, best first."""

_PLACES = {
    "win32": (
        r"%PROGRAMFILES(X86)%\Microsoft\Edge\Application\msedge.exe",
        r"%PROGRAMFILES%\Microsoft\Edge\Application\msedge.exe",
        r"%PROGRAMFILES%\Google\Chrome\Application\chrome.exe",
    ),
    "darwin": (
        "/Applications/Google Chrome.app/Contents/MacOS/Google Chrome",
        "/Applications/Microsoft Edge.app/Contents/MacOS/Microsoft Edge",
        "/Applications/Firefox.app/Contents/MacOS/firefox",
    ),
}


@dataclass(frozen=True)
class Window:
    """A window that was opened.

    Attributes:
        id: Ours; every process of the window carries it in its environment.
        pid: The browser; 0: it was about to be started.
        started: When that process began.
        program: The browser's path.
        site: What was opened, without its path: an address to sign in at is a secret.
        opened_at: ISO time.
    """

    id: str
    pid: int
    started: str
    program: str
    site: str
    opened_at: str

    @property
    def marker(self) -> str:
        """What its processes have in their environment."""
        return f"{_VARIABLE}={self.id}"


class AuthWindow:
    """The one window of this account.

    Args:
        folder: Where the lock file and the profile are (default: ``~/.operator/auth-window``).
        environ: What the browser's environment is taken from (default: this process's).
    """

    def __init__(self, folder: Path | None = None, environ: Mapping[str, str] | None = None) -> None:
        self._folder = (folder or Path("~/.operator/auth-window")).expanduser()
        self._environ = dict(os.environ if environ is None else environ)
        self.lock = self._folder / "window.json"
        self.profile = self._folder / "profile"

    def start(self, address: str, browser: str | None = None) -> Window:
        """Open it.

        Args:
            address: The page, see :func:`checked_address`.
            browser: Name or path of the program; default: the first of :data:`BROWSERS` that is installed.

        Raises:
            ConfigError: The address is none, or there is no browser.
            OperatorError: A window is open already, or the browser ended at once.
        """
        site = checked_address(address)
        program = self._program(browser)
        with self._alone():
            if (there := self._read()) is not None and self._lives(there):
                raise OperatorError(
                    f"A sign-in window is open already (process {there.pid}, {there.site}, since {there.opened_at}); "
                    "end it with `operator-dataverse auth-window stop`."
                )
            self._clear()
            self.profile.mkdir(mode=0o700)
            window = Window(clock.new_id(), 0, "", program, site, clock.iso())
            self._write(window)
            try:
                return self._open(window, address)
            except BaseException:
                end_family(0, "", window.marker, patience_s=0.0)
                self._clear()
                raise

    def stop(self) -> int:
        """Close it, with everything that the browser started, and remove its profile.

        Returns:
            How many processes that were; 0: it was closed already.
        """
        with self._alone():
            window = self._read()
            ended = 0 if window is None else end_family(window.pid, window.started, window.marker)
            self._clear()
            return ended

    def status(self) -> Window | None:
        """The window that is open; None: there is none."""
        window = self._read()
        return window if window is not None and self._lives(window) else None

    def _open(self, window: Window, address: str) -> Window:
        env = {**small_environment(self._environ), _VARIABLE: window.id}
        with tempfile.TemporaryFile() as said:
            try:
                child = subprocess.Popen(
                    _argv(window.program, self.profile, address),
                    env=env,
                    cwd=self._folder,
                    stdin=subprocess.DEVNULL,
                    stdout=subprocess.DEVNULL,
                    stderr=said,
                    # Whoever ends this command does not end the window.
                    start_new_session=True,
                    creationflags=_apart(),
                )
            except OSError as error:
                raise OperatorError(
                    f"{window.program} cannot be started ({error.strerror}); name another browser."
                ) from None
            window = replace(window, pid=child.pid, started=started_at(child.pid))
            self._write(window)
            until = clock.monotonic() + _SETTLE_S
            while clock.monotonic() < until and child.poll() is None:
                pause(0.02)
            if child.returncode is not None:
                said.seek(0)
                why = (
                    first_line(printable(said.read(1 << 14).decode(errors="replace")))
                    or f"exit code {child.returncode}"
                )
                raise OperatorError(
                    f"The browser {window.program} ended at once ({why}); it needs a screen to show on."
                )
            # It lives on without us; that is no mistake which Python has to warn of.
            child.returncode = 0
        return window

    def _program(self, browser: str | None) -> str:
        if browser is not None:
            found = find(browser, self._environ)
            if found is None:
                raise ConfigError(f"There is no program {browser!r} on this machine; name another browser.")
            return found
        for name in BROWSERS:
            if found := find(name, self._environ):
                return found
        upper = {name.upper(): value for name, value in self._environ.items()}
        for place in _PLACES.get(sys.platform, ()):
            path = Path(_filled(place, upper))
            if path.is_file():
                return str(path)
        raise ConfigError("There is no browser here; install chromium, or name one with --browser.")

    def _lives(self, window: Window) -> bool:
        if sys.platform == "win32":
            return bool(window.started) and started_at(window.pid) == window.started
        return bool(family(window.pid, window.started, window.marker))

    def _read(self) -> Window | None:
        try:
            found = json.loads(self.lock.read_text(encoding="utf-8"))
            window = Window(**found)
        except (OSError, ValueError, TypeError):
            return None
        texts = (window.id, window.started, window.program, window.site, window.opened_at)
        good = type(window.pid) is int and window.pid >= 0 and all(isinstance(text, str) for text in texts)
        # With an empty mark every process would be one of the window's.
        return window if good and window.id.isalnum() else None

    def _write(self, window: Window) -> None:
        draft = self.lock.with_suffix(".draft")
        with contextlib.suppress(FileNotFoundError):
            draft.unlink()
        with os.fdopen(os.open(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w", encoding="utf-8") as file:
            json.dump(asdict(window), file)
        draft.replace(self.lock)

    def _clear(self) -> None:
        if self.profile.is_symlink():
            self.profile.unlink()
        elif self.profile.exists():
            shutil.rmtree(self.profile)
        with contextlib.suppress(FileNotFoundError):
            self.lock.unlink()

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        """Keep other helpers out meanwhile; released by the system when this process ends, however it ends."""
        try:
            self._folder.mkdir(mode=0o700, parents=True, exist_ok=True)
            file = (self._folder / "guard").open("a+b")
        except OSError as error:
            raise OperatorError(f"{self._folder} cannot be written ({error.strerror}); correct its rights.") from None
        with file:
            if sys.platform == "win32":
                import msvcrt

                file.seek(0)
                msvcrt.locking(file.fileno(), msvcrt.LK_LOCK, 1)
            else:
                import fcntl

                fcntl.flock(file, fcntl.LOCK_EX)
            yield


def checked_address(address: str) -> str:
    """The site of a page to sign in at, e.g. ``https://login.example.com``.

    Raises:
        ConfigError: It is none that a sign-in belongs on.
    """
    try:
        parts = urlsplit(address)
        host, port = parts.hostname or "", parts.port
    except ValueError:
        host, port, parts = "", None, urlsplit("")
    plain = address.isprintable() and address.isascii() and not set(address) & set(' "<>\\^`{|}')
    if not plain or not host or parts.username is not None or parts.password is not None:
        raise ConfigError("That is no web address; give the one that the sign-in printed, such as https://….")
    if parts.scheme != "https" and not (parts.scheme == "http" and host in _LOOPBACK):
        raise ConfigError("Nobody signs in over an unprotected connection; give an address that begins with https://.")
    shown = f"[{host}]" if ":" in host else host
    return f"{parts.scheme}://{shown}" + (f":{port}" if port else "")


def _argv(program: str, profile: Path, address: str) -> list[str]:
    if "firefox" in Path(program).stem.lower():
        return [program, "--no-remote", "--profile", str(profile), "--kiosk", address]
    return [
        program,
        f"--user-data-dir={profile}",
        *("--kiosk", "--no-first-run", "--no-default-browser-check", "--disable-extensions", "--disable-sync"),
        *("--disable-background-networking", "--password-store=basic"),
        address,
    ]


def _apart() -> int:
    if sys.platform == "win32":
        return subprocess.CREATE_NEW_PROCESS_GROUP | subprocess.DETACHED_PROCESS
    return 0


def _filled(place: str, upper: Mapping[str, str]) -> str:
    head, _, rest = place.removeprefix("%").partition("%")
    return upper.get(head, "") + rest if place.startswith("%") else place
