"""A strategy for Escrow in sixty lines, and what they call: a plain directory of files, copied whole.

It prepares and undoes, so it takes part in atomic commits as the built-in strategies do.
"""

import os
import shutil
import uuid
from pathlib import Path

from escrow_plugin import Change, DiffView, Fixture, Location, NotThere, Outside, Preview, Remark, SandboxRef, Strategy


def files(root):
    """Every file below a directory, with its content."""
    found = (path for path in Path(root).rglob("*") if path.is_file())
    return {str(path.relative_to(root)): path.read_bytes() for path in found}


def inside(root, path):
    """The place of a path below a directory; links must not lead out of it."""
    place = Path(root, path)
    if not place.resolve().is_relative_to(Path(root).resolve()):
        raise Outside(path)
    return place


def put(root, path, content):
    """Puts a file in its place at once, or removes it. Called again after a crash, it leaves nothing beside it."""
    place = inside(root, path)
    new = place.with_name(f".{place.name}.part")
    if content is None:
        for one in (place, new):
            one.unlink(missing_ok=True)
        return
    place.parent.mkdir(parents=True, exist_ok=True)
    with open(new, "wb") as file:
        file.write(content)
        os.fsync(file.fileno())
    os.replace(new, place)


def changes(old, new):
    kind = lambda path: "added" if path not in old else "deleted" if path not in new else "modified"
    return [Change(path, kind(path)) for path in sorted(old | new) if old.get(path) != new.get(path)]


class PlainDirectory(Strategy):
    resource_types = ["fs-directory"]
    needs_area = True

    def create(self, plan_id, resource):
        area = Path(resource.area)
        for name in ("base", "work"):
            shutil.rmtree(area / name, ignore_errors=True)
            shutil.copytree(resource.path, area / name)
        return SandboxRef(plan_id, resource.id, "", {"original": resource.path})

    def read(self, ref, path):
        place = inside(f"{ref.area}/work", path)
        if not place.exists():
            raise NotThere(path)
        return place.read_bytes()

    def write(self, ref, path, content):
        known = inside(f"{ref.area}/work", path).exists()
        put(f"{ref.area}/work", path, content)
        return Change(path, "modified" if known else "added")

    def diff(self, ref, from_checkpoint=None, to_checkpoint=None):
        old = f"checkpoints/{from_checkpoint}" if from_checkpoint else "base"
        new = f"checkpoints/{to_checkpoint}" if to_checkpoint else "work"
        return DiffView(changes(files(Path(ref.area, old)), files(Path(ref.area, new))))

    def preview(self, ref):
        base, now = files(f"{ref.area}/base"), files(ref.metadata["original"])
        found = self.diff(ref).changes
        moved = [one.path for one in found if base.get(one.path) != now.get(one.path)]
        return Preview(found, [Remark(path, "another program changed it") for path in moved])

    def prepare(self, ref, changes, commit_area):
        original, work = files(ref.metadata["original"]), files(f"{ref.area}/work")
        for one in changes:
            for name, content in (("old", original.get(one.path)), ("new", work.get(one.path))):
                if content is not None:
                    put(f"{commit_area}/{name}", one.path, content)
        return {"paths": [one.path for one in changes]}

    def _swap(self, ref, intent, area, name):
        held = files(f"{area}/{name}")
        for path in intent["paths"]:
            put(ref.metadata["original"], path, held.get(path))

    def commit(self, ref, intent, area):
        self._swap(ref, intent, area, "new")

    def undo(self, ref, intent, area):
        self._swap(ref, intent, area, "old")

    def rollback(self, ref):
        for name in ("base", "work"):
            shutil.rmtree(f"{ref.area}/{name}", ignore_errors=True)
            shutil.copytree(ref.metadata["original"], f"{ref.area}/{name}")

    def checkpoint(self, ref):
        name = uuid.uuid4().hex
        shutil.copytree(f"{ref.area}/work", f"{ref.area}/checkpoints/{name}")
        return name

    def restore_checkpoint(self, ref, checkpoint_id):
        shutil.rmtree(f"{ref.area}/work", ignore_errors=True)
        shutil.copytree(f"{ref.area}/checkpoints/{checkpoint_id}", f"{ref.area}/work")

    def retain(self, ref, keep):
        for kept in Path(ref.area, "checkpoints").glob("*"):
            if kept.name not in keep:
                shutil.rmtree(kept)

    def cleanup(self, ref):
        pass  # everything lies in the area, which Escrow removes

    # What follows is for `escrow strategy check` only.
    def fixture(self, directory):
        original = Path(directory, "original")
        put(original, "known", b"its own\n")
        put(original, "deep/other", b"another\n")
        return Fixture("fs-directory", Location("path", str(original)), ("known", b"its own\n"), "absent")

    def fixture_contents(self, resource):
        return files(resource.path)

    def fixture_change(self, resource, path, content):
        put(resource.path, path, content)
