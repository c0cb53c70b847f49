"""Ray itself: a local one that ends with the run, or a connection to one that runs already."""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import sys
import tempfile
import uuid
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from rlframe.errors import ConfigError, StuckError
from rlframe_plugins.reaper import MARK, Reaper

__all__ = ["Session", "runtime_env", "worker_environment"]

_KNOCK_S = 5.0
_LONGEST_FOLDER = 40
"""Characters; Ray puts sockets below it, whose paths may have 107."""


class Session:
    """Ray as this process uses it: started here, connected to, or already in use by the caller.

    ``logical_cpus`` is what a local one offers (0: the machine's), ``environment`` what its
    processes inherit. Raises ConfigError where there is no cluster at ``address``.
    """

    def __init__(
        self,
        address: str = "",
        logical_cpus: int = 0,
        show_output: bool = True,
        environment: Mapping[str, str] | None = None,
    ) -> None:
        import ray

        self._reaper: Reaper | None = None
        self._environment = dict(environment or {})
        self.ours = not ray.is_initialized()
        if not self.ours:
            return
        options: dict[str, Any] = {
            "log_to_driver": show_output,
            "configure_logging": False,
            "include_dashboard": False,
            "namespace": f"rlframe-{uuid.uuid4().hex}",
        }
        with _quiet():
            if address:
                _connect(address, {k: v for k, v in options.items() if k != "include_dashboard"})
            else:
                self._start(logical_cpus, options, show_output)

    def close(self) -> None:
        """Disconnect; end every process of a local Ray and remove its files."""
        import ray

        if not self.ours:
            return
        self.ours = False
        _inherited.clear()
        try:
            ray.shutdown()
        finally:
            if self._reaper is not None:
                self._reaper.finish()

    def _start(self, logical_cpus: int, options: dict[str, Any], show_output: bool) -> None:

        mark = uuid.uuid4().hex
        folder = _folder()
        self._reaper = Reaper(folder, mark)
        try:
            with _environment({MARK: mark, **self._environment}), _without_services(show_output):
                _begin(logical_cpus or os.cpu_count() or 1, folder, options)
            _inherited.update(self._environment)
        except BaseException:
            self.close()
            raise


def _begin(cpus: int, folder: Path, options: Mapping[str, Any]) -> None:
    """A local Ray. Raises StuckError where its processes do not come up in Ray's own time."""
    import ray

    try:
        ray.init(address="local", num_cpus=cpus, _temp_dir=str(folder), **options)
    except Exception as error:
        if "timed out" not in str(error):
            raise
        raise StuckError(
            f"Ray did not start on this machine in its time: {str(error).splitlines()[0]} Look "
            "for what keeps processors or memory busy, or use cluster.address of a Ray that runs"
        ) from error


def _connect(address: str, options: dict[str, Any]) -> None:
    import ray

    try:
        _knock(address)
        ray.init(address=address, **options)
    except (OSError, ValueError, RuntimeError) as error:
        first = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ConfigError(
            f"cluster.address={address}: no Ray cluster there ({first}). Start one with "
            "'ray start --head', or leave the address out for a local one"
        ) from error


def _knock(address: str) -> None:
    """Raise OSError where nobody listens at ``host:port``: Ray would try for minutes."""
    host, _, port = address.rpartition(":")
    if host and port.isdigit():
        socket.create_connection((host.strip("[]"), int(port)), timeout=_KNOCK_S).close()


def _folder() -> Path:
    base = tempfile.gettempdir()
    return Path(
        tempfile.mkdtemp(prefix="rlf-", dir=base if len(base) <= _LONGEST_FOLDER else "/tmp")
    )


_inherited: dict[str, str] = {}
"""What the processes of the local Ray that this process started have in their environment."""


def worker_environment(threads: int, *, one_node: bool) -> dict[str, str]:
    """Threads of native code, and the network of ranks that share a node.

    Idle threads wait instead of spinning: workers share the cores of a machine.
    """
    values = {"OMP_NUM_THREADS": str(threads), "OMP_WAIT_POLICY": "PASSIVE"}
    return values | ({"GLOO_SOCKET_IFNAME": "lo"} if one_node else {})


def runtime_env(environment: Mapping[str, str]) -> dict[str, Any]:
    """What Ray has to set for a worker that needs this environment; nothing it inherits anyway.

    Preparing an environment costs Ray seconds.
    """
    missing = {k: v for k, v in environment.items() if _inherited.get(k) != v}
    return {"env_vars": missing} if missing else {}


@contextlib.contextmanager
def _environment(values: Mapping[str, str]) -> Iterator[None]:
    """Variables for processes that are started meanwhile."""
    before = {name: os.environ.get(name) for name in values}
    os.environ.update(values)
    try:
        yield
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            if value is not None:
                os.environ[name] = value


@contextlib.contextmanager
def _without_services(show_output: bool) -> Iterator[None]:
    """Keep a local Ray from starting what a run does not use; ``ray.init`` has no option for it.

    The server of the dashboard runs even without that, and Ray waits for it; there are no nodes to
    ask for; logs are followed where they are shown. Each is a Python process of some seconds.
    """
    from ray._private.node import Node

    names = ["start_api_server", "start_monitor", *([] if show_output else ["start_log_monitor"])]
    before = {name: vars(Node)[name] for name in names if name in vars(Node)}
    for name in before:
        setattr(Node, name, lambda *_, **__: None)
    try:
        yield
    finally:
        for name, method in before.items():
            setattr(Node, name, method)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Keep Ray's notes about its own options from the user's terminal; errors are shown."""
    logger = logging.getLogger("ray")
    before = logger.level
    logger.setLevel(logging.ERROR)
    sys.stdout.flush()
    try:
        yield
    finally:
        logger.setLevel(before)
