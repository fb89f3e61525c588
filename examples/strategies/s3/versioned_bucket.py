"""A strategy for Escrow: a bucket of S3 with versioning, or a prefix of one (`s3://bucket/prefix`).

What is written in a sandbox is staged under a key of its own in the bucket, `.escrow/PLAN/RESOURCE/…`. A state is a list of keys with their
versions, which never change: a checkpoint is a copy of that list, and costs nothing in the bucket. A commit puts each staged object in its place
with a conditional write, so that nothing another program wrote meanwhile is lost. An undo deletes the versions that the commit made, and the ones
before are the newest again.

Needs `boto3`. The credentials come from the environment: name them under `env` of the strategy. Options: `endpoint`, `region`.
"""

import functools
import json
import os
import uuid
from urllib.parse import urlparse

import boto3
from botocore.config import Config
from botocore.exceptions import ClientError

from escrow_plugin import (
    Change, Conflict, DiffView, Entry, Fixture, Location, NotThere, Preview, Probe, Refused, Remark, SandboxRef, Strategy,
    check_cancelled,
)

STAGED = ".escrow/"
LIMITS = Config(connect_timeout=5, read_timeout=60, retries={"max_attempts": 2}, s3={"addressing_style": "path"})


def load(at):
    with open(at) as file:
        return json.load(file)


def save(at, value):
    """Replaces a file as a whole, durably."""
    os.makedirs(os.path.dirname(at), exist_ok=True)
    with open(at + ".new", "w") as file:
        json.dump(value, file)
        file.flush()
        os.fsync(file.fileno())
    os.replace(at + ".new", at)


def is_absent(error):
    return error.response["Error"]["Code"] in ("404", "NoSuchKey", "NoSuchVersion", "NotFound", "405", "MethodNotAllowed")


def is_other(error):
    """Whether a condition was not met, or another write came between."""
    return error.response["Error"]["Code"] in ("PreconditionFailed", "ConditionalRequestConflict", "412", "409")


@functools.cache
def client(endpoint, region):
    return boto3.client("s3", endpoint_url=endpoint, region_name=region, config=LIMITS)


class Bucket:
    """A bucket, from a prefix on."""

    def __init__(self, where):
        self.client = client(where.get("endpoint"), where.get("region"))
        self.name, self.prefix = where["bucket"], where["prefix"]

    def call(self, method, key, **more):
        return getattr(self.client, method)(Bucket=self.name, Key=self.prefix + key, **more)

    def versions(self, below=""):
        """Every version and every delete marker below a prefix: key, version, tag, whether it is the newest, whether there is content."""
        pages = self.client.get_paginator("list_object_versions").paginate(Bucket=self.name, Prefix=self.prefix + below)
        for page in pages:
            for one in page.get("Versions", []):
                yield one["Key"][len(self.prefix):], one["VersionId"], one["ETag"], one["IsLatest"], one["Size"]
            for one in page.get("DeleteMarkers", []):
                yield one["Key"][len(self.prefix):], one["VersionId"], None, one["IsLatest"], 0

    def state(self):
        """What is in it: for each key where its content is, and its tag."""
        newest = (one for one in self.versions() if one[3] and one[2] and not one[0].startswith(STAGED))
        return {key: {"key": key, "version": version, "tag": tag, "size": size} for key, version, tag, _, size in newest}

    def content(self, held):
        return self.call("get_object", held["key"], VersionId=held["version"])["Body"].read()

    def newest(self, key):
        try:
            return self.call("head_object", key)
        except ClientError as error:
            if is_absent(error):
                return None
            raise

    def remove(self, below):
        """Removes every version below a prefix; of a bucket that does not exist there is none."""
        try:
            found = list(self.versions(below))
        except ClientError as error:
            if error.response["Error"]["Code"] != "NoSuchBucket":
                raise
            return
        for key, version, *_ in found:
            self.call("delete_object", key, VersionId=version)


def compare(old, new):
    def kind(key):
        return "added" if key not in old else "deleted" if key not in new else "modified"

    def entry(held):
        return Entry(size=held["size"]) if held else None

    differ = (key for key in sorted(old | new) if old.get(key, {}).get("tag") != new.get(key, {}).get("tag"))
    return [Change(key, kind(key), entry(old.get(key)), entry(new.get(key))) for key in differ]


