"""Every registered transfer engine passes the kit."""

from __future__ import annotations

from importlib.util import find_spec

import pytest

from rlframe.host.host import current_host
from rlframe.host.packages import missing_packages
from rlframe.testing import TransferKit

KNOWN = current_host().components("transfer")
NAMES = sorted(KNOWN)
pytestmark = pytest.mark.timeout(300)


@pytest.fixture(scope="module", autouse=True)
def _ray():
    """One local Ray for all tests of this file, with room for actors of a transfer engine."""
    if find_spec("ray") is None:
        yield
        return
    from rlframe_plugins.clusters.ray.session import Session

    session = Session(logical_cpus=2)
    shared = _transferqueue()
    yield
    if shared is not None:
        shared.close()
    session.close()


def _transferqueue():
    """An engine that keeps the actors of TransferQueue for all of its tests; None without it."""
    if missing_packages(KNOWN["transferqueue"]):
        return None
    from rlframe_plugins.transfer.transferqueue import TransferQueueTransfer

    engine = TransferQueueTransfer()
    engine.start()
    return engine


def _kit(name: str, missing: list[str]) -> type[TransferKit]:
    kit = type(f"Test_{name}", (TransferKit,), {"transfer": name, "__test__": True})
    reason = f"transfer '{name}' needs {', '.join(missing)}: make test-{name}"
    return pytest.mark.skipif(bool(missing), reason=reason)(kit)


globals().update({f"Test_{name}": _kit(name, missing_packages(KNOWN[name])) for name in NAMES})


def test_first_party_transfers_are_registered():
    assert {"inline", "ray"} <= set(NAMES)
