"""A fence round a process that runs somebody else's program: no network, no other processes, no writing.

What a program makes ExecuTorch or LiteRT do is not known beforehand, so that the kernel of the machine is asked to
refuse what running a program never needs.  On Linux, on x86-64 and 64-bit Arm, without privileges:

* *processes*: seccomp refuses to start, trace or signal other processes, and what changes the modes of files;
* *network*: seccomp refuses sockets;
* *files*: Landlock (Linux 5.13) refuses to write, make, move or delete files, but for one folder.

Reading files, time and threads are not fenced.  Other systems have limits of memory and time only.

Both stay for good and hold for every thread that is started later. Landlock does not hold for other threads that are
there already: with such threads, files count as unfenced. Numbers are those of the kernel's interface
(`linux/seccomp.h`, `linux/landlock.h`, `asm/unistd.h`), which never change.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
import sys
from collections.abc import Iterator

_PR_SET_NO_NEW_PRIVS = 38

# ---------------------------------------------------------------- seccomp

_MACHINES = {"x86_64": (0, 0xC000003E, 317), "aarch64": (1, 0xC00000B7, 277)}
"""By machine: the column of the table below, the kernel's name for it, and its number of `seccomp`."""

_NETWORK = {
    "socket": (41, 198),
    "socketpair": (53, 199),
    "connect": (42, 203),
    "bind": (49, 200),
    "listen": (50, 201),
    "accept": (43, 202),
    "accept4": (288, 242),
    "io_uring_setup": (425, 425),  # which does all of these without a call
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
    # What Landlock does not know of files.
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
    """The program that the kernel runs for each call: refused ones are answered with an error."""

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
        # The library then falls back on clone, whose flags can be looked at.
        *(step(_EQUAL, _CLONE3[column], 0, 1), step(_RETURN, _REFUSE | _ENOSYS)),
    ]
    for numbers in (*_NETWORK.values(), *_PROCESSES.values()):
        if (number := numbers[column]) is not None:
            steps += [step(_EQUAL, number, 0, 1), refuse]
    # Threads, but no processes; signals to this process, as that of abort().
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
"""Writing, and removing and making each kind of file, which the first version knows."""
_LATER = ((2, 1 << 13), (3, 1 << 14), (5, 1 << 15))
"""Versions, and what they know besides: linking into other folders, cutting, control of devices."""
_IN_FOLDER = _WRITE_FILE | 1 << 4 | 1 << 5 | 1 << 7 | 1 << 8
"""What a folder may see: writing, making and removing regular files and folders; no links."""
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
    """Fences this process in, for good.

    Args:
        folder: where it may write all the same.

    Returns:
        What the kernel refuses from now on: of "network", "processes" and "files".
    """
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
