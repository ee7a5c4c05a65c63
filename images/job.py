"""One build's work: base image, Packer with the roles and the gate, capture, gate on what was captured."""

from __future__ import annotations

import json
import secrets
import sys
import time
from collections.abc import Collection
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from images import (
    bundle,
    capture_gate,
    doctor,
    gate,
    lock,
    packer,
    progress,
    python_command,
    reachability,
    remote,
    render,
    sshkey,
)
from images.builds import Build
from images.capture_gate import Evidence
from images.clouds.model import Base, BuildRequest, Context, Image, LaunchRequest, Placement, Scope
from images.errors import ExitCode, UserError
from images.inputs import Inputs, Options
from images.settings import CHECKOUT, Settings

BUILD_USER = "packer"

#: Systemd services that must be active on every image.
SERVICES = ("ssh.service", "systemd-timesyncd.service", "systemd-journald.service")


@dataclass(frozen=True)
class Made:
    """What a build made and saw, ready to be published."""

    base: Base
    image: Image
    evidence: Evidence


@dataclass
class Job:
    """One running build: its stages up to the gate on the capture, in order."""

    options: Options
    settings: Settings
    inputs: Inputs
    build: Build
    stages: progress.Stages
    started: str = field(default_factory=lock.now)

    def __post_init__(self) -> None:
        """Names what the stages share."""
        loaded, the_lock = self.inputs.loaded, self.inputs.lock
        self.evidence = self.build.folder
        self.image_name = f"{loaded.spec.family}-{self.build.version}"
        self.identity = gate.Identity(
            family=loaded.spec.family,
            version=self.build.version,
            build_id=self.build.id,
            cloud=self.inputs.cloud.name,
            arch=the_lock.arch,
            lock_digest=the_lock.digest,
        )
        # Planted where a build's secrets are; must not be found on the captured disk.
        self.canary = "canary-" + secrets.token_hex(16)
        self.image: Image | None = None
        # A machine that is kept must not end itself before its time.
        hours = self.settings.build_hours + (self.settings.keep_hours if self.options.keep else 0)
        self.context = Context(
            build_id=self.build.id,
            loaded=loaded,
            arch=the_lock.arch,
            settings=self.settings,
            expires=time.time() + hours * 3600,
        )

    def run(self) -> Made:
        """All stages. Each starts only when the one before it succeeded."""
        inputs, cloud = self.inputs, self.inputs.cloud
        with self.stage("base", "base image") as stage:
            base = cloud.prepare_base(inputs.loaded, inputs.lock, settings=self.settings, note=stage.note)
            stage.outcome = base.name
        self.key = sshkey.generate(self.build.temporary, f"gpu-image-build {self.canary}")
        with self.stage("build", "Packer build: roles, reboot, gate, generalise") as stage:
            artifacts = self._packer(base, stage)
        with self.stage("capture", "capture") as stage:
            image = cloud.capture(
                artifacts, self.context, work=self.build.folder, name=self.image_name, note=stage.note
            )
            self.image = image
            stage.outcome = f"{(image.size or 0) / 1024**2:.0f} MiB" if image.size else image.id
        with self.stage("gate", "gate on machines booted from the capture") as stage:
            evidence = self._capture_gate(image, stage)
            stage.outcome = _seen(evidence)
        return Made(base, image, evidence)

    def stage(self, name: str, text: str) -> AbstractContextManager[progress.Stage]:
        """Stage ``name``, shown as ``text``; the build's state names it from now on."""
        self.build.record(stage=name)
        return self.stages.stage(name, text)

    def _packer(self, base: Base, stage: progress.Stage) -> list[str]:
        """Renders into the build's folder, runs Packer, returns its artifacts.

        Where the cloud has no capacity the next placement is tried; any other refusal ends the build.
        """
        cloud = self.inputs.cloud
        template = self.build.folder / "template"
        render.write(self.inputs.rendered, template)
        self._write_expected(disk_bytes=self.inputs.loaded.spec.disk_gib * 1024**3)
        variables = self._variables(base, template)
        self._remember_name(self.image_name)
        with cloud.build_resources(self.context, keep=self.options.keep) as resources:
            self._packer_somewhere({**variables, **resources}, template, stage)
        return packer.artifacts(self.build.folder / "packer-manifest.json")

    def _packer_somewhere(self, variables: dict[str, Any], template: Path, stage: progress.Stage) -> None:
        """Runs Packer at the first placement that has capacity."""
        cloud = self.inputs.cloud
        full: list[str] = []
        for placement in cloud.placements(self.context):
            try:
                return self._packer_at(placement, template, variables, stage)
            except packer.BuildFailed as error:
                refusal = cloud.refusal(error.log.errors)
                if refusal is None:
                    if self.options.keep and error.log.host:
                        self._write_ssh_config(error.log)
                    raise self._why(error) from None
                if refusal.kind != "capacity":
                    raise UserError(refusal.message, hint=refusal.hint, code=ExitCode.FAILED) from None
                stage.note(f"{placement.name}: {refusal.message}")
                full.append(placement.name)
        raise UserError(
            f"no capacity for a build machine: {', '.join(full)}",
            hint=f"try again later, or add types and zones to clouds.{cloud.name} of the spec",
            code=ExitCode.FAILED,
        )

    def _packer_at(
        self, placement: Placement, template: Path, variables: dict[str, Any], stage: progress.Stage
    ) -> None:
        file = self.build.folder / "runtime.pkrvars.json"
        merged = {**variables, **placement.variables}
        file.write_text(json.dumps(merged, indent=2, sort_keys=True) + "\n")
        watch = reachability.Watch(self.inputs.cloud, self.context)

        def tick() -> None:
            doctor.require_space(self.build.folder, needed=256 * 1024**2)
            watch.check()

        with watch:
            packer.build(
                template,
                variables=file,
                log=self.build.folder / "packer.log",
                temporary=self.build.temporary,
                environment={"GPU_IMAGE_CANARY": self.canary},
                keep=self.options.keep,
                on_progress=stage.note,
                on_line=progress.say if self.options.verbose else None,
                on_name=self._remember_name,
                on_tick=tick,
            )

    def _remember_name(self, name: str) -> None:
        """A name of what Packer cannot tag, or not yet: how a sweep finds it when we are killed."""
        self.build.record(names=sorted({*self.build.state.get("names", []), name}))

    def scope(self, keep: Collection[str] = ()) -> Scope:
        """What of the cloud is this build's."""
        return Scope(
            settings=self.settings,
            keep=keep,
            dead=[self.build.id],
            names=self.build.state.get("names", []),
            only=self.build.id,
        )

    def discard_in_cloud(self, keep: Collection[str] = ()) -> None:
        """Deletes what this build has in the cloud, but for the images in ``keep``."""
        for item in self.inputs.cloud.leftovers(self.scope(keep)):
            item.remove()

    def _write_ssh_config(self, said: packer.Log) -> None:
        """For `inv ssh`: how to reach the machine that stays."""
        request = self._build_request()
        remote.write_ssh_config(
            self.build.temporary / "ssh_config-build",
            host=said.host,
            port=said.port,
            user=BUILD_USER,
            key=self.key.private,
            known_hosts=request.known_hosts,
            control=self.build.temporary / "ssh-build",
            strict=self.inputs.cloud.knows_host_keys,
        )

    def _why(self, error: packer.BuildFailed) -> UserError:
        """The check or task behind a failed Packer build, instead of "exit status 1"."""
        log = self.build.folder / "packer.log"
        results = self.build.folder / "gate-build.json"
        if results.exists() and not error.log.ansible_failure:
            document = gate.read_results(results, code=1, log=self.build.folder / "gate.log")
            if bad := gate.bad_checks(document):
                return gate.GateFailed(bad, where="inside the build", evidence=results)
        message = error.message
        if error.log.ansible_failure:
            message = f"the Ansible task failed: {message}"
        return UserError(message, hint=f"Packer's output: {log}", code=ExitCode.FAILED)

    def _ansible_environment(self) -> list[str]:
        known_hosts = self._build_request().known_hosts
        found = [
            f"ANSIBLE_CONFIG={CHECKOUT / 'ansible.cfg'}",
            f"ANSIBLE_LOCAL_TEMP={self.build.temporary / 'ansible'}",
            f"ANSIBLE_SSH_CONTROL_PATH_DIR={self.build.temporary}",
        ]
        if self.inputs.cloud.knows_host_keys:
            found += [
                "ANSIBLE_HOST_KEY_CHECKING=True",
                f"ANSIBLE_SSH_COMMON_ARGS=-o UserKnownHostsFile={known_hosts} "
                "-o GlobalKnownHostsFile=/dev/null",
            ]
        return found

    def _variables(self, base: Base, template: Path) -> dict[str, Any]:
        """The template's variables; see ``clouds/variables.pkr.hcl.j2``."""
        bundle_folder = self.build.temporary / "bundle"
        bundle.write(self.inputs.bundle, bundle_folder)
        site = self.settings.site
        runtime_vars = self.build.temporary / "runtime-vars.json"
        rendered = json.loads(self.inputs.rendered["vars.json"])
        runtime_vars.write_text(
            json.dumps(
                {
                    "base_masked_units": list(gate.MASKED_UNITS),
                    "generalise_build_user": BUILD_USER,
                    "boot_checks_bundle": str(bundle_folder),
                    "boot_checks_image": self._image_json(),
                    "site_packages": [*rendered["site_packages"], *site.packages],
                    "site_roles": [str(Path(path).absolute()) for path in site.roles],
                    "site_ca_certificates": [str(Path(path).absolute()) for path in site.ca_certificates],
                    "site_apt_mirror": site.apt_mirror,
                    "site_apt_proxy": site.apt_proxy,
                    "site_keep_apt_mirror": site.keep_apt_mirror,
                }
            )
        )
        return {
            "work_directory": str(self.build.folder),
            "image_name": self.image_name,
            "build_id": self.build.id,
            "build_user": BUILD_USER,
            "private_key_file": str(self.key.private),
            "roles_directory": str(CHECKOUT / "roles"),
            "ansible_command": str(Path(sys.executable).parent / "ansible-playbook"),
            "ansible_arguments": ["-e", f"@{template / 'vars.json'}", "-e", f"@{runtime_vars}"],
            "ansible_environment": self._ansible_environment(),
            "gate_command": self._gate_command(),
            **self.inputs.cloud.packer_variables(base, self._build_request()),
        }

    def _build_request(self) -> BuildRequest:
        return BuildRequest(
            context=self.context,
            work=self.build.folder,
            temporary=self.build.temporary,
            key=self.key,
            user=BUILD_USER,
            hostname=self._hostname,
            accelerator=self.inputs.accelerator,
        )

    @property
    def record_key(self) -> tuple[str, str, str, str]:
        """Family, version, cloud and architecture: where the manifest has this build, once published."""
        identity = self.identity
        return identity.family, identity.version, identity.cloud, identity.arch

    @property
    def _hostname(self) -> str:
        """Of the build machine: unmistakable, so that it can be searched for in the image."""
        return f"build-{self.build.id[-4:]}-{self.canary[-12:]}"

    def _image_json(self) -> dict[str, Any]:
        return {
            "schema": "gpu-image/image/v1",
            **vars(self.identity),
            "bundle_digest": bundle.digest(self.inputs.bundle),
            "services": list(SERVICES),
            "driver": None,
        }

    def _gate_command(self) -> str:
        words: list[str | Path] = ["--evidence", self.evidence, "--key", self.key.private]
        words += ["--temporary", self.build.temporary, "--image", self.image_name]
        words += ["--known-host"] if self.inputs.cloud.knows_host_keys else []
        return python_command.of("images.gate", *words)

    def _write_expected(self, *, disk_bytes: int) -> dict[str, Any]:
        document = gate.expected(
            self.identity,
            self.inputs.loaded.spec,
            self.inputs.lock,
            self.inputs.bundle,
            services=SERVICES,
            build_user=BUILD_USER,
            hostname=self._hostname,
            forbidden=[self.canary, self._hostname, str(self.build.temporary)],
            disk_bytes=disk_bytes,
        )
        text = json.dumps(document, indent=2, sort_keys=True) + "\n"
        (self.evidence / "expected.json").write_text(text)
        return document

    def _capture_gate(self, image: Image, stage: progress.Stage) -> Evidence:
        request = LaunchRequest(
            name="",
            context=self.context,
            user="gate",
            private_key=self.key.private,
            public_key=self.key.public,
            evidence=self.evidence,
            accelerator=self.inputs.accelerator,
            outlive=self.options.keep,
        )
        document = json.loads((self.evidence / "expected.json").read_bytes())
        return capture_gate.run_gate(
            self.inputs.cloud,
            image,
            request=request,
            expected=document,
            needles=self._needles(),
            work=self.build.folder,
            note=stage.note,
            keep=self.build.temporary if self.options.keep else None,
        )

    def _needles(self) -> dict[str, bytes]:
        """What must not be anywhere on the captured disk, free blocks included."""
        needles = {
            "the planted secret": self.canary.encode(),
            "the build's SSH key": self.key.blob,
            "the build machine's host name": self._hostname.encode(),
            "the build's temporary folder": str(self.build.temporary).encode(),
        }
        if self.settings.site.apt_proxy:
            needles["the site's apt proxy"] = self.settings.site.apt_proxy.encode()
        return needles


def _seen(evidence: Evidence) -> str:
    """How much of the gate on the capture was really looked at."""
    results = [check["result"] for document in evidence.documents for check in document["checks"]]
    passed, not_run = results.count("pass"), results.count("not_run")
    text = f"{passed} checks passed on {len(evidence.boots)} boots and the disk"
    return f"{text}, {not_run} not run" if not_run else text
