"""A strategy for Escrow: the file system of an image of podman, by its name (`localhost/app:latest`). Works without root.

A sandbox is a container of the image, which `podman start` and `podman exec` work in as `escrow read` and `escrow write` do. A checkpoint is an image of
it. A commit makes one image more and moves the name to it, an undo moves the name back: old or new, never between.

Needs `podman`. Option: `podman`, the command as a list, with arguments such as `--root`. Without root, name `XDG_RUNTIME_DIR` under `env`.
The image before a commit has no name afterwards: `podman image prune` ends what can be undone. The settings of an image become what `podman commit` makes of them.
"""

import contextlib
import hashlib
import io
import json
import os
import subprocess
import tarfile
import uuid
from pathlib import Path

from escrow_plugin import (
    Change, Conflict, DiffView, Entry, Fixture, Gone, Location, NotAFile, NotThere, Preview, Probe, Refused, Remark,
    SandboxRef, Strategy, StrategyError,
)

TYPES = {tarfile.REGTYPE: "file", tarfile.LNKTYPE: "file", tarfile.DIRTYPE: "directory", tarfile.SYMTYPE: "symlink", tarfile.FIFOTYPE: "fifo"}


def packed(path, content, like=None):
    """A file as an archive, with the mode and the owner of another one."""
    member = tarfile.TarInfo(path)
    member.size, member.mode = len(content), like.mode & 0o777 if like else 0o644
    member.uid, member.gid = (like.uid, like.gid) if like else (0, 0)
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w") as archive:
        archive.addfile(member, io.BytesIO(content))
    return out.getvalue()


def compare(old, new):
    def kind(path):
        return "added" if path not in old else "deleted" if path not in new else "modified"

    differ = (path for path in sorted(old | new) if old.get(path) != new.get(path))
    return [Change(path, kind(path), *(side[path][0] if path in side else None for side in (old, new))) for path in differ]


def name(ref):
    """Of the container; images of the sandbox have it too, each with a tag."""
    return f"escrow-{ref.plan_id}-{ref.resource_id}".lower()


