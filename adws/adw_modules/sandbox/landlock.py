"""
The sandbox without dependencies: Landlock for files, TCP ports, signals and abstract sockets; seccomp for the rest.

Both apply permanently to the calling thread and everything it starts. So a dedicated thread confines itself, starts the
command and ends: no code runs between fork and exec, and the worker stays unconfined.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import stat
import struct
from collections.abc import Iterator
from functools import cache
from pathlib import Path

from adws.adw_modules.errors import ConfigError
from adws.adw_modules.sandbox.policy import Policy

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_VERSION_FLAG = 1
_PATH_BENEATH, _NET_PORT = 1, 2
_NO_NEW_PRIVS, _SET_SECCOMP, _FILTER = 38, 22, 2

# File rights.
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIR = 1 << 0, 1 << 1, 1 << 2, 1 << 3
_REFER, _TRUNCATE, _IOCTL_DEV = 1 << 13, 1 << 14, 1 << 15
_FIRST_RIGHTS = (1 << 13) - 1  #: those of ABI 1
_READ = _EXECUTE | _READ_FILE | _READ_DIR
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE | _IOCTL_DEV  #: what a rule for a regular file may have
_BIND, _CONNECT = 1, 2
_SCOPE_ABSTRACT, _SCOPE_SIGNAL = 1, 2


def abi() -> int:
    """Return this kernel's Landlock ABI version, or 0 if it has none."""
    if platform.system() != "Linux" or platform.machine() not in _AUDIT_ARCH:
        return 0
    version = _libc().syscall(_CREATE_RULESET, None, ctypes.c_size_t(0), ctypes.c_uint32(_VERSION_FLAG))

    return max(int(version), 0)


class LandlockSandbox:
    """A sandbox of Landlock and seccomp; implements `Sandbox`."""

    name = "landlock"
    confines_thread = True

    def __init__(self, policy: Policy, *, proxy_port: int | None = None) -> None:
        self._policy = policy
        self._ports = (*policy.local_ports, *([proxy_port] if proxy_port else ()))

    def argv(self, argv: tuple[str, ...]) -> tuple[str, ...]:
        """Return *argv* unchanged: the thread is confined, no wrapper is needed."""
        return argv

    def confine(self) -> None:
        """Confine the calling thread and everything it starts permanently; raise ConfigError if that fails."""
        version = abi()
        if version < 1:
            raise ConfigError("this kernel has no Landlock (Linux 5.13 or later, with landlock in its lsm= list)")
        files = _FIRST_RIGHTS | (_REFER if version >= 2 else 0) | (_TRUNCATE if version >= 3 else 0)
        files |= _IOCTL_DEV if version >= 5 else 0
        ports = _BIND | _CONNECT if version >= 4 else 0
        scopes = _SCOPE_ABSTRACT | _SCOPE_SIGNAL if version >= 6 else 0
        # Older kernels accept only a shorter structure.
        size = 8 if version < 4 else 16 if version < 6 else 24
        attributes = struct.pack("QQQ", files, ports, scopes)[:size]
        ruleset = _checked(_libc().syscall(_CREATE_RULESET, attributes, ctypes.c_size_t(size), 0), "make its rules")
        try:
            for path in self._policy.read:
                # Every program writes to devices and sends ioctls to them.
                rights = files & ~_REFER if path.is_relative_to("/dev") else _READ
                self._allow(ruleset, path, rights & files)
            for path in self._policy.write:
                self._allow(ruleset, path, files)
            if ports:
                for number in self._ports:
                    self._allow_port(ruleset, number, _CONNECT)
                for number in (*self._policy.bind_ports, 0):  # 0: a port chosen by the kernel, as tests use
                    self._allow_port(ruleset, number, _BIND)
            _checked(_libc().prctl(_NO_NEW_PRIVS, 1, 0, 0, 0), "give up new privileges")
            _checked(_libc().syscall(_RESTRICT_SELF, ruleset, 0), "apply its rules")
        finally:
            os.close(ruleset)
        _filter_system_calls()

    def _allow(self, ruleset: int, path: Path, rights: int) -> None:
        try:
            fd = os.open(path, os.O_PATH | os.O_CLOEXEC)
        except OSError as exc:
            if exc.errno in {errno.ENOENT, errno.EACCES, errno.ENXIO}:
                return  # gone meanwhile, or a path that this user could not open anyway
            raise
        try:
            mode = os.fstat(fd).st_mode
            allowed = rights if stat.S_ISDIR(mode) else rights & _OF_FILES
            rule = struct.pack("=Qi", allowed, fd)
            _checked(_libc().syscall(_ADD_RULE, ruleset, _PATH_BENEATH, rule, 0), f"allow {path}")
        finally:
            os.close(fd)

    def _allow_port(self, ruleset: int, port: int, right: int) -> None:
        rule = struct.pack("=QQ", right, port)
        _checked(_libc().syscall(_ADD_RULE, ruleset, _NET_PORT, rule, 0), f"allow the port {port}")


