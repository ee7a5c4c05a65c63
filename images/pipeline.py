"""The way an image takes: spec, lock, base, render, Packer build with its gate, capture, gate on machines
booted from the capture, publish.

Nothing is published before the last stage; whatever goes wrong, nothing is left running and the evidence
stays in the build's folder.
"""

from __future__ import annotations

import json
import secrets
import shlex
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from images import (
    builds,
    bundle,
    capture_gate,
    clouds,
    doctor,
    fingerprint,
    gate,
    lock,
    packer,
    progress,
    render,
    spec,
    sshkey,
    sweep,
)
from images import release as releases
from images.builds import Build
from images.capture_gate import Evidence
from images.clouds import Base, Cloud, Image, LaunchRequest
from images.errors import ExitCode, Interrupted, UserError
from images.lock import Lock
from images.settings import CHECKOUT, Settings
from images.spec import Loaded

BUILD_USER = "packer"

#: Systemd services that must be active on every image.
SERVICES = ("ssh.service", "systemd-timesyncd.service", "systemd-journald.service")


@dataclass(frozen=True)
class Options:
    """What the user asked for."""

    cloud: str
    image: str
    arch: str = "amd64"
    overrides: tuple[str, ...] = ()
    lock_file: Path | None = None
    accelerator: str | None = None
    keep: bool = False
    force: bool = False
    verbose: bool = False


@dataclass
class Inputs:
    """What a build is made from, all known before anything starts."""

    cloud: Cloud
    loaded: Loaded
    lock: Lock
    rendered: dict[str, str]
    bundle: tuple[bundle.BundleFile, ...]
    packer_version: render.Version
    accelerator: str
    digest: str


@dataclass
class Outcome:
    """What came out: shown to people by ``tasks``, printed whole with ``--json``."""

    status: str  # published, unchanged
    image: str
    version: str
    build_id: str
    release: str
    image_id: str
    image_sha256: str | None
    image_bytes: int | None
    channel: str
    serial: int
    how_to_boot: str
    not_tested: list[str]
    evidence: str
    stages: dict[str, float] = field(default_factory=dict)


def lock_for(
    cloud: Cloud, loaded: Loaded, options: Options, *, note: clouds.Note, again: bool = False
) -> Lock:
    """The lock to build from: ``--lock=FILE``, else the one of this checkout when it fits the spec, else a
    new one. A lock that ``--set`` made necessary is not written: it is this build's alone."""
    if options.lock_file:
        return lock.read(options.lock_file)
    path = lock.path_for(loaded.spec.family, cloud.name, options.arch)
    wanted = lock.inputs_digest(loaded, cloud.name, options.arch)
    if path.exists() and not again:
        found = lock.read(path)
        if found.inputs == wanted:
            return found
        note("the spec's kernel, OS or base changed: resolving again")
    resolved = cloud.resolve(loaded, options.arch, note=note)
    if not loaded.overrides:
        lock.write(resolved, path)
    return resolved


def gather(options: Options, settings: Settings, stages: progress.Stages) -> Inputs:
    """Reads and resolves everything a build depends on; starts no machine."""
    cloud = clouds.load(options.cloud)
    loaded = spec.load(options.image, overrides=options.overrides)
    loaded.section(cloud.name, cloud.section)
    if options.arch not in loaded.spec.arch:
        raise UserError(f"{loaded.spec.family} is not made for {options.arch}")
    if lines := cloud.missing_credentials():
        raise UserError("credentials are missing:\n  " + "\n  ".join(lines))
    with stages.stage("lock", "versions from the lock") as stage:
        the_lock = lock_for(cloud, loaded, options, note=stage.note)
        stage.outcome = f"kernel {the_lock.kernel.release}, resolved {the_lock.resolved}"
    if the_lock.origin == "fixture":
        raise UserError(
            "this lock is a test fixture and cannot be built from", hint="./inv lock resolves a real one"
        )
    version = packer.version()
    rendered = render.render(cloud, loaded, the_lock, packer_version=version)
    files = bundle.collect()
    digest = fingerprint.of(
        spec_digest=loaded.digest,
        lock_digest=the_lock.digest,
        rendered=rendered,
        bundle_digest=bundle.digest(files),
        base_id=cloud.base_id(loaded, the_lock),
        site=settings.site,
    )
    accelerator, why = cloud.choose_accelerator(options.accelerator)
    progress.say(f"  accelerator {why}")
    return Inputs(cloud, loaded, the_lock, rendered, files, version, accelerator, digest)


