"""A real server of S3 on loopback (moto's), which ends with the tests, and a bucket in it."""

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

BUCKET = "builds"
POLICY = '{"Version": "2012-10-17", "Statement": [{"Effect": "Allow", "Action": "s3:*", "Resource": "*"}]}'
SETTING_UP = 4  # requests that are not asked who they are from
SERVER = """
import sys, threading
from moto.server import DomainDispatcherApplication, create_backend_app
from werkzeug.serving import make_server
server = make_server("127.0.0.1", 0, DomainDispatcherApplication(create_backend_app), threaded=True)
threading.Thread(target=server.serve_forever, daemon=True).start()
print(server.server_port, flush=True)
sys.stdin.read()
"""


def client(service: str, endpoint: str, key: str = "somebody", secret: str = "something") -> Any:
    """A client of AWS's own."""
    import boto3

    return boto3.client(
        service, endpoint_url=endpoint, region_name="us-east-1", aws_access_key_id=key, aws_secret_access_key=secret
    )


@contextmanager
def serving(is_checked: bool = True) -> Iterator[dict[str, str]]:
    """Run a server with a bucket in it; yield the settings of AWS's tools with which it is reached.

    Where it ``is_checked`` who asks, the server wants the signature of the user in the settings.
    """
    clean = {name: value for name, value in os.environ.items() if not name.startswith("AWS_")}
    counted = {"INITIAL_NO_AUTH_ACTION_COUNT": str(SETTING_UP)} if is_checked else {}
    with tempfile.TemporaryFile() as log:
        running = subprocess.Popen(
            [sys.executable, "-c", SERVER], env={**clean, **counted}, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
            stderr=log, text=True,
        )  # fmt: skip
        try:
            assert running.stdout is not None
            endpoint = f"http://127.0.0.1:{int(running.stdout.readline())}"
            iam, s3 = client("iam", endpoint), client("s3", endpoint)
            iam.create_user(UserName="envkit")
            made = iam.create_access_key(UserName="envkit")["AccessKey"]
            iam.put_user_policy(UserName="envkit", PolicyName="all", PolicyDocument=POLICY)
            s3.create_bucket(Bucket=BUCKET)
            yield {
                "AWS_ENDPOINT_URL": endpoint,
                "AWS_ACCESS_KEY_ID": made["AccessKeyId"],
                "AWS_SECRET_ACCESS_KEY": made["SecretAccessKey"],
                "AWS_EC2_METADATA_DISABLED": "true",
                "AWS_CONFIG_FILE": os.devnull,
                "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
            }
        finally:
            running.communicate(timeout=10)  # it ends with its standard input


def use(monkeypatch: Any, settings: dict[str, str]) -> None:
    """Have these settings, and no other ones of AWS's."""
    for name in [one for one in os.environ if one.startswith("AWS_")]:
        monkeypatch.delenv(name)
    for name, value in settings.items():
        monkeypatch.setenv(name, value)


def credentials(folder: Path, settings: dict[str, str]) -> dict[str, str]:
    """Put the credentials of some settings into a file, in a profile; return the settings that name it."""
    names = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    path = folder / "credentials"
    path.write_text("[site]\n" + "".join(f"{name.lower()} = {settings[name]}\n" for name in names))
    rest = {name: value for name, value in settings.items() if name not in names}
    return {**rest, "AWS_SHARED_CREDENTIALS_FILE": str(path), "AWS_PROFILE": "site"}
