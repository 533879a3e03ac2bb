"""A real S3 server (S3Proxy over a folder) that checks signatures and conditional writes."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import hmac
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from tests.servers.process import answers, free_port, running

from thermocline.engine import jars, java

PACKAGE = "org.gaul:s3proxy:4.1.0:jar-with-dependencies"
BUCKET = "lake"
ACCESS_KEY = "lake-user"
SECRET_KEY = "lake+secret/with=signs"  # as real ones have; encoding them wrongly is a common fault
REGION = "us-east-1"


@dataclass(frozen=True)
class S3:
    """A running server with its credentials. `folder` has a folder for each bucket."""

    endpoint: str
    folder: Path
    pid: int
    bucket: str = BUCKET
    region: str = REGION
    access_key: str = ACCESS_KEY
    secret_key: str = SECRET_KEY

    def as_user(self, access_key: str, secret_key: str) -> S3:
        """Return the same server with other credentials."""
        return replace(self, access_key=access_key, secret_key=secret_key)

    def put(self, key: str, body: bytes, **headers: str) -> int:
        """Write an object of the bucket and return the HTTP status."""
        return self._request("PUT", key, body, headers)[0]

    def get(self, key: str) -> bytes:
        """Return the content of an object of the bucket."""
        status, body = self._request("GET", key)
        if status != 200:
            raise FileNotFoundError(f"{key}: {status}")
        return body

    def create_bucket(self, name: str) -> None:
        status, body = replace(self, bucket=name)._request("PUT", "")
        if status != 200:
            raise RuntimeError(body.decode())

    def _request(
        self, method: str, key: str, body: bytes = b"", headers: Mapping[str, str] | None = None
    ) -> tuple[int, bytes]:
        """Send one request with an AWS version 4 signature."""
        path = urllib.parse.quote(f"/{self.bucket}/{key}" if key else f"/{self.bucket}")
        # Without a type urllib calls it a form, and the server then reads the body as one.
        typed = {"Content-Type": "application/octet-stream", **(headers or {})}
        request = urllib.request.Request(
            self.endpoint + path,
            data=body if method == "PUT" else None,
            method=method,
            headers={**self._signature(method, path, body), **typed},
        )
        try:
            with urllib.request.urlopen(request, timeout=30) as response:
                return response.status, response.read()
        except urllib.error.HTTPError as refused:
            return refused.code, refused.read()

    def _signature(self, method: str, path: str, body: bytes) -> dict[str, str]:
        moment = datetime.datetime.now(datetime.UTC).strftime("%Y%m%dT%H%M%SZ")
        content = hashlib.sha256(body).hexdigest()
        signed = {
            "host": urllib.parse.urlsplit(self.endpoint).netloc,
            "x-amz-content-sha256": content,
            "x-amz-date": moment,
        }
        names = ";".join(signed)
        lines = "".join(f"{name}:{value}\n" for name, value in signed.items())
        canonical = f"{method}\n{path}\n\n{lines}\n{names}\n{content}"
        scope = f"{moment[:8]}/{self.region}/s3/aws4_request"
        digest = hashlib.sha256(canonical.encode()).hexdigest()
        key = b"AWS4" + self.secret_key.encode()
        for part in (*scope.split("/"), f"AWS4-HMAC-SHA256\n{moment}\n{scope}\n{digest}"):
            key = hmac.digest(key, part.encode(), "sha256")
        credential = f"AWS4-HMAC-SHA256 Credential={self.access_key}/{scope}"
        return {
            "x-amz-content-sha256": content,
            "x-amz-date": moment,
            "Authorization": f"{credential}, SignedHeaders={names}, Signature={key.hex()}",
        }


@contextlib.contextmanager
def serve(folder: Path) -> Iterator[S3]:
    """Run a server with its objects in `folder` and one empty bucket."""
    objects = folder / "objects"
    objects.mkdir(exist_ok=True)
    port = free_port()
    endpoint = f"http://127.0.0.1:{port}"
    configuration = folder / "s3proxy.properties"
    configuration.write_text(
        f"s3proxy.endpoint={endpoint}\n"
        "s3proxy.authorization=aws-v2-or-v4\n"
        f"s3proxy.identity={ACCESS_KEY}\n"
        f"s3proxy.credential={SECRET_KEY}\n"
        "jclouds.provider=filesystem-nio2\n"
        f"jclouds.filesystem.basedir={objects}\n"
    )
    command: list[str | Path] = [
        java.find_java().executable,
        "-Xmx256m",
        "-XX:+UseSerialGC",
        "-jar",
    ]
    command += [*jars.resolve([PACKAGE]), "--properties", configuration]
    with running(command, log=folder / "log", ready=lambda: answers(port), cwd=folder) as process:
        server = S3(endpoint, objects, process.pid)
        server.create_bucket(BUCKET)
        yield server
