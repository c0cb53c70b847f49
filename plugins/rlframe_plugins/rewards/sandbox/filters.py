"""What a process may no longer ask of the kernel: seccomp for calls, Landlock for files.

Sources: seccomp(2), ``Documentation/userspace-api/landlock.rst`` of Linux.
"""

from __future__ import annotations

import ctypes
import os
import platform
import struct
from collections.abc import Sequence

from rlframe_plugins.rewards.sandbox.kernel import Refused, syscall

__all__ = ["allow_files", "files_can_be_refused", "refuse_calls"]

_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_SECCOMP = {"x86_64": 317, "aarch64": 277}
_NUMBERS = {
    # call: (x86_64, aarch64)
    "socket": (41, 198),
    "ptrace": (101, 117),
    "process_vm_readv": (310, 270),
    "process_vm_writev": (311, 271),
    "unshare": (272, 97),
    "setns": (308, 268),
    "mount": (165, 40),
    "umount2": (166, 39),
    "pivot_root": (155, 41),
    "chroot": (161, 51),
    "keyctl": (250, 219),
    "add_key": (248, 217),
    "request_key": (249, 218),
    "bpf": (321, 280),
    "perf_event_open": (298, 241),
    "userfaultfd": (323, 282),
    "io_uring_setup": (425, 425),
    "io_uring_enter": (426, 426),
    "io_uring_register": (427, 427),
    "memfd_create": (319, 279),
    "memfd_secret": (447, 447),
    "shmget": (29, 194),
    "msgget": (68, 186),
    "semget": (64, 190),
    "mq_open": (240, 180),
    "kexec_load": (246, 104),
    "init_module": (175, 105),
    "finit_module": (313, 273),
    "delete_module": (176, 106),
    "open_by_handle_at": (304, 265),
    "personality": (135, 92),
    "pidfd_open": (434, 434),
    "pidfd_send_signal": (424, 424),
    "pidfd_getfd": (438, 438),
    "open_tree": (428, 428),
    "move_mount": (429, 429),
    "fsopen": (430, 430),
    "fsmount": (432, 432),
    "mount_setattr": (442, 442),
    "rt_sigqueueinfo": (129, 138),
    "rt_tgsigqueueinfo": (297, 240),
    "tkill": (200, 130),
}
_KILL, _TGKILL, _CLONE, _CLONE3 = (62, 129), (234, 131), (56, 220), 435
_LOAD, _EQUAL, _SET, _AT_LEAST, _RETURN = 0x20, 0x15, 0x45, 0x35, 0x06
_ALLOW, _ERROR, _END = 0x7FFF0000, 0x00050000, 0x80000000
_EPERM, _ENOSYS = 1, 38
_NEW_NAMESPACES = 0x7E020080

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_EXECUTE, _WRITE, _READ, _READ_DIR = 1, 2, 4, 8
_TRUNCATE = 1 << 14
_FIRST_NET, _FIRST_SCOPE = 4, 6
"""Versions of Landlock that also know TCP, and signals and abstract sockets."""


def refuse_calls(*, signals: bool) -> None:
    """Refuse calls that no exercise needs: sockets, tracing, mounting, hidden memory.

    With ``signals`` a process and what it starts may send a signal to nobody but it itself. Needs
    no-new-privileges. Raises Refused.
    """
    machine = platform.machine()
    if machine not in _ARCH:
        raise Refused(0, f"no known system calls for {machine}")
    code = _program(machine, os.getpid() if signals else None)
    buffer = ctypes.create_string_buffer(b"".join(struct.pack("<HBBI", *one) for one in code))
    header = struct.pack("<HxxxxxxQ", len(code), ctypes.addressof(buffer))
    syscall(_SECCOMP[machine], 1, 0, header)


def _program(machine: str, only_pid: int | None) -> list[tuple[int, int, int, int]]:
    """Instructions of the classic BPF: (code, jump if true, if false, operand)."""
    side = 0 if machine == "x86_64" else 1
    refuse = (_RETURN, 0, 0, _ERROR | _EPERM)
    load_number = (_LOAD, 0, 0, 0)
    code = [
        (_LOAD, 0, 0, 4),
        (_EQUAL, 1, 0, _ARCH[machine]),
        (_RETURN, 0, 0, _END),
        load_number,
        (_AT_LEAST, 0, 1, 0x40000000),  # x86's third set of numbers
        refuse,
        (_EQUAL, 0, 1, _CLONE3),  # its flags are in memory: libc takes clone instead
        (_RETURN, 0, 0, _ERROR | _ENOSYS),
        (_EQUAL, 0, 4, _CLONE[side]),
        (_LOAD, 0, 0, 16),
        (_SET, 0, 1, _NEW_NAMESPACES),
        refuse,
        load_number,
    ]
    for numbers in _NUMBERS.values():
        code += [(_EQUAL, 0, 1, numbers[side]), refuse]
    if only_pid is not None:
        for numbers in (_KILL, _TGKILL):
            one = (_LOAD, 0, 0, 16), (_EQUAL, 1, 0, only_pid), refuse, load_number
            code += [(_EQUAL, 0, 4, numbers[side]), *one]
    return [*code, (_RETURN, 0, 0, _ALLOW)]


def files_can_be_refused() -> int:
    """The version of Landlock. Raises Refused where there is none."""
    return syscall(_CREATE_RULESET, None, 0, 1)


def allow_files(readable: Sequence[str], writable: Sequence[str]) -> None:
    """From now on only these folders and files, and what is below, can be opened.

    Needs no-new-privileges. Raises Refused.
    """
    version = files_can_be_refused()
    known = (1 << (13 + (version >= 2) + (version >= 3) + (version >= 5))) - 1
    net = 3 if version >= _FIRST_NET else 0
    scope = 3 if version >= _FIRST_SCOPE else 0
    rules = syscall(_CREATE_RULESET, struct.pack("<QQQ", known, net, scope), 24, 0)
    for path in readable:
        _allow(rules, path, (_EXECUTE | _READ | _READ_DIR) & known)
    for path in writable:
        _allow(rules, path, known)
    syscall(_RESTRICT_SELF, rules, 0)
    os.close(rules)


def _allow(rules: int, path: str, access: int) -> None:
    try:
        place = os.open(path, os.O_PATH)  # type: ignore[attr-defined,unused-ignore]
    except FileNotFoundError:
        return
    if not os.path.isdir(path):
        access &= _EXECUTE | _WRITE | _READ | _TRUNCATE
    syscall(_ADD_RULE, rules, 1, struct.pack("<Qi", access, place), 0)
    os.close(place)
