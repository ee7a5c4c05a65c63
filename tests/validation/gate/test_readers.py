"""The gate's readers: what real commands print, and what is wrong with it."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
from pathlib import Path

import pytest

from validation.gate import probes, readers

DEBIAN = "6.12.118+deb13-cloud-amd64"
UBUNTU = "6.8.0-79-generic"

# As grub-mkconfig 2.12 writes it on Debian 13, shortened.
GRUB_CFG = """\
if [ -s $prefix/grubenv ]; then
  set have_grubenv=true
  load_env
fi
if [ "${next_entry}" ] ; then
   set default="${next_entry}"
   set next_entry=
   save_env next_entry
   set boot_once=true
else
   set default="DEFAULT"
fi

if [ x"${feature_menuentry_id}" = xy ]; then
  menuentry_id_option="--id"
else
  menuentry_id_option=""
fi
export menuentry_id_option
function gfxmode {
\tset gfxpayload="${1}"
}
if [ "${recordfail}" = 1 ] ; then
  set timeout=0
else
  if [ x$feature_timeout_style = xy ] ; then
    set timeout_style=hidden
    set timeout=0
  else
    set timeout=0
  fi
fi
menuentry 'Debian GNU/Linux' --class debian --class os $menuentry_id_option 'gnulinux-simple-9f03' {
\tload_video
\tif [ x$grub_platform = xxen ]; then insmod xzio; insmod lzopio; fi
\tinsmod ext2
\tif [ x$feature_platform_search_hint = xy ]; then
\t  search --no-floppy --fs-uuid --set=root 9f03
\telse
\t  search --no-floppy --fs-uuid --set=root 9f03
\tfi
\techo\t'Loading Linux 6.12.118+deb13-cloud-amd64 ...'
\tlinux\t/boot/vmlinuz-6.12.118+deb13-cloud-amd64 root=UUID=9f03 ro console=ttyS0,115200
\tinitrd\t/boot/initrd.img-6.12.118+deb13-cloud-amd64
}
submenu 'Advanced options for Debian GNU/Linux' $menuentry_id_option 'gnulinux-advanced-9f03' {
\tmenuentry 'Debian GNU/Linux, with Linux 6.12.118+deb13-cloud-amd64' $menuentry_id_option 'gnulinux-c' {
\t\tlinux\t/boot/vmlinuz-6.12.118+deb13-cloud-amd64 root=UUID=9f03 ro
\t}
\tmenuentry 'Debian GNU/Linux, with Linux 6.1.0-9-amd64' $menuentry_id_option 'gnulinux-6.1.0-9-amd64' {
\t\tlinux\t/boot/vmlinuz-6.1.0-9-amd64 root=UUID=9f03 ro
\t}
}
menuentry 'UEFI Firmware Settings' $menuentry_id_option 'uefi-firmware' {
\tfwsetup
}
"""


@pytest.mark.parametrize(
    ("default", "env", "release"),
    [
        ("0", "", DEBIAN),
        ("gnulinux-simple-9f03", "", DEBIAN),
        ("1", "", DEBIAN),
        ("1>1", "", "6.1.0-9-amd64"),
        ("gnulinux-advanced-9f03>gnulinux-6.1.0-9-amd64", "", "6.1.0-9-amd64"),
        ("${saved_entry}", "# GRUB Environment Block\nsaved_entry=1>1\n####", "6.1.0-9-amd64"),
        ("${saved_entry}", "# GRUB Environment Block\n####", DEBIAN),
        ("0", "next_entry=1>1\n", "6.1.0-9-amd64"),
        ("no such entry", "", DEBIAN),
    ],
)
def test_grub_default(default: str, env: str, release: str) -> None:
    assert readers.grub_default(GRUB_CFG.replace("DEFAULT", default), env) == release


def test_grub_default_that_starts_no_kernel() -> None:
    with pytest.raises(ValueError, match="starts no kernel"):
        readers.grub_default(GRUB_CFG.replace("DEFAULT", "uefi-firmware"), "")
    with pytest.raises(ValueError, match="no menu entries"):
        readers.grub_default("", "")


def test_a_grub_cfg_written_by_hand() -> None:
    cfg = 'set timeout=0\nmenuentry "Debian" {\n\tlinux /boot/vmlinuz-6.1.0-9-amd64 root=UUID=1 ro\n}\n'
    assert readers.grub_default(cfg, "") == "6.1.0-9-amd64"
    assert readers.grub_timeouts(cfg) == [0]


def test_grub_timeouts() -> None:
    assert readers.grub_timeouts(GRUB_CFG) == [0, 0, 0]
    assert readers.grub_timeouts(GRUB_CFG.replace("set timeout=0", "set timeout=30", 1)) == [30, 0, 0]
    assert readers.grub_timeouts('set timeout="-1"\n') == [-1]


@pytest.mark.parametrize(
    ("release", "own", "clean", "foreign"),
    [
        (
            DEBIAN,
            [f"linux-image-{DEBIAN}", "linux-image-cloud-amd64"],
            [
                f"linux-headers-{DEBIAN}",
                "linux-headers-6.12.118+deb13-common",
                "linux-base",
                "linux-libc-dev",
            ],
            ["linux-image-6.12.118+deb13-amd64", "linux-image-amd64", "linux-headers-6.12.118+deb13-amd64"],
        ),
        (
            UBUNTU,
            [f"linux-image-{UBUNTU}", "linux-image-virtual"],
            [
                f"linux-modules-{UBUNTU}",
                f"linux-modules-extra-{UBUNTU}",
                "linux-headers-6.8.0-79",
                "linux-firmware",
            ],
            [
                "linux-aws",
                "linux-gcp-lts-24.04",
                "linux-image-6.8.0-80-generic",
                "linux-modules-6.8.0-79-aws",
            ],
        ),
    ],
)
def test_foreign_kernel_packages(release: str, own: list[str], clean: list[str], foreign: list[str]) -> None:
    found = readers.foreign_kernels([*own, *clean, *foreign], "", release=release, own=own)
    assert found == sorted(foreign)


def test_foreign_kernel_files() -> None:
    own = f"/lib/modules/{DEBIAN}\n/boot/vmlinuz-{DEBIAN}\n/boot/initrd.img-{DEBIAN}\n"
    assert readers.foreign_kernels([], own, release=DEBIAN, own=[]) == []
    other = "/boot/initrd.img-6.1.0-9-amd64\n/lib/modules/6.1.0-9-amd64\n"
    assert readers.foreign_kernels([], own + other, release=DEBIAN, own=[]) == other.split()


def test_packages() -> None:
    text = "adduser\t3.152\tii \nzstd\t1.5.7\thi \nold\t1\trc \nhalf\t2\tiF \ngone\t\tun \n"
    found = readers.packages(text)
    assert {name: package.installed for name, package in found.items()} == {
        "adduser": True,
        "zstd": True,
        "old": False,
        "half": False,
    }
    assert [name for name, package in found.items() if package.held] == ["zstd"]
    with pytest.raises(ValueError, match="lists no packages"):
        readers.packages("")


def test_simulated_upgrade() -> None:
    text = (
        "NOTE: This is only a simulation!\nInst base-files [13.8] (9999:1 localhost [amd64])\n"
        "Remv apparmor [4.1]\nConf base-files (9999:1 localhost [amd64])\n"
    )
    assert readers.simulated(text) == {"Inst": {"base-files"}, "Remv": {"apparmor"}}


def test_apt_config() -> None:
    text = 'APT "";\nAPT::Architecture "amd64";\nAPT::Periodic::Enable "1";\nAPT::Periodic::Enable "0";\n'
    found = readers.apt_config(text)
    assert (found["APT::Periodic::Enable"], found["APT"]) == ("0", "")


def test_units() -> None:
    text = (
        "ssh.service loaded active running OpenBSD Secure Shell server\n"
        "broken.service loaded failed failed /bin/false\ngone.service not-found inactive dead gone.service\n"
    )
    found = readers.units(text)
    assert [(unit.load, unit.active) for unit in found.values()] == [
        ("loaded", "active"),
        ("loaded", "failed"),
        ("not-found", "inactive"),
    ]
    for bad in ("", "System has not been booted with systemd as init system.\n"):
        with pytest.raises(ValueError, match=r"no units|not a line"):
            readers.units(bad)


def cloud_init_status(**final: object) -> str:
    # https://docs.cloud-init.io/en/latest/reference/cli.html: status.json of cloud-init 25.1
    stage = {"errors": [], "finished": 81.3, "recoverable_errors": {}, "start": 80.0}
    v1 = {"datasource": "DataSourceNoCloud [seed=/dev/sr0]", "init": stage, "stage": None}
    return json.dumps({"v1": {**v1, "modules-final": {**stage, **final}}})


def test_cloud_init() -> None:
    assert readers.cloud_init(cloud_init_status()) == (True, [])
    assert readers.cloud_init(cloud_init_status(finished=None)) == (False, [])
    assert readers.cloud_init(cloud_init_status(errors=["no locale"])) == (
        True,
        ["modules-final: no locale"],
    )
    warned = {"DEPRECATED": ["old key"], "WARNING": ["odd"], "ERROR": ["broke"]}
    assert readers.cloud_init(cloud_init_status(recoverable_errors=warned)) == (
        True,
        ["modules-final: broke"],
    )


def test_os_release() -> None:
    text = 'PRETTY_NAME="Debian GNU/Linux 13 (trixie)"\nID=debian\nVERSION_ID="13"\n# a comment\n'
    found = readers.os_release(text)
    assert (found["ID"], found["VERSION_ID"]) == ("debian", "13")


def test_swap_areas() -> None:
    header = "Filename\t\t\t\tType\t\tSize\t\tUsed\t\tPriority\n"
    assert readers.swap_areas(header, "# /swapfile none swap sw 0 0\nUUID=1 / ext4 rw 0 1\n") == []
    swaps = header + "/swapfile                               file\t\t1048572\t\t0\t\t-2\n"
    assert readers.swap_areas(swaps, "/dev/sdb none swap sw 0 0\n") == ["/swapfile", "/dev/sdb in fstab"]


def test_serial_consoles() -> None:
    text = (
        "tty0                 -WU (EC p  )    4:7\nttyS0                -W- (E  p a)    4:64\n"
        "ttyS1                -W- (   p a)    4:65\nttyAMA0              -W- (EC   a)  204:64\n"
    )
    assert readers.serial_consoles(text) == ["ttyS0", "ttyAMA0"]
    assert readers.serial_consoles("tty0                 -WU (EC p  )    4:7\n") == []


def test_space() -> None:
    assert readers.space("4096 1000 300\n") == (4_096_000, 1_228_800)


GIB = 1024**3
SECTORS = GIB // 512


@pytest.mark.parametrize(
    ("start", "size", "disk", "file_system", "wanted", "reason"),
    [
        (262144, 10 * SECTORS - 262144 - 34, 10 * SECTORS, int(9.6 * GIB), 10 * GIB, None),
        (0, 10 * SECTORS, 10 * SECTORS, int(9.6 * GIB), 10 * GIB, None),
        (262144, 3 * SECTORS, 10 * SECTORS, int(2.9 * GIB), 10 * GIB, "behind the root partition"),
        (
            262144,
            10 * SECTORS - 262144 - 34,
            10 * SECTORS,
            int(2.9 * GIB),
            10 * GIB,
            "the file system has 2969",
        ),
        (262144, 4 * SECTORS - 262144 - 34, 4 * SECTORS, int(3.8 * GIB), 10 * GIB, "the disk has"),
    ],
)
def test_ungrown(
    start: int, size: int, disk: int, file_system: int, wanted: int, reason: str | None
) -> None:
    found = readers.ungrown(f"start {start}\nsize {size}\ndisk {disk}\n", file_system, wanted)
    assert (found is None) if reason is None else (found is not None and reason in found)


def test_bundle_of_a_real_tree(tmp_path: Path) -> None:
    """Against an independent digest, computed as the contract of the bundle says."""
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin/run").write_text("#!/bin/sh\n")
    (tmp_path / "bin/run").chmod(0o755)
    (tmp_path / "data file").write_text("x")
    (tmp_path / "data file").chmod(0o644)
    sums = {
        "/b/bin/run": hashlib.sha256(b"#!/bin/sh\n").hexdigest(),
        "/b/data file": hashlib.sha256(b"x").hexdigest(),
    }
    text = "mode 755 /b/bin/run\nmode 644 /b/data file\n"
    text += "".join(f"{digest}  {path}\n" for path, digest in sums.items())
    found = readers.bundle(text)
    assert found == {
        "/b/bin/run": ("0755", sums["/b/bin/run"]),
        "/b/data file": ("0644", sums["/b/data file"]),
    }
    lines = f"0644 {sums['/b/data file']} /b/data file\n0755 {sums['/b/bin/run']} /b/bin/run\n"
    assert readers.bundle_digest(found) == "sha256:" + hashlib.sha256(lines.encode()).hexdigest()


def run_probes(commands: dict[str, str], monkeypatch: pytest.MonkeyPatch, deadline: int) -> bytes:
    monkeypatch.setattr(probes, "PROBES", commands)
    script = probes.script(commands, deadline=deadline)
    return subprocess.run(["sh", "-c", script], capture_output=True, check=True, timeout=60).stdout


def test_probes_run_side_by_side(monkeypatch: pytest.MonkeyPatch) -> None:
    commands = {
        "good": "echo out; echo err >&2; printf '\\377'",
        "bad": "d=/nowhere; echo why >&2; exit 3",
        "killed": "kill -9 $(exec sh -c 'echo $PPID')",
    }
    found = probes.read(run_probes(commands, monkeypatch, deadline=20))
    assert (found["good"].text, found["good"].code) == ("out\nerr\n\ufffd", 0)
    assert (found["bad"].text, found["bad"].code) == ("why\n", 3)
    assert found["killed"].code == 137
    assert all(0 <= output.seconds < 20 for output in found.values())


def test_one_probe_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    assert probes.read(run_probes({"only": "echo x"}, monkeypatch, deadline=20))["only"].text == "x\n"


def test_a_hung_probe_is_left_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    commands = {"good": "echo out", "hung": f"echo begun; read line <{fifo}"}
    found = probes.read(run_probes(commands, monkeypatch, deadline=-9))
    fifo.open("w").close()  # lets it end
    assert (found["good"].text, found["good"].code) == ("out\n", 0)
    assert (found["hung"].text, found["hung"].code) == ("begun\n", None)


def test_a_connection_that_broke_leaves_answers_out(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = run_probes({"a": "echo a", "b": "echo b"}, monkeypatch, deadline=20)
    assert set(probes.read(whole)) == {"a", "b"}
    assert all(set(probes.read(whole[:size])) <= {"a", "b"} for size in range(0, len(whole), 100))
    cut = [probes.read(whole[:size]) for size in range(0, len(whole), 100)]
    assert all(found.code in (0, None) for outputs in cut for found in outputs.values())
    assert probes.read(b"") == {}
