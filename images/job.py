"""One build's work: base image, Packer with the roles and the gate, capture, gate on what was captured."""

from __future__ import annotations

import json
import secrets
import shlex
import sys
from contextlib import AbstractContextManager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from images import bundle, capture_gate, doctor, gate, lock, packer, progress, render, sshkey
from images.builds import Build
from images.capture_gate import Evidence
from images.clouds import Base, Image, LaunchRequest
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
            image = cloud.capture(artifacts, work=self.build.folder, name=self.image_name, note=stage.note)
            self.image = image
            stage.outcome = f"{(image.size or 0) / 1024**2:.0f} MiB" if image.size else image.id
        with self.stage("gate", "gate on machines booted from the capture") as stage:
            evidence = self._capture_gate(image, stage)
            checks = sum(len(document["checks"]) for document in evidence.documents)
            stage.outcome = f"{checks} checks on {len(evidence.boots)} boots and the disk"
        return Made(base, image, evidence)

    def stage(self, name: str, text: str) -> AbstractContextManager[progress.Stage]:
        """Stage ``name``, shown as ``text``; the build's state names it from now on."""
        self.build.record(stage=name)
        return self.stages.stage(name, text)

    def _packer(self, base: Base, stage: progress.Stage) -> list[str]:
        """Renders into the build's folder, runs Packer, returns its artifacts."""
        template = self.build.folder / "template"
        render.write(self.inputs.rendered, template)
        variables = self.build.folder / "runtime.pkrvars.json"
        variables.write_text(json.dumps(self._variables(base, template), indent=2, sort_keys=True) + "\n")
        self._write_expected(disk_bytes=self.inputs.loaded.spec.disk_gib * 1024**3)
        log = self.build.folder / "packer.log"
        try:
            packer.build(
                template,
                variables=variables,
                log=log,
                temporary=self.build.temporary,
                environment={"GPU_IMAGE_CANARY": self.canary},
                keep=self.options.keep,
                on_progress=stage.note,
                on_line=progress.say if self.options.verbose else None,
                on_tick=lambda: doctor.require_space(self.build.folder, needed=256 * 1024**2),
            )
        except packer.BuildFailed as error:
            if self.options.keep and error.log.host:
                self._write_ssh_config(error.log)
            raise self._why(error, log) from None
        return packer.artifacts(self.build.folder / "packer-manifest.json")

    def _write_ssh_config(self, said: packer.Log) -> None:
        """For `inv ssh`: how to reach the machine that stays."""
        gate.write_ssh_config(
            self.build.temporary / "ssh_config-build",
            host=said.host,
            port=said.port,
            user=BUILD_USER,
            key=self.key.private,
            known_hosts=self.build.temporary / "known_hosts",
            strict=False,
        )

    def _why(self, error: packer.BuildFailed, log: Path) -> UserError:
        """The check or task behind a failed Packer build, instead of "exit status 1"."""
        results = self.build.folder / "gate-build.json"
        if results.exists() and not error.log.ansible_failure:
            document = gate.read_results(results, code=1, log=self.build.folder / "gate.log")
            if bad := gate.bad_checks(document):
                return gate.GateFailed(bad, where="inside the build", evidence=results)
        message = error.message
        if error.log.ansible_failure:
            message = f"the Ansible task failed: {message}"
        return UserError(message, hint=f"Packer's output: {log}", code=ExitCode.FAILED)

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
            "ansible_environment": [
                f"ANSIBLE_CONFIG={CHECKOUT / 'ansible.cfg'}",
                f"ANSIBLE_LOCAL_TEMP={self.build.temporary / 'ansible'}",
                f"ANSIBLE_SSH_CONTROL_PATH_DIR={self.build.temporary}",
            ],
            "gate_command": self._gate_command(),
            **self.inputs.cloud.packer_variables(
                base,
                work=self.build.folder,
                temporary=self.build.temporary,
                key=self.key,
                user=BUILD_USER,
                hostname=self._hostname,
                accelerator=self.inputs.accelerator,
            ),
        }

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
        words = [sys.executable, "-m", "images.gate", "--evidence", self.evidence, "--key", self.key.private]
        words += ["--temporary", self.build.temporary, "--image", self.image_name]
        return f"cd {shlex.quote(str(CHECKOUT))} && exec " + shlex.join(map(str, words))

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
            build_id=self.build.id,
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