def build(options: Options, settings: Settings) -> Outcome:
    """Builds, gates and publishes one image. Raises ``UserError``; the failed stage comes first in it."""
    stages = progress.Stages()
    for line in sweep.dead(settings):
        progress.say(f"  cleaned up after a dead build: {line}")
    inputs = gather(options, settings, stages)
    if not options.force:
        published = releases.unchanged(settings, inputs)
        if published:
            return published
    doctor.require_space(settings.build_dir, settings.cache)
    with builds.new(settings.build_dir, inputs.loaded.spec.family, inputs.cloud.name) as folder:
        folder.record(arch=inputs.lock.arch, inputs_digest=inputs.digest)
        progress.say(f"build {folder.id}")
        job = Job(options, settings, inputs, folder, stages)
        try:
            return job.run()
        except (UserError, Interrupted, KeyboardInterrupt) as error:
            raise _failed(error, job) from None
        except BaseException as error:
            _failed(error, job)
            raise


def _failed(error: BaseException, job: Job) -> BaseException:
    """Cleans up after a failed build and returns the error to show."""
    options, settings, folder = job.options, job.settings, job.build
    stage = job.stages.current or "start"
    interrupted = isinstance(error, Interrupted | KeyboardInterrupt)
    kept = options.keep and not interrupted and bool(builds.processes(folder.id))
    gate.merge(folder.folder, folder.id)
    if kept:
        expires = time.time() + settings.keep_hours * 3600
        folder.record(status="kept", stage=stage, reason=str(error), expires=expires)
    else:
        builds.end_processes(folder.id)
        folder.record(status="interrupted" if interrupted else "failed", stage=stage, reason=str(error))
        _discard(job)
    if interrupted or not isinstance(error, UserError):
        return error
    hints = [error.hint] if error.hint else []
    hints.append(f"logs and evidence: {folder.folder}")
    if kept:
        hints.append(f"the machine runs for {settings.keep_hours} h: ./inv ssh {folder.id}")
    elif stage in ("build", "gate") and not options.keep:
        hints.append("--on-error=keep leaves the machine running, so that ./inv ssh can look")
    return UserError(f"{stage}: {error.message}", hint="\n       ".join(hints), code=error.code)


def _discard(job: Job) -> None:
    """Takes away disks and image of a failed build, but not an image that the manifest names by now."""
    image, folder = job.image, job.build.folder
    published: set[str] = set()
    if image and job.stages.current in ("publish", None):
        try:
            published = releases.published_images(
                job.settings, [builds.Past(folder, job.build.state, alive=True)]
            )
        except UserError:  # not to be known: then it stays
            published = {image.id}
    if image and image.id not in published:
        job.inputs.cloud.delete(image.id, image.region)
    builds.discard_disks(folder, keep=published)


@dataclass
class Job:
    """One running build: its stages in order."""

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

    def run(self) -> Outcome:
        """All stages. Each starts only when the one before it succeeded."""
        inputs, cloud = self.inputs, self.inputs.cloud
        with self._stage("base", "base image") as stage:
            base = cloud.prepare_base(inputs.loaded, inputs.lock, settings=self.settings, note=stage.note)
            stage.outcome = base.name
        self.key = sshkey.generate(self.build.temporary, f"gpu-image-build {self.canary}")
        with self._stage("build", "Packer build: roles, reboot, gate, generalise") as stage:
            artifacts = self._packer(base, stage)
        with self._stage("capture", "capture") as stage:
            image = cloud.capture(artifacts, work=self.build.folder, name=self.image_name, note=stage.note)
            self.image = image
            stage.outcome = f"{(image.size or 0) / 1024**2:.0f} MiB" if image.size else image.id
        with self._stage("gate", "gate on machines booted from the capture") as stage:
            evidence = self._capture_gate(image, stage)
            checks = sum(len(document["checks"]) for document in evidence.documents)
            stage.outcome = f"{checks} checks on {len(evidence.boots)} boots and the disk"
        with self._stage("publish", "publish to the manifest") as stage:
            outcome = releases.publish(self, base, image, evidence)
            stage.outcome = f"{outcome.channel}, serial {outcome.serial}"
        builds.discard_disks(self.build.folder, keep={image.id})
        outcome.stages = {name: round(seconds, 1) for name, seconds in self.stages.seconds.items()}
        self.build.record(status="done", release=outcome.release, stages=outcome.stages)
        return outcome

    def _stage(self, name: str, text: str) -> Any:
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


def plan(options: Options, settings: Settings) -> Sequence[str]:
    """What ``--dry`` prints: the stages and commands of a build, without starting anything."""
    cloud = clouds.load(options.cloud)
    loaded = spec.load(options.image, overrides=options.overrides)
    loaded.section(cloud.name, cloud.section)
    path = options.lock_file or lock.path_for(loaded.spec.family, cloud.name, options.arch)
    return [
        f"lock     {path if path.exists() else 'resolve the versions into ' + str(path)}",
        f"base     {settings.cache}",
        f"render   {loaded.source.name} -> {settings.build_dir}/<build-id>/template/",
        "build    packer build -machine-readable -var-file=runtime.pkrvars.json template/",
        f"capture  {settings.build_dir}/<build-id>/",
        f"gate     {', '.join(cloud.first_boots())}, reboot, the disk from outside",
        f"publish  {settings.manifest}: release, record, channel candidate",
    ]