class VersionedBucket(Strategy):
    resource_types = ["s3-bucket"]
    needs_area = True
    capabilities = {"checkpoints": "constant"}

    def _where(self, resource):
        url = urlparse(resource.location.value)
        if url.scheme != "s3" or not url.netloc:
            raise Refused(f"{resource.location.value} is not s3://BUCKET/PREFIX")
        options = {key: resource.options.get(key, self.options.get(key)) for key in ("endpoint", "region")}
        prefix = url.path.lstrip("/")
        return {"bucket": url.netloc, "prefix": prefix + "/" if prefix and not prefix.endswith("/") else prefix, **options}

    def _staged(self, plan_id, resource_id):
        return f"{STAGED}{plan_id}/{resource_id}/"

    def probe(self, resource):
        where = self._where(resource)
        try:
            answer = Bucket(where).client.get_bucket_versioning(Bucket=where["bucket"])
        except Exception as error:
            return Probe(False, f"the bucket cannot be reached: {error}")
        if answer.get("Status") != "Enabled":
            return Probe(False, f"the bucket {where['bucket']} has no versioning")
        return Probe(True, "the bucket keeps versions")

    def create(self, plan_id, resource):
        where = self._where(resource)
        bucket = Bucket(where)
        bucket.remove(self._staged(plan_id, resource.id))
        state = bucket.state()
        for name in ("base", "work"):
            save(f"{resource.area}/{name}.json", state)
        return SandboxRef(plan_id, resource.id, "", where)

    def read(self, ref, path):
        held = load(f"{ref.area}/work.json").get(path)
        if held is None:
            raise NotThere(path)
        return Bucket(ref.metadata).content(held)

    def write(self, ref, path, content):
        work = load(f"{ref.area}/work.json")
        kind = "modified" if path in work else "added"
        key = self._staged(ref.plan_id, ref.resource_id) + path
        put = Bucket(ref.metadata).call("put_object", key, Body=content)
        work[path] = {"key": key, "version": put["VersionId"], "tag": put["ETag"], "size": len(content)}
        save(f"{ref.area}/work.json", work)
        return Change(path, kind)

    def _states(self, ref, checkpoint_id, present):
        return load(f"{ref.area}/checkpoints/{checkpoint_id}.json")["work"] if checkpoint_id else load(f"{ref.area}/{present}.json")

    def diff(self, ref, from_checkpoint=None, to_checkpoint=None):
        return DiffView(compare(self._states(ref, from_checkpoint, "base"), self._states(ref, to_checkpoint, "work")))

    def preview(self, ref):
        base, work, now = load(f"{ref.area}/base.json"), load(f"{ref.area}/work.json"), Bucket(ref.metadata).state()
        changes = compare(base, work)
        moved = [one.path for one in changes if base.get(one.path, {}).get("version") != now.get(one.path, {}).get("version")]
        return Preview(changes, [Remark(path, "another program wrote it") for path in moved])

    def prepare(self, ref, changes, commit_area):
        work, now = load(f"{ref.area}/work.json"), Bucket(ref.metadata).state()
        paths = {one.path: {"old": now.get(one.path), "new": work.get(one.path)} for one in changes}
        save(f"{commit_area}/commit.json", paths)

    def commit(self, ref, commit_id, area):
        bucket = Bucket(ref.metadata)
        for path, held in load(f"{area}/commit.json").items():
            check_cancelled()
            old, new = held["old"], held["new"]
            condition = {"IfMatch": old["tag"]} if old else {"IfNoneMatch": "*"}
            try:
                if new is None:
                    bucket.call("delete_object", path)
                else:
                    bucket.call("put_object", path, Body=bucket.content(new), Metadata={"escrow-commit": commit_id}, **condition)
            except ClientError as error:
                # It may have been put before, by a process that never heard of it.
                if not is_other(error) or not self._is_ours(bucket.newest(path), commit_id):
                    raise Conflict(f"{path}: another program wrote it", path=path) if is_other(error) else error

    def _is_ours(self, newest, commit_id):
        return newest is not None and newest.get("Metadata", {}).get("escrow-commit") == commit_id

    def undo(self, ref, commit_id, area):
        bucket = Bucket(ref.metadata)
        for path, held in load(f"{area}/commit.json").items():
            newest = bucket.newest(path)
            if held["new"] is not None and self._is_ours(newest, commit_id):
                bucket.call("delete_object", path, VersionId=newest["VersionId"])
            elif held["new"] is None and held["old"] and newest is None:
                for key, version, tag, latest, _ in bucket.versions(path):
                    if key == path and latest and tag is None:
                        bucket.call("delete_object", path, VersionId=version)

    def check_undo(self, ref, commit_id, area):
        bucket = Bucket(ref.metadata)
        held = load(f"{area}/commit.json").items()
        lost = [path for path, one in held if one["new"] and not self._is_ours(bucket.newest(path), commit_id)]
        return [Remark(path, "another program wrote it since") for path in lost]

    def rollback(self, ref):
        state = Bucket(ref.metadata).state()
        for name in ("base", "work"):
            save(f"{ref.area}/{name}.json", state)

    def checkpoint(self, ref):
        name = uuid.uuid4().hex
        save(f"{ref.area}/checkpoints/{name}.json", {one: load(f"{ref.area}/{one}.json") for one in ("base", "work")})
        return name

    def restore_checkpoint(self, ref, checkpoint_id):
        kept = load(f"{ref.area}/checkpoints/{checkpoint_id}.json")
        for name in ("base", "work"):
            save(f"{ref.area}/{name}.json", kept[name])

    def retain(self, ref, keep):
        kept = {f"{one}.json" for one in keep}
        place = f"{ref.area}/checkpoints"
        for name in os.listdir(place) if os.path.isdir(place) else ():
            if name not in kept:
                os.remove(f"{place}/{name}")

    def cleanup(self, ref, resource):
        # One that was never finished has no metadata; the resource says where it would be.
        Bucket(ref.metadata or self._where(resource)).remove(self._staged(ref.plan_id, ref.resource_id))

    # What follows is for `escrow strategy check` only.
    def fixture(self, directory):
        name = f"fixture-{uuid.uuid4().hex}"
        bucket = Bucket({"bucket": name, "prefix": "", **self.options})
        bucket.client.create_bucket(Bucket=name)
        bucket.client.put_bucket_versioning(Bucket=name, VersioningConfiguration={"Status": "Enabled"})
        for key, content in (("known", b"its own\n"), ("deep/other", b"another\n")):
            bucket.call("put_object", key, Body=content)
        return Fixture("s3-bucket", Location("url", f"s3://{name}"), ("known", b"its own\n"), "absent")

    def fixture_contents(self, resource):
        bucket = Bucket(self._where(resource))
        return {key: bucket.content(held) for key, held in bucket.state().items()}

    def fixture_change(self, resource, path, content):
        Bucket(self._where(resource)).call("put_object", path, Body=content)