class PodmanImage(Strategy):
    resource_types = ["container-image"]
    needs_area = True

    def _command(self, *args):
        return [*self.options.get("podman", ["podman"]), *args]

    def _podman(self, *args, given=b""):
        done = subprocess.run(self._command(*args), input=given, capture_output=True)
        if done.returncode != 0:
            raise StrategyError(f"podman {args[0]}: {done.stderr.decode(errors='replace').strip()}")
        return done.stdout.decode(errors="replace").strip() if args[0] != "cp" else done.stdout

    def _has(self, image):
        return subprocess.run(self._command("image", "exists", image), stdin=subprocess.DEVNULL).returncode == 0

    def _id(self, image):
        if not self._has(image):
            raise Gone(image)
        return self._podman("image", "inspect", "--format", "{{.Id}}", image)

    def _image_of(self, container):
        return self._podman("container", "inspect", "--format", "{{.Image}}", container)

    def _contain(self, container, image):
        self._podman("create", "--replace", "--name", container, image)
        return container

    @contextlib.contextmanager
    def _exported(self, container):
        """Everything in a container, as an archive that is read once."""
        with subprocess.Popen(self._command("export", container), stdin=subprocess.DEVNULL, stdout=subprocess.PIPE) as export:
            with tarfile.open(fileobj=export.stdout, mode="r|") as archive:
                yield archive
        if export.returncode != 0:
            raise StrategyError(f"podman cannot export {container}")

    def _files(self, container):
        """What can differ of each item."""
        with self._exported(container) as archive:
            return {one.name: (
                Entry(one.size, one.mode, TYPES.get(one.type, "device"), one.linkname or None), one.uid, one.gid,
                hashlib.file_digest(archive.extractfile(one), "sha256").digest() if one.isreg() else None,
            ) for one in archive}

    def _files_of(self, ref, image):
        found = self._files(self._contain(f"{name(ref)}-look", image))
        self._podman("rm", f"{name(ref)}-look")
        return found

    def _work(self, ref):
        """The container. A write that was interrupted is done first."""
        waiting = Path(ref.area, "waiting.tar")
        if waiting.exists():
            self._podman("cp", "-", f"{name(ref)}:/", given=waiting.read_bytes())
            waiting.unlink()
        return name(ref)

    def _begin(self, ref):
        Path(ref.area, "waiting.tar").unlink(missing_ok=True)
        image = self._id(ref.metadata["image"])
        for container in (f"{name(ref)}-base", name(ref)):
            self._contain(container, image)

    def probe(self, resource):
        image = resource.location.value
        return Probe(True, "podman has the image") if self._has(image) else Probe(False, f"podman has no image {image}")

    def create(self, plan_id, resource):
        ref = SandboxRef(plan_id, resource.id, "", {"image": resource.location.value}, resource.area)
        self._begin(ref)
        return ref

    def _held(self, container, path):
        try:
            stream = self._podman("cp", f"{container}:/{path}", "-")
        except StrategyError as error:
            raise NotThere(path) if "no such file" in str(error) else error
        with tarfile.open(fileobj=io.BytesIO(stream)) as archive:
            member = archive.next()
            if not member.isreg():
                raise NotAFile(path, TYPES.get(member.type, "device"))
            return member, archive.extractfile(member).read()

    def read(self, ref, path):
        return self._held(self._work(ref), path)[1]

    def write(self, ref, path, content):
        try:
            like, _ = self._held(self._work(ref), path)
        except NotThere:
            like = None
        waiting = Path(ref.area, "waiting.tar")
        with open(f"{waiting}.new", "wb") as file:
            file.write(packed(path, content, like))
            file.flush()
            os.fsync(file.fileno())
        os.replace(f"{waiting}.new", waiting)
        self._work(ref)
        return Change(path, "modified" if like else "added")

    def diff(self, ref, from_checkpoint=None, to_checkpoint=None):
        old = self._files_of(ref, from_checkpoint) if from_checkpoint else self._files(f"{name(ref)}-base")
        return DiffView(compare(old, self._files_of(ref, to_checkpoint) if to_checkpoint else self._files(self._work(ref))))

    def _others(self, ref):
        """What another program released meanwhile."""
        now, base = self._id(ref.metadata["image"]), f"{name(ref)}-base"
        return [] if now == self._image_of(base) else compare(self._files(base), self._files_of(ref, now))

    def preview(self, ref):
        theirs = {one.path for one in self._others(ref)}
        changes = self.diff(ref).changes
        return Preview(changes, [Remark(one.path, "another program changed it") for one in changes if one.path in theirs])

    def prepare(self, ref, changes):
        old, container = self._id(ref.metadata["image"]), self._work(ref)
        if self._others(ref) or len(changes) != len(self.diff(ref).changes):
            container = self._merged(ref, old, {one.path: one.kind for one in changes})
        new = self._podman("commit", "--quiet", container, f"{name(ref)}:commit")
        os.sync()  # podman does not
        return {"old": old, "new": new}

    def _merged(self, ref, image, kinds):
        """A container of the image as it is now, with these changes."""
        if "deleted" in kinds.values():
            raise Refused("the image was changed by another program, and podman cannot delete in it")
        out = io.BytesIO()
        with self._exported(self._work(ref)) as archive, tarfile.open(fileobj=out, mode="w") as chosen:
            for one in (one for one in archive if one.name in kinds):
                chosen.addfile(one, archive.extractfile(one) if one.isreg() else None)
        container = self._contain(f"{name(ref)}-look", image)
        self._podman("cp", "-", f"{container}:/", given=out.getvalue())
        return container

    def commit(self, ref, intent):
        if self._id(ref.metadata["image"]) not in intent.values():
            raise Conflict(f"{ref.metadata['image']} has another image now")
        self._podman("tag", intent["new"], ref.metadata["image"])

    def undo(self, ref, intent):
        if self._id(ref.metadata["image"]) == intent["new"]:
            self._podman("tag", intent["old"], ref.metadata["image"])

    def check_undo(self, ref, intent):
        lost = ["the name has another image now"] * (self._id(ref.metadata["image"]) != intent["new"])
        return [Remark(".", what) for what in lost + ["the image before was removed"] * (not self._has(intent["old"]))]

    def rollback(self, ref):
        self._begin(ref)

    def checkpoint(self, ref):
        return self._podman("commit", "--quiet", self._work(ref), f"{name(ref)}:{uuid.uuid4().hex}")

    def restore_checkpoint(self, ref, checkpoint_id):
        Path(ref.area, "waiting.tar").unlink(missing_ok=True)
        self._contain(name(ref), checkpoint_id)

    def _tags(self, ref):
        listed = json.loads(self._podman("images", "--format", "json"))
        return {tag: one["Id"] for one in listed for tag in one.get("Names") or [] if tag.startswith(f"localhost/{name(ref)}:")}

    def _remove(self, tag):
        # The image goes unless it is used, and so do those that it is made of; podman fails where one of them is held.
        subprocess.run(self._command("rmi", tag), stdin=subprocess.DEVNULL, capture_output=True)
        if self._has(tag):
            raise StrategyError(f"podman cannot remove {tag}")

    def retain(self, ref, keep):
        kept = [*keep, self._image_of(name(ref))]
        for tag in (tag for tag, image in self._tags(ref).items() if image not in kept and not tag.endswith(":commit")):
            self._remove(tag)

    def cleanup(self, ref):
        self._podman("rm", "--force", "--ignore", name(ref), f"{name(ref)}-look")
        for tag in self._tags(ref):
            self._remove(tag)
        # Last: while a container holds the image before, which an undo needs, it does not go with one that was made of it.
        self._podman("rm", "--force", "--ignore", f"{name(ref)}-base")

    # What follows is for `escrow strategy check` only.
    def fixture(self, directory):
        image = f"localhost/escrow-fixture:{uuid.uuid4().hex}"
        self._podman("import", "--change", 'CMD ["sh"]', "-", image, given=packed("known", b"its own\n"))
        return Fixture("container-image", Location("opaque", image), ("known", b"its own\n"), "absent")

    def fixture_contents(self, resource):
        with self._exported(self._contain("escrow-fixture", resource.location.value)) as archive:
            return {one.name: archive.extractfile(one).read() for one in archive if one.isreg()}

    def fixture_change(self, resource, path, content):
        container = self._contain("escrow-fixture", resource.location.value)
        self._podman("cp", "-", f"{container}:/", given=packed(path, content))
        self._podman("commit", "--quiet", container, resource.location.value)
