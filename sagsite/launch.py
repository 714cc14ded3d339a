"""Become another program, with what has to happen between fork and exec.

Run as a script by the runner: `python -I -S launch.py PARENT SIGNAL IDENTITY PROGRAM [ARGUMENT…]`. A small
single-threaded process does this work, because a `preexec_fn` in a parent that has threads may deadlock. The file
imports nothing of ours, so that it starts in a few milliseconds.

PARENT    process id that must still be ours; if it died meanwhile, nothing is started
SIGNAL    number of the signal the program gets when its parent dies (Linux; elsewhere ignored)
IDENTITY  `same`, `namespace` (root seen as an unprivileged user by the program only) or `nobody`
"""

import ctypes
import os
import pwd
import signal
import sys

PR_SET_PDEATHSIG = 1
CLONE_NEWUSER = 0x10000000
UNPRIVILEGED = 65534


def die_with_parent(number: int = signal.SIGKILL) -> None:
    """Ask the kernel for a signal when the thread that forked this process ends."""
    if sys.platform == "linux":
        ctypes.CDLL(None, use_errno=True).prctl(PR_SET_PDEATHSIG, int(number), 0, 0, 0)


def enter_user_namespace() -> None:
    """Let the program see an unprivileged user id, while files it writes stay root's. Raises OSError if refused."""
    if sys.platform != "linux":
        raise OSError("user namespaces exist on Linux only")
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.unshare(CLONE_NEWUSER) != 0:
        raise OSError(ctypes.get_errno(), "unshare")
    for name, content in (
        ("setgroups", "deny"),
        ("uid_map", f"{UNPRIVILEGED} 0 1"),
        ("gid_map", f"{UNPRIVILEGED} 0 1"),
    ):
        with open(f"/proc/self/{name}", "w") as file:
            file.write(content)


def become_nobody() -> None:
    """Give root away for good."""
    user = pwd.getpwnam("nobody")
    os.setgroups([])
    os.setgid(user.pw_gid)
    os.setuid(user.pw_uid)


IDENTITIES = {"same": lambda: None, "namespace": enter_user_namespace, "nobody": become_nobody}


def main() -> None:
    parent, number, identity, *command = sys.argv[1:]
    IDENTITIES[identity]()
    die_with_parent(int(number))  # last, since a change of identity clears it
    if os.getppid() != int(parent):
        sys.exit(1)
    try:
        os.execv(command[0], command)  # noqa: S606  (the runner names the program)
    except OSError as error:
        sys.exit(f"{command[0]} cannot be run: {error.strerror}")


if __name__ == "__main__":
    main()
