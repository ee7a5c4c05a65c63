"""A machine of the gate against the simulated account: what it waits for, and when it gives up."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import pytest

from images import spec
from images.clouds import model
from images.clouds.aws import api, machine
from images.clouds.aws.section import Machines, section_of, site_of
from images.errors import UserError
from images.settings import Settings
from tests.cloud_sim.box import Box
from tests.cloud_sim.faults import Call

REGION = "us-east-1"


def launch(box: Box, settings: Settings, tmp_path: Path, cancelled: threading.Event) -> None:
    """Boots a machine whose SSH never answers: the account's machines are a list."""
    loaded = spec.load("gpu-debian")
    context = model.Context("b-1", loaded, "amd64", settings, expires=0)
    request = model.LaunchRequest(
        name="first-gate",
        context=context,
        user="gate",
        private_key=tmp_path / "key",
        public_key="ssh-ed25519 AAAA",
        evidence=tmp_path,
        accelerator="none",
        cancelled=cancelled,
    )
    base = next(
        item["ImageId"]
        for item in api.client("ec2", REGION).describe_images(Owners=["136693071363"])["Images"]
        if item["Architecture"] == "x86_64"
    )
    with machine.launch(
        model.Image(base, REGION, "n"),
        request,
        section=section_of(loaded),
        site=site_of(settings),
        machines=Machines(types=["g6.xlarge"]),
    ):
        raise AssertionError("nobody answers there")


def test_a_machine_that_ends_is_not_waited_for(box: Box, settings: Settings, tmp_path: Path) -> None:
    def end(call: Call) -> None:
        found = api.client("ec2", REGION).describe_instances()["Reservations"]
        ids = [item["InstanceId"] for group in found for item in group["Instances"]]
        api.client("ec2", REGION).terminate_instances(InstanceIds=ids)

    box.faults.after("DescribeInstances", end)  # it runs, and we wait for its SSH
    with pytest.raises(UserError, match=r"machine first-gate: i-\w+ is (shutting-down|terminated)"):
        launch(box, settings, tmp_path, threading.Event())
    assert box.leftovers() == {}
    assert "console of i-" in (tmp_path / "serial-first-gate.log").read_text()


def test_a_gate_that_is_stopped_leaves_no_machine(box: Box, settings: Settings, tmp_path: Path) -> None:
    cancelled = threading.Event()

    def stop(_: Any) -> None:
        cancelled.set()

    box.faults.after("RunInstances", stop)
    with pytest.raises(UserError, match="the gate was stopped"):
        launch(box, settings, tmp_path, cancelled)
    assert box.leftovers() == {}


def test_what_a_machine_is_asked_for(box: Box, settings: Settings, tmp_path: Path) -> None:
    cancelled = threading.Event()
    box.faults.after("RunInstances", lambda _: cancelled.set())
    with pytest.raises(UserError):
        launch(box, settings, tmp_path, cancelled)
    (asked,) = box.faults.actions("RunInstances")
    parameters = asked.parameters
    assert parameters["MetadataOptions.HttpTokens"] == "required"
    assert parameters["InstanceInitiatedShutdownBehavior"] == "terminate"
    assert parameters["BlockDeviceMapping.1.Ebs.VolumeSize"] == "10"
    tagged = {
        parameters[name.replace("ResourceType", f"Tag.{number}.Value")]
        for name in parameters
        if name.endswith("ResourceType")
        for number in (1, 2, 3, 4)
        if parameters.get(name.replace("ResourceType", f"Tag.{number}.Key")) == "gpu-image:build-id"
    }
    assert tagged == {"b-1"}
    (rule,) = box.faults.actions("AuthorizeSecurityGroupIngress")
    assert rule.parameters["IpPermissions.1.IpRanges.1.CidrIp"] == "192.0.2.0/24"
    assert rule.parameters["IpPermissions.1.FromPort"] == rule.parameters["IpPermissions.1.ToPort"] == "22"
