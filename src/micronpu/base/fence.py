"""Sandbox for a process that runs an untrusted program: no network, no other processes, no writing.

The effects of a program on ExecuTorch or LiteRT cannot be predicted, so the kernel refuses everything that running a
program never needs. On Linux, on x86-64 and 64-bit Arm, without privileges:

* *processes*: seccomp refuses to start, trace or signal other processes, and to change the modes of files;
* *network*: seccomp refuses sockets;
* *files*: Landlock (Linux 5.13) refuses to write, make, move or delete files outside of one folder.

Reading files, time and threads are unrestricted. Other systems only limit memory and time.

Both are permanent and apply to every thread started later. Landlock does not apply to other existing threads: if there
are any, files count as unrestricted. The numbers are from the kernel's stable interface (`linux/seccomp.h`,
`linux/landlock.h`, `asm/unistd.h`).
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

_PR_SET_NO_NEW_PRIVS = 38

# ---------------------------------------------------------------- seccomp

_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""Machine: column of the table below, the kernel's architecture number, and the number of `seccomp`."""

_NETWORK = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "io_uring_setup": (425, 425),  # which does all of these without system calls
}
_PROCESSES = {
    "execve": (59, 221),
    "execveat": (322, 281),
    "fork": (57, None),
    "vfork": (58, None),
    "kill": (62, 129),
    "tkill": (200, 130),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "chroot": (161, 51),
    "pivot_root": (155, 41),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "keyctl": (250, 219),
    # Changes of files that Landlock does not restrict.
    "chmod": (90, None),
    "fchmod": (91, 52),
    "fchmodat": (268, 53),
    "fchmodat2": (452, 452),
    "chown": (92, None),
    "fchown": (93, 55),
    "lchown": (94, None),
    "fchownat": (260, 54),
    "truncate": (76, 45),
    "setxattr": (188, 5),
    "lsetxattr": (189, 6),
    "fsetxattr": (190, 7),
    "removexattr": (197, 14),
    "lremovexattr": (198, 15),
    "fremovexattr": (199, 16),
    "utime": (132, None),
    "utimes": (235, None),
    "futimesat": (261, None),
    "utimensat": (280, 88),
}
_CLONE, _CLONE3, _TGKILL = (56, 220), (435, 435), (234, 131)
_CLONE_THREAD = 0x10000
_OTHER_ABI = 0x40000000  # x32, whose calls have other numbers
_LOAD, _EQUAL, _AT_LEAST, _HAS_BITS, _RETURN = 0x20, 0x15, 0x35, 0x45, 0x06
_NUMBER, _ARCHITECTURE, _FIRST = 0, 4, 16  # places in `seccomp_data`
_ALLOW, _KILL, _REFUSE = 0x7FFF0000, 0x80000000, 0x00050000
_EPERM, _ENOSYS = 1, 38


def _filter(column: int, architecture: int) -> bytes:
    """Return the BPF program that the kernel runs for each system call; refused calls return an error."""

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    refuse, allow = step(_RETURN, _REFUSE | _EPERM), step(_RETURN, _ALLOW)
    steps = [
        step(_LOAD, _ARCHITECTURE),
        step(_EQUAL, architecture, 1, 0),
        step(_RETURN, _KILL),
        step(_LOAD, _NUMBER),
        step(_AT_LEAST, _OTHER_ABI, 0, 1),
        refuse,
        # The C library then falls back to clone, whose flags can be checked.
        *(step(_EQUAL, _CLONE3[column], 0, 1), step(_RETURN, _REFUSE | _ENOSYS)),
    ]
    for numbers in (*_NETWORK.values(), *_PROCESSES.values()):
        if (number := numbers[column]) is not None:
            steps += [step(_EQUAL, number, 0, 1), refuse]
    # Allow threads but no processes, and signals to this process, such as those of abort().
    steps += [step(_EQUAL, _CLONE[column], 0, 4), step(_LOAD, _FIRST), step(_HAS_BITS, _CLONE_THREAD, 1, 0), refuse]
    steps += [allow]
    steps += [step(_EQUAL, _TGKILL[column], 0, 3), step(_LOAD, _FIRST), step(_EQUAL, os.getpid(), 1, 0), refuse]
    return b"".join([*steps, allow])


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("steps", ctypes.c_char_p))


def _refuse_calls(libc: ctypes.CDLL) -> bool:
    if (known := _MACHINES.get(platform.machine())) is None:
        return False
    column, architecture, number = known
    steps = _filter(column, architecture)
    program = _Program(len(steps) // 8, steps)
    return not libc.syscall(number, 1, 1, ctypes.byref(program))  # SECCOMP_SET_MODE_FILTER, with all threads


# ---------------------------------------------------------------- Landlock

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION = 1
_PATH_BENEATH = 1
_WRITE_FILE = 1 << 1
_CHANGES = _WRITE_FILE | 1 << 4 | 1 << 5 | sum(1 << bit for bit in range(6, 13))
"""Writing, and removing and creating each kind of file: rights of version 1."""
_LATER = ((2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
"""Later versions and their additional rights: linking into other folders, truncating, control of devices."""
_IN_FOLDER = _WRITE_FILE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8
"""Rights inside the folder: writing, creating and removing regular files and folders; no links."""
_TCP = 3  # binding and connecting, from version 4 on


def _refuse_writing(libc: ctypes.CDLL, folder: str | None) -> bool:
    version = libc.syscall(_CREATE_RULESET, None, 0, _VERSION)
    if version < 1:
        return False
    handled = _CHANGES | sum(bits for since, bits in _LATER if version >= since)
    attributes = struct.pack("=QQ", handled, _TCP if version >= 4 else 0)[: 16 if version >= 4 else 8]
    rules = libc.syscall(_CREATE_RULESET, attributes, len(attributes), 0)
    if rules < 0:
        return False
    try:
        for path, allowed in (("/dev/null", _WRITE_FILE), (folder, _IN_FOLDER | (handled & 1 << 14))):
            if path is not None:
                _allow(libc, rules, path, allowed)
        return not libc.syscall(_RESTRICT_SELF, rules, 0)
    finally:
        os.close(rules)


def _allow(libc: ctypes.CDLL, rules: int, path: str, allowed: int) -> None:
    place = os.open(path, os.O_PATH | os.O_CLOEXEC)
    try:
        libc.syscall(_ADD_RULE, rules, _PATH_BENEATH, struct.pack("=Qi", allowed, place), 0)
    finally:
        os.close(place)


def put_up(folder: str | None = None) -> frozenset[str]:
    """Restrict this process permanently, but for writing to a folder; return the restrictions in force: of "network",
    "processes" and "files"."""
    return frozenset(_fences(folder)) if sys.platform == "linux" else frozenset()


def _fences(folder: str | None) -> Iterator[str]:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.syscall.restype = ctypes.c_long
    if libc.prctl(_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0):
        return
    single = len(os.listdir("/proc/self/task")) == 1
    if _refuse_writing(libc, folder) and single:
        yield "files"
    if _refuse_calls(libc):
        yield from ("network", "processes")


def package_folders() -> list[str]:
    """Return package folders for a child process: those of this process, including paths added at run time.

    Excludes the current folder unless it contains this package: it may contain untrusted files.
    """
    home, here = Path(__file__).parents[2], None
    with contextlib.suppress(OSError):
        here = os.getcwd()
    return [str(home)] + [p for p in sys.path if os.path.isabs(p) and os.path.realpath(p) != here]