# --- seccomp ---------------------------------------------------------------------------------------------------

_AUDIT_ARCH = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
#: System calls that no sandboxed program needs, by machine: ptrace, process_vm_readv, process_vm_writev,
#: io_uring_setup, bpf, userfaultfd, add_key, request_key, keyctl, mount, umount2, pivot_root, kexec_load,
#: perf_event_open, open_by_handle_at.
_DENIED = {
    "x86_64": (101, 310, 311, 425, 321, 323, 248, 249, 250, 165, 166, 155, 246, 298, 304),
    "aarch64": (117, 270, 271, 425, 280, 282, 217, 218, 219, 40, 39, 41, 104, 241, 265),
}
_SOCKET = {"x86_64": 41, "aarch64": 198}
_IOCTL = {"x86_64": 16, "aarch64": 29}
_TIOCSTI, _TIOCLINUX = 0x5412, 0x541C  #: inject input into a terminal; root may do that to any terminal
_AF_INET, _AF_INET6, _AF_NETLINK, _AF_UNIX = 2, 10, 16, 1
_SOCK_STREAM = 1
_LD, _JEQ, _JGE, _AND, _RET = 0x20, 0x15, 0x35, 0x54, 0x06
_ALLOW, _DENY = 0x7FFF0000, 0x00050000 | errno.EPERM


def _filter_system_calls() -> None:
    """Deny datagram and raw sockets, tracing, terminal input injection and mounts to the thread and its children."""
    program = b"".join(_instructions(platform.machine()))
    code = ctypes.create_string_buffer(program, len(program))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_ushort), ("filter", ctypes.c_void_p))

    filters = Program(len(program) // 8, ctypes.addressof(code))
    _checked(_libc().prctl(_SET_SECCOMP, _FILTER, ctypes.byref(filters), 0, 0), "filter its system calls")


def _instructions(machine: str) -> Iterator[bytes]:
    """Yield the classic BPF program: system calls by number, ioctl by request, sockets by family and type."""

    def step(code: int, value: int, yes: int = 0, no: int = 0) -> bytes:
        return struct.pack("=HBBI", code, yes, no, value)

    yield step(_LD, 4)
    yield step(_JEQ, _AUDIT_ARCH[machine], 1, 0)
    yield step(_RET, _DENY)  # another instruction set numbers the same calls differently
    yield step(_LD, 0)
    yield step(_JGE, 0x40000000, 0, 1)
    yield step(_RET, _DENY)  # likewise x32
    for number in _DENIED[machine]:
        yield step(_JEQ, number, 0, 1)
        yield step(_RET, _DENY)
    yield step(_JEQ, _IOCTL[machine], 0, 5)
    yield step(_LD, 24)  # the request
    yield step(_JEQ, _TIOCSTI, 1, 0)
    yield step(_JEQ, _TIOCLINUX, 0, 1)
    yield step(_RET, _DENY)
    yield step(_RET, _ALLOW)
    yield step(_JEQ, _SOCKET[machine], 1, 0)
    yield step(_RET, _ALLOW)
    yield step(_LD, 16)  # the family
    yield step(_JEQ, _AF_UNIX, 0, 1)
    yield step(_RET, _ALLOW)
    yield step(_JEQ, _AF_NETLINK, 0, 1)  # runtimes query their own addresses
    yield step(_RET, _ALLOW)
    yield step(_JEQ, _AF_INET, 2, 0)
    yield step(_JEQ, _AF_INET6, 1, 0)
    yield step(_RET, _DENY)
    yield step(_LD, 24)  # the type
    yield step(_AND, 0xF)  # without SOCK_CLOEXEC and SOCK_NONBLOCK
    yield step(_JEQ, _SOCK_STREAM, 0, 1)
    yield step(_RET, _ALLOW)
    yield step(_RET, _DENY)


# --- libc ------------------------------------------------------------------------------------------------------


@cache
def _libc() -> ctypes.CDLL:
    return ctypes.CDLL(None, use_errno=True)


def _checked(result: int, what: str) -> int:
    if result < 0:
        number = ctypes.get_errno()
        raise ConfigError(f"the sandbox landlock cannot {what}: {os.strerror(number)}; adw doctor shows what works")

    return result
