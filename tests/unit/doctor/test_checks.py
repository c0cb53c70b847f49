"""Each check of ``rlframe doctor`` under the condition that it is there to find."""

from __future__ import annotations

import shutil
import socket
import subprocess
import sys
from collections import namedtuple
from pathlib import Path

import pytest

from rlframe.doctor import devices, machine, network, software
from rlframe.doctor.examine import CHECKS, examine, next_command
from rlframe.doctor.finding import Finding
from rlframe.doctor.site import Site
from rlframe.errors import ConfigError

Usage = namedtuple("Usage", "total used free")
GIB = 2**30


def of(check, **given):
    return list(check(Site(**given)))


def test_a_package_that_is_old_or_missing_fails_with_the_command_that_mends_it():
    wanted = ("pluggy>=999", "no-such-package-at-all>=2", "packaging>=1", "other; extra == 'x'")
    old, missing, good = of(software.packages, requirements=wanted)
    assert (old.state, old.remedy) == ("fail", "pip install 'pluggy>=999'")
    assert "which is not pluggy>=999" in old.found
    assert (missing.state, missing.found) == ("fail", "not installed")
    assert missing.remedy == "pip install 'no-such-package-at-all>=2'"
    assert (good.state, good.subject) == ("ok", "packaging")


def test_a_checkout_that_is_not_installed_is_told():
    (found,) = of(software.packages, requirements=())
    assert (found.state, found.remedy) == ("fail", "pip install -e .")


def test_a_busy_port_fails_and_a_free_one_does_not():
    with socket.create_server(("127.0.0.1", 0)) as server:
        number = server.getsockname()[1]
        loopback, busy = of(network.ports, ports=(number,))
        assert loopback.state == "ok"
        assert (busy.state, busy.subject) == ("fail", f"port {number}")
        assert f"sport = :{number}" in busy.remedy
    assert network.port("127.0.0.1", 0).state == "ok", "any port will do"


def test_an_address_of_another_machine_is_told():
    found = network.port("192.0.2.1", 8000)
    assert (found.state, found.remedy) == ("fail", "take an address of this machine: ip address")
    assert network.loopback("192.0.2.1").state == "fail"


@pytest.mark.parametrize(("free", "state"), [(0.01, "fail"), (0.5, "warn"), (2, "ok")])
def test_small_shared_memory(monkeypatch, tmp_path, free, state):
    usage = Usage(0, 0, int(free * GIB))
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: usage)
    (found,) = of(machine.shared_memory, shared=tmp_path)
    assert (found.state, found.subject) == (state, "shared memory")
    assert ("--shm-size" in found.remedy) == (state != "ok")
    assert str(tmp_path) in found.found


def test_a_machine_without_shared_memory_is_not_looked_at(tmp_path):
    assert of(machine.shared_memory, shared=tmp_path / "none") == []


def test_what_is_free_is_what_the_file_system_says(tmp_path):
    free = shutil.disk_usage(tmp_path).free / GIB
    assert machine.space("disk", tmp_path, "r", least=0, enough=0).state == "ok"
    assert machine.space("disk", tmp_path, "r", least=0, enough=free * 2).state == "warn"
    assert machine.space("disk", tmp_path, "r", least=free * 2, enough=free * 3).state == "fail"


def test_a_full_disk_and_a_folder_that_cannot_be_written(monkeypatch, tmp_path):
    (tmp_path / "file").write_text("")
    folder, room = of(machine.disk, run_dir=tmp_path / "file" / "runs")
    assert (folder.state, folder.remedy) == ("fail", "use run.dir=FOLDER")
    monkeypatch.setattr(machine.shutil, "disk_usage", lambda place: Usage(0, 0, GIB // 2))
    folder, room = of(machine.disk, run_dir=tmp_path / "deep" / "runs")
    assert folder.state == "ok"
    assert (room.state, room.found) == ("fail", f"0.5 GiB free in {tmp_path}")


@pytest.mark.parametrize(
    ("environment", "state", "remedy"),
    [
        ({}, "ok", ""),
        ({"OMP_NUM_THREADS": "4"}, "ok", ""),
        ({"OMP_NUM_THREADS": "5"}, "warn", "export OMP_NUM_THREADS=4"),
        ({"OMP_WAIT_POLICY": "active"}, "warn", "export OMP_WAIT_POLICY=PASSIVE"),
    ],
)
def test_threads(environment, state, remedy):
    (found,) = of(machine.threads, environment=environment, cores=4)
    assert (found.state, found.remedy) == (state, remedy)


class Distributed:
    """Stands for ``torch.distributed`` as a machine or build might have it."""

    HashStore = staticmethod(lambda: None)

    def __init__(self, gloo=True, nccl=True, fault=None):
        self.is_gloo_available = lambda: gloo
        self.is_nccl_available = lambda: nccl
        self.fault = fault

    def ProcessGroupGloo(self, *arguments):  # noqa: N802
        if self.fault:
            raise RuntimeError(self.fault)


def test_gloo_and_nccl_that_are_missing_or_do_not_start():
    assert devices.gloo(Distributed()).state == "ok"
    assert "torch build with gloo" in devices.gloo(Distributed(gloo=False)).remedy
    broken = devices.gloo(Distributed(fault="no address for host\nfrom somewhere"))
    assert (broken.state, broken.found) == ("warn", "no address for host")
    assert "GLOO_SOCKET_IFNAME" in broken.remedy
    assert devices.nccl(Distributed()).state == "ok"
    assert devices.nccl(Distributed(nccl=False)).state == "warn"


def test_gloo_starts_here():
    import torch.distributed as dist

    assert devices.gloo(dist).state == "ok"


def test_a_torch_that_cannot_be_imported(monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    (found,) = of(devices.devices)
    assert (found.state, found.subject) == ("fail", "torch")
    assert found.remedy.startswith("pip install")


def test_checks_are_chosen_by_name():
    assert {f.subject for f in examine(Site(), ["python"])} == {"python"}
    with pytest.raises(ConfigError, match="Did you mean 'disk'"):
        list(examine(Site(), ["disc"]))


def test_the_next_command_is_that_of_the_first_failure():
    fine = Finding("ok", "python", "3")
    bad = [Finding("fail", "a", "b", "mend it"), Finding("fail", "c", "d", "and that")]
    assert next_command([fine]) == "rlframe fit"
    assert next_command([fine], ["python"]) == "rlframe doctor"
    assert next_command([fine, *bad]) == "mend it; then rlframe doctor"


def test_torch_is_imported_by_one_check_alone():
    names = ",".join(name for name in CHECKS if name != "devices")
    code = (
        "import sys\nfrom rlframe.cli.main import main\n"
        f"assert main(['doctor', '--only', '{names}']) == 0\n"
        "assert not {'torch', 'transformers'} & set(sys.modules)"
    )
    root = Path(__file__).parents[3]
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=root, capture_output=True, text=True, timeout=100
    )
    assert done.returncode == 0, done.stderr + done.stdout
