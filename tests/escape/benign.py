"""Honest work, much of it with words that frighten lists of forbidden words."""

from __future__ import annotations

from tests.escape.attack import Benign

__all__ = ["BENIGN"]

_NO_SOCKETS = ("landlock", "there is no network namespace, so no socket may be made at all")
_SHARED = ("landlock", "/dev/shm is that of all, and so it cannot be written to")

BENIGN = [
    Benign("looking for a word", "echo 'use sudo' > n.md; grep -rn sudo . | grep -c n.md", "1"),
    Benign("a warning in a text", 'echo "never run mkfs, rm -rf / or reboot" > w.md; cat w.md', "never run mkfs"),
    Benign("removing a folder of the workspace", "mkdir -p build/x; rm -rf build/; [ ! -e build ]"),
    Benign(
        "a commit",
        ("echo new > a.txt; git add a.txt; git commit -qm 'chroot the mount'", "git log --oneline"),
        "chroot",
    ),
    Benign("another branch and back", "git checkout -qb side; git checkout -q -; git branch", "side"),
    Benign("a repository of its own", "git init -q r && cd r && git config user.name x && echo hook > .git/hooks/h"),
    Benign("a file for the next command", ('echo kept > "$TMPDIR/for-later"', 'cat "$TMPDIR/for-later"'), "kept"),
    Benign("a file in the home directory", ("echo kept > ~/.profile-test", "cat ~/.profile-test"), "kept"),
    Benign("the directory of the last command", ("mkdir -p d && cd d", 'basename "$PWD"'), "d"),
    Benign("a script with a shebang", "printf '#!/bin/sh\\necho ran\\n' > s; chmod +x s; ./s", "ran"),
    Benign(
        "a link inside of the workspace", "mkdir -p x; echo in > x/f; ln -sf x y; cat y/f; ln -f x/f z; cat z", "in"
    ),
    Benign("a program in the background, and its end", "sleep 30 & kill $!; wait $!; [ $? = 143 ]"),
    Benign("a pipe with a name", "mkfifo p; echo through > p & cat p; rm p", "through"),
    Benign(
        "a socket of its own",
        "python3 -c 'import socket; s = socket.socket(1); s.bind(\"s\")'; rm s",
        not_in=_NO_SOCKETS,
    ),
    Benign(
        "a server and its client",
        "python3 - <<'END'\nimport socket, threading\ns = socket.create_server(('127.0.0.1', 0))\n"
        "threading.Thread(target=lambda: s.accept()[0].sendall(b'served')).start()\n"
        "print(socket.create_connection(s.getsockname()).recv(9).decode())\nEND",
        "served",
        _NO_SOCKETS,
    ),
    Benign(
        "processes that share memory",
        "python3 -c 'import multiprocessing as m; print(m.Queue() and m.Lock())'",
        "Lock",
        _SHARED,
    ),
    Benign("a time limit of its own", "timeout 0.1 sleep 9; [ $? = 124 ]"),
    Benign("an archive", "mkdir -p t; echo a > t/a; tar czf t.tgz t && rm -rf t && tar xzf t.tgz && cat t/a", "a"),
    Benign(
        "a database",
        'python3 -c \'import sqlite3; print(sqlite3.connect("d.db").execute("select 6*7").fetchone())\'',
        "42",
    ),
    Benign(
        "who am I", "id -un; getent passwd \"$(id -u)\"; python3 -c 'import getpass; print(getpass.getuser())'", "agent"
    ),
    Benign("random bytes and nothing", "head -c 9 /dev/urandom > /dev/null; cat < /dev/null; echo end", "end"),
    Benign("ten megabytes", "head -c 10M /dev/zero | tee big | wc -c; rm big", "10485760"),
    Benign("comparing two outputs", "diff <(echo same) <(echo same) && echo equal", "equal"),
    Benign(
        "many small programs", "for i in $(seq 60); do /bin/true; done; seq 40 | xargs -P 8 -n 1 echo | wc -l", "40"
    ),
]
