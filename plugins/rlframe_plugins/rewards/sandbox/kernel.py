"""Linux calls that Python 3.11 does not offer."""

from __future__ import annotations

import ctypes
import os
import platform

__all__ = [
    "MNT_DETACH",
    "MS_BIND",
    "MS_NODEV",
    "MS_NOEXEC",
    "MS_NOSUID",
    "MS_PRIVATE",
    "MS_REC",
    "NEW_IPC",
    "NEW_MOUNT",
    "NEW_NET",
    "NEW_PID",
    "NEW_USER",
    "NEW_UTS",
    "Refused",
    "drop_rights",
    "end_with_parent",
    "mount",
    "pivot_root",
    "restrict_mount",
    "syscall",
    "take_orphans",
    "unmount",
    "unshare",
]

NEW_MOUNT, NEW_UTS, NEW_IPC = 0x20000, 0x4000000, 0x8000000
NEW_USER, NEW_PID, NEW_NET = 0x10000000, 0x20000000, 0x40000000
MS_NOSUID, MS_NODEV, MS_NOEXEC, MS_BIND, MS_REC, MS_PRIVATE = 2, 4, 8, 4096, 16384, 1 << 18
MNT_DETACH = 2
_PIVOT_ROOT = {"x86_64": 155, "aarch64": 41}
_MOUNT_SETATTR = 442
_AT_RECURSIVE, _AT_FDCWD = 0x8000, -100
_PDEATHSIG, _SET_SUBREAPER, _NO_NEW_PRIVS, _BOUND_DROP = 1, 36, 38, 24
_LAST_CAPABILITY = 63


class Refused(OSError):
    """The kernel, or what surrounds this process, does not let it isolate programs."""


def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _call(name: str, *arguments: int | bytes | None) -> int:
    given = [ctypes.c_long(one) if isinstance(one, int) else one for one in arguments]
    result: int = getattr(_libc(), name)(*given)
    if result == -1:
        code = ctypes.get_errno()
        raise Refused(code, f"{name}: {os.strerror(code)}")
    return result


def syscall(number: int, *arguments: int | bytes | None) -> int:
    """A call by its number. Raises Refused."""
    return _call("syscall", number, *arguments)


def unshare(flags: int) -> None:
    """Leave namespaces. Raises Refused."""
    _call("unshare", flags)


def mount(source: str, target: str, kind: str, flags: int = 0, options: str = "") -> None:
    """See mount(2). Raises Refused naming the target."""
    try:
        _call("mount", *(os.fsencode(t) for t in (source, target, kind)), flags, options.encode())
    except Refused as error:
        raise Refused(error.errno, f"{error.strerror} ({kind or 'bind'} at {target})") from None


def unmount(target: str) -> None:
    """Detach what is mounted there. Raises Refused."""
    _call("umount2", os.fsencode(target), MNT_DETACH)


def restrict_mount(target: str, attributes: int, *, below: bool = True) -> None:
    """Add attributes (1 read-only, 2 no set-uid, 4 no devices) to a mount. Raises Refused."""
    packed = b"".join(n.to_bytes(8, "little") for n in (attributes, 0, 0, 0))
    flags = _AT_RECURSIVE if below else 0
    syscall(_MOUNT_SETATTR, _AT_FDCWD, os.fsencode(target), flags, packed, len(packed))


def pivot_root(new: str, old: str) -> None:
    """See pivot_root(2). Raises Refused."""
    number = _PIVOT_ROOT.get(platform.machine())
    if number is None:
        raise Refused(0, f"no known system calls for {platform.machine()}")
    syscall(number, os.fsencode(new), os.fsencode(old))


def end_with_parent() -> None:
    """This process is killed when its parent ends."""
    _call("prctl", _PDEATHSIG, 9, 0, 0, 0)


def take_orphans() -> None:
    """Processes below this one whose parent ends become children of this one."""
    _call("prctl", _SET_SUBREAPER, 1, 0, 0, 0)


def drop_rights() -> None:
    """No program that this process starts, whoever owns it, has any capability."""
    _call("prctl", _NO_NEW_PRIVS, 1, 0, 0, 0)
    for capability in range(_LAST_CAPABILITY + 1):
        try:
            _call("prctl", _BOUND_DROP, capability, 0, 0, 0)
        except Refused:  # not known here, or nothing to drop
            continue
